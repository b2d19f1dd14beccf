"""The system as the site runs it."""

from pathlib import Path
from typing import Any, Final

from systems.host.routes import paths_of, schemas_of
from systems.host.system import Link, SampleBot, System
from systems.tasks.api.part import TasksPart
from systems.tasks.api.routes import REDEEM, ROOT, router
from systems.tasks.events import outbox
from systems.tasks.feeds import EVENTS_PATH, events
from systems.tasks.sample.traffic import CHATS, USERS, Traffic, add_sample_people

BOARD: Final = f"{ROOT}/board"


def _paths() -> dict[str, Any]:
    """Those of the routes. The feed describes itself, but for the header that names the user."""
    told = paths_of(router)
    header = next(each for each in told[ROOT]["get"]["parameters"] if each["name"] == "X-User-Id")
    return told | {path: {"parameters": [header]} for path in (EVENTS_PATH, f"{EVENTS_PATH}/stream")}


tasks: Final = System(
    name="tasks",
    title="Tasks",
    about="People create, assign, report on and approve tasks; everybody around a task hears of it.",
    links=[Link(BOARD, "Tasks of the sample users")],
    outbox=outbox,
    tables=Path(__file__).with_name("tables.sql"),
    add_sample_data=add_sample_people,
    feeds={EVENTS_PATH: events},
    part=lambda database, bearer, local_users: TasksPart(database, bearer, local_users=local_users),
    router=router,
    paths=_paths,
    schemas=lambda: schemas_of(router),
    pages={BOARD: "tasks.html", f"{BOARD}/{{task_id}}": "task.html"},
    browser_redirects={ROOT: BOARD, f"{ROOT}/{{task_id:number}}": f"{BOARD}/{{task_id}}"},
    traffic=lambda database, rate: Traffic(database, rate=rate),
    users=USERS,
    users_by_header=True,
    bot=SampleBot(
        name="Tasks bot", feed=EVENTS_PATH, redeem=REDEEM, home=BOARD, page=f"{BOARD}/{{task_id}}", chats=CHATS
    ),
)
