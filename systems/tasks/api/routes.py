"""The system's own routes: tasks and what is done with them, people, link codes. Reading events is the feed's work."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from aftercommit.access.bearer import BearerAccess
from aftercommit.access.rate_limit import Rate, RateLimiter
from aftercommit.access.reader import Reader
from aftercommit.access.trusted import TrustedUsers, is_program
from aftercommit.feed import Feed
from aftercommit.http.errors import Problem, bad_request, too_many
from aftercommit.postgres.database import Database
from aftercommit.service import Service
from systems.host.http import (
    LARGEST,
    Handler,
    RequestPool,
    answer,
    at_one_moment,
    guarded,
    read_body,
    whole_number,
)
from systems.tasks.api.bodies import STEPS, Redemption, key_of, wanted
from systems.tasks.events import outbox
from systems.tasks.service import people
from systems.tasks.service.description import machine
from systems.tasks.service.errors import NoSuchPlace, NotThere
from systems.tasks.service.link_codes import make_code, redeem
from systems.tasks.service.machine import State
from systems.tasks.service.task import find_seen, history_of, list_tasks
from systems.tasks.service.work import create_task, take_step

ROOT: Final = "/tasks"
REDEEM: Final = f"{ROOT}/link-codes/redeem"
LISTED: Final = 50
MOST_LISTED: Final = 200
PEOPLE_LISTED: Final = 200
MOST_PEOPLE_LISTED: Final = 1000
# A guess is one of 2^60, so this is more than enough against those; and enough for a bot with many users.
REDEMPTIONS: Final = Rate("user", 60, 60)
AGAIN: Final = "it may have been done; look, or send it again (a new task under the same Idempotency-Key)"


class _Number(Convertor[int]):
    """A part of an address that is a number; others may stand in the same place."""

    regex = "[0-9]{1,40}"

    def convert(self, value: str) -> int:
        return int(value)

    def to_string(self, value: int) -> str:
        return str(value)


register_url_convertor("number", _Number())


class TasksApi:
    """The routes, on connections of their own."""

    def __init__(self, database: Database, bearer: BearerAccess, *, local_users: bool = False) -> None:
        """Nothing is connected before the lifespan begins. `local_users` is for development alone."""
        self.access = TrustedUsers(bearer, development=local_users)
        self._pool = RequestPool(database, "tasks", AGAIN)
        self._limiter = RateLimiter(database, outbox)
        self.services: Sequence[Service] = [self._limiter]
        member = ROOT + "/roles/{role_id:number}/members/{user_id:number}"
        one = ROOT + "/{task_id:number}"
        self.routes: Sequence[BaseRoute] = [
            Route(ROOT, self._guarded(self.list, "state", "before", "limit"), methods=["GET"]),
            Route(ROOT, self._guarded(self.create), methods=["POST"]),
            Route(ROOT + "/me", self._guarded(self.me), methods=["GET"]),
            Route(ROOT + "/me/link-codes", self._guarded(self.link), methods=["POST"]),
            Route(REDEEM, guarded(self.access.caller, self.redeem), methods=["POST"]),
            Route(ROOT + "/users", self._guarded(self.users, "after", "limit"), methods=["GET"]),
            Route(ROOT + "/roles", self._guarded(self.roles), methods=["GET"]),
            Route(member, self._guarded(self.add_member), methods=["PUT"]),
            Route(member, self._guarded(self.remove_member), methods=["DELETE"]),
            Route(ROOT + "/machine", self._guarded(self.machine), methods=["GET"]),
            Route(one, self._guarded(self.show), methods=["GET"]),
            Route(one + "/history", self._guarded(self.history, "after", "limit"), methods=["GET"]),
            *(Route(f"{one}/{verb}", self._guarded(self._step(verb)), methods=["POST"]) for verb in STEPS),
        ]

    def lifespan(self) -> AbstractAsyncContextManager[object]:
        """Connections are open."""
        return self._pool.lifespan()

    async def exists(self, feed: Feed, key: str) -> bool:
        """Everybody hears of something, or of nothing: who there is decides nothing."""
        return True

    async def list(self, request: Request, reader: Reader) -> Response:
        """Those that the caller created, works on or supervises, newest first."""
        state = _state(request)
        before = whole_number(request, "before", 1, LARGEST)
        limit = whole_number(request, "limit", 1, MOST_LISTED) or LISTED
        async with self._pool.reading() as connection, at_one_moment(connection):
            user = await people.find_person(connection, int(reader.user))
            return answer(200, await list_tasks(connection, user.user_id, state=state, before=before, limit=limit))

    async def create(self, request: Request, reader: Reader) -> Response:
        """A new task; with an Idempotency-Key at most one."""
        key = key_of(request.headers.getlist("idempotency-key"))
        new = wanted(await request.body())
        async with self._pool.changing() as connection:
            task, is_new = await create_task(connection, int(reader.user), new, key)
        return answer(201 if is_new else 200, task, {"Location": f"{ROOT}/{task.task_id}"})

    async def show(self, request: Request, reader: Reader) -> Response:
        """One task."""
        task_id = _task_id(request)
        async with self._pool.reading() as connection, at_one_moment(connection):
            user = await people.find_person(connection, int(reader.user))
            return answer(200, await find_seen(connection, task_id, user.user_id))

    async def history(self, request: Request, reader: Reader) -> Response:
        """What was done with it."""
        task_id = _task_id(request)
        after = whole_number(request, "after", 0, LARGEST) or 0
        limit = whole_number(request, "limit", 1, MOST_LISTED) or LISTED
        async with self._pool.reading() as connection, at_one_moment(connection):
            user = await people.find_person(connection, int(reader.user))
            await find_seen(connection, task_id, user.user_id)
            return answer(200, await history_of(connection, task_id, after=after, limit=limit))

    async def me(self, request: Request, reader: Reader) -> Response:
        """Who the caller is."""
        async with self._pool.reading() as connection:
            return answer(200, await people.find_person(connection, int(reader.user)))

    async def users(self, request: Request, reader: Reader) -> Response:
        """Who there is."""
        after = whole_number(request, "after", 0, LARGEST) or 0
        limit = whole_number(request, "limit", 1, MOST_PEOPLE_LISTED) or PEOPLE_LISTED
        async with self._pool.reading() as connection:
            await people.find_person(connection, int(reader.user))
            return answer(200, await people.list_people(connection, after=after, limit=limit))

    async def roles(self, request: Request, reader: Reader) -> Response:
        """Who has which role."""
        async with self._pool.reading() as connection:
            await people.find_person(connection, int(reader.user))
            return answer(200, await people.list_roles(connection))

    async def add_member(self, request: Request, reader: Reader) -> Response:
        """Give somebody a role."""
        role_id, user_id = _place(request, "role"), _place(request, "user")
        async with self._pool.changing() as connection:
            return answer(200, await people.add_member(connection, int(reader.user), role_id, user_id))

    async def remove_member(self, request: Request, reader: Reader) -> Response:
        """Take it from them."""
        role_id, user_id = _place(request, "role"), _place(request, "user")
        async with self._pool.changing() as connection:
            return answer(200, await people.remove_member(connection, int(reader.user), role_id, user_id))

    async def machine(self, request: Request, reader: Reader) -> Response:
        """The state machine and the routing policy."""
        return answer(200, machine())

    async def link(self, request: Request, reader: Reader) -> Response:
        """A code by which the caller's chat becomes known."""
        async with self._pool.changing() as connection:
            return answer(201, await make_code(connection, int(reader.user)))

    async def redeem(self, request: Request, caller: Reader) -> Response:
        """Whose code it is, to a program alone."""
        if not is_program(caller):
            raise Problem(403, "Codes are redeemed by programs: show a service token with the permission act-as-user")
        allowance = await self._limiter.take("tasks:redeem", caller.service or "this machine", REDEMPTIONS)
        if not allowance.allowed:
            raise too_many(f"Too many codes. Limit: {REDEMPTIONS.requests} per minute", allowance.retry_after)
        code = read_body(Redemption, await request.body()).code
        async with self._pool.changing() as connection:
            return answer(200, await redeem(connection, code))

    def _step(self, verb: str) -> Handler:
        async def step(request: Request, reader: Reader) -> Response:
            task_id, said = _task_id(request), STEPS[verb](await request.body())
            async with self._pool.changing() as connection:
                return answer(200, await take_step(connection, int(reader.user), task_id, said))

        return step

    def _guarded(self, handler: Handler, *parameters: str) -> Callable[[Request], Awaitable[Response]]:
        return guarded(self.access.reader, handler, *parameters)


def _task_id(request: Request) -> int:
    task_id: int = request.path_params["task_id"]
    if not 0 < task_id <= LARGEST:
        raise NotThere(task_id)
    return task_id


def _place(request: Request, what: str) -> int:
    number: int = request.path_params[f"{what}_id"]
    if not 0 < number <= LARGEST:
        raise NoSuchPlace(what, number)
    return number


def _state(request: Request) -> State | None:
    given = request.query_params.getlist("state")
    if not given:
        return None
    if len(given) != 1 or given[0] not in tuple(State):
        raise bad_request(f"state must be given once, as one of {', '.join(State)}", state=given[0][:60])
    return State(given[0])
