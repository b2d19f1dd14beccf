"""The system as the site runs it."""

from pathlib import Path
from typing import Final

from systems.host.system import Link, SampleBot, System
from systems.tasks.api import openapi
from systems.tasks.api.routes import REDEEM, ROOT, TasksApi
from systems.tasks.events import outbox
from systems.tasks.feeds import EVENTS_PATH, events
from systems.tasks.sample.traffic import CHATS, USERS, Traffic, add_sample_people

BOARD: Final = f"{ROOT}/board"

tasks: Final = System(
    name="tasks",
    title="Tasks",
    about="People create, assign, report on and approve tasks; everybody around a task hears of it.",
    links=[Link(BOARD, "Tasks of the sample users")],
    outbox=outbox,
    tables=Path(__file__).with_name("tables.sql"),
    add_sample_data=add_sample_people,
    feeds={EVENTS_PATH: events},
    part=lambda database, bearer, local_users: TasksApi(database, bearer, local_users=local_users),
    paths=openapi.paths,
    schemas=openapi.schemas,
    pages={BOARD: "tasks.html", f"{BOARD}/{{task_id}}": "task.html"},
    browser_redirects={ROOT: BOARD, f"{ROOT}/{{task_id:number}}": f"{BOARD}/{{task_id}}"},
    traffic=lambda database, rate: Traffic(database, rate=rate),
    users=USERS,
    users_by_header=True,
    bot=SampleBot(
        name="Tasks bot", feed=EVENTS_PATH, redeem=REDEEM, home=BOARD, page=f"{BOARD}/{{task_id}}", chats=CHATS
    ),
)
