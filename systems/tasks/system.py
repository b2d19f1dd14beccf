"""The declaration of the tasks system."""

from pathlib import Path
from typing import Any, Final

from systems.host.routes import described
from systems.host.system import Link, SampleBot, System
from systems.tasks.api.part import TasksPart
from systems.tasks.api.routes import REDEEM, ROOT, router
from systems.tasks.events import outbox
from systems.tasks.feeds import EVENTS_PATH, events
from systems.tasks.sample.traffic import CHATS, USERS, Traffic, add_sample_people

BOARD: Final = f"{ROOT}/board"


def _openapi() -> dict[str, Any]:
    """The routes. The feed describes itself, apart from the header that names the user."""
    document = described(router)
    paths = document["paths"]
    header = next(each for each in paths[ROOT]["get"]["parameters"] if each["name"] == "X-User-Id")
    paths |= {path: {"parameters": [header]} for path in (EVENTS_PATH, f"{EVENTS_PATH}/stream")}
    return document


tasks: Final = System(
    name="tasks",
    title="Tasks",
    about="Create, assign, report on and approve tasks. Everyone involved in a task sees its events.",
    links=[Link(BOARD, "Task board")],
    outbox=outbox,
    tables=Path(__file__).with_name("tables.sql"),
    add_sample_data=add_sample_people,
    feeds={EVENTS_PATH: events},
    part=TasksPart,
    router=router,
    openapi=_openapi,
    pages={BOARD: "tasks.html", f"{BOARD}/{{task_id}}": "task.html"},
    browser_redirects={ROOT: BOARD, f"{ROOT}/{{task_id:number}}": f"{BOARD}/{{task_id}}"},
    traffic=lambda database, rate: Traffic(database, rate=rate),
    users=USERS,
    users_by_header=True,
    bot=SampleBot(
        name="Tasks bot", feed=EVENTS_PATH, redeem=REDEEM, home=BOARD, page=f"{BOARD}/{{task_id}}", chats=CHATS
    ),
)
