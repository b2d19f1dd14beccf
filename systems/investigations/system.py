"""The declaration of the investigations system."""

from pathlib import Path
from typing import Any, Final

from systems.host.routes import described
from systems.host.system import Link, System
from systems.investigations.api.part import InvestigationsPart
from systems.investigations.api.routes import ROOT, log_schemas, router
from systems.investigations.events import outbox
from systems.investigations.feeds import LOGS_PATH, logs
from systems.investigations.sample.sample_script import CASES
from systems.investigations.sample.traffic import USERS, Traffic


def _openapi() -> dict[str, Any]:
    document = described(router)
    document["schemas"] |= log_schemas()
    return document


investigations: Final = System(
    name="investigations",
    title="Investigation logs",
    about="Frontends and backends write log lines into an investigation. People watch them live and in order.",
    links=[
        Link(f"/investigations/{case.investigation_id}", f"{case.investigation_id}: {case.title}") for case in CASES
    ],
    outbox=outbox,
    tables=Path(__file__).with_name("tables.sql"),
    feeds={LOGS_PATH: logs},
    part=InvestigationsPart,
    router=router,
    openapi=_openapi,
    pages={"/investigations/{investigation_id}": "investigation.html"},
    # The home page lists them.
    browser_redirects={
        ROOT: "/",
        "/investigations": "/",
        f"{ROOT}/{{investigation_id}}": "/investigations/{investigation_id}",
    },
    traffic=lambda database, rate: Traffic(database, rate=rate),
    users=USERS,
)
