"""The system as the site runs it."""

from typing import Final

from systems.host.system import Link, System
from systems.investigations import openapi
from systems.investigations.api import ROOT, InvestigationsApi
from systems.investigations.events import outbox
from systems.investigations.feeds import LOGS_PATH, logs
from systems.investigations.sample import USERS, Traffic
from systems.investigations.story import CASES
from systems.investigations.tables import create_tables

investigations: Final = System(
    name="investigations",
    title="Investigation logs",
    about="Frontends and backends write log lines into an investigation; people watch them arrive, live and in order.",
    links=[
        Link(f"/investigations/{case.investigation_id}", f"{case.investigation_id}: {case.title}") for case in CASES
    ],
    outbox=outbox,
    create_tables=create_tables,
    feeds={LOGS_PATH: logs},
    part=lambda database, bearer, local_users: InvestigationsApi(database, bearer),
    paths=openapi.paths,
    schemas=openapi.schemas,
    pages={"/investigations/{investigation_id}": "investigation.html"},
    # The first page lists them.
    browser_redirects={
        ROOT: "/",
        "/investigations": "/",
        f"{ROOT}/{{investigation_id}}": "/investigations/{investigation_id}",
    },
    traffic=lambda database, rate: Traffic(database, rate=rate),
    users=USERS,
)
