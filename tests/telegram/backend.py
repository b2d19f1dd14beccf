"""A backend behind a real socket: a feed by user that behaves well, or badly in exactly the way a test says.

Every request is answered by the next act of the script, or well when the script is over. Acts are those of
`tests.clients.scripted_feed`.
"""

import asyncio
import contextlib
import json
import re
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import parse_qs, urlsplit

from tests.support.programs import kept_port

PATIENCE = 60.0


@dataclass(frozen=True)
class Request:
    """What the bot sent."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    at: float

    @property
    def user(self) -> str:
        return self.headers.get("x-user-id", "")


class Reply:
    """The other end of one connection."""

    def __init__(self, backend: "Backend", request: Request, writer: asyncio.StreamWriter) -> None:
        self.backend = backend
        self.request = request
        self.writer = writer

    async def answer(self, status: int, body: Any = None, **headers: str) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        lines = [f"HTTP/1.1 {status} x", f"content-length: {len(data)}", "content-type: application/json"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.writer.write(("\r\n".join(lines) + "\r\n\r\n").encode() + data)
        await self.writer.drain()


Act: TypeAlias = Callable[[Reply], Awaitable[None]]


@dataclass
class Backend:
    """Events of users, one-time codes, a script, and what was asked."""

    events: defaultdict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    codes: dict[str, tuple[int, str]] = field(default_factory=dict)
    script: deque[Act] = field(default_factory=deque)
    for_users: dict[str, Act] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    url: str = ""
    position: int = 0
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _server: asyncio.Server | None = None
    _kept: ExitStack = field(default_factory=ExitStack)
    _port: int = 0
    _open: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def feed(self) -> str:
        return f"{self.url}/tasks/me/events"

    def publish(self, *users: int, count: int = 1, **payload: Any) -> list[dict[str, Any]]:
        """So many events for these users; the numbers go on over all of them, as positions do."""
        made = []
        for _ in range(count):
            self.position += 1
            event: dict[str, Any] = {
                "event_id": self.position,
                "task_id": self.position,
                "event_type": "task_created",
                "actor_user_id": 1,
                "actor_role_id": 1,
                "created_at": "2026-01-01T00:00:00.000Z",
                "payload": {"title": f"task {self.position}", "actor_name": "Ada", "state": "new", **payload},
            }
            event["event_type"] = event["payload"].pop("event_type", event["event_type"])
            made.append(event)
            for user in users:
                self.events[str(user)].append(event)
        self.ring()
        return made

    def polls(self, user: int | None = None) -> list[Request]:
        """The questions for events."""
        return [
            request
            for request in self.requests
            if request.path.endswith("/events") and (user is None or request.user == str(user))
        ]

    def ring(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def until(self, condition: Callable[[], bool], timeout: float = PATIENCE) -> None:
        """Until something that this backend sees has come about."""
        async with asyncio.timeout(timeout):
            while not condition():
                await self._news.wait()

    async def start(self) -> None:
        """Listen; again at the same address when it was stopped."""
        self._port = self._port or self._kept.enter_context(kept_port())
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self.url = f"http://127.0.0.1:{self._port}"

    async def stop(self) -> None:
        """Be gone, and every connection with it."""
        assert self._server is not None
        self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def close(self) -> None:
        """Be gone for good."""
        await self.stop()
        self._kept.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while True:
                    request = await _request(reader)
                    self.requests.append(request)
                    self.ring()
                    act = self.script.popleft() if self.script else self.for_users.get(request.user, answer_well)
                    await act(Reply(self, request, writer))
        finally:
            self._open.discard(task)
            writer.close()


async def _request(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    parts = urlsplit(target)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    return Request(method, parts.path, query, headers, body, time.monotonic())


@asynccontextmanager
async def backend(script: Iterable[Act] = ()) -> AsyncIterator[Backend]:
    """A backend that is served while the block runs."""
    made = Backend(script=deque(script))
    await made.start()
    try:
        yield made
    finally:
        await made.close()


async def answer_well(reply: Reply) -> None:
    """As the tasks system does: pages in order, codes once."""
    request = reply.request
    if request.path.endswith("/redeem"):
        known = reply.backend.codes.pop(json.loads(request.body)["code"], None)
        if known is None:
            await reply.answer(404, {"error": "not_found", "message": "There is no such code"})
        else:
            await reply.answer(200, {"user_id": known[0], "name": known[1]})
        return
    if request.query.get("before_id") == "end":
        await reply.answer(200, reply.backend.events[request.user][-int(request.query["limit"]) :])
        return
    if not re.fullmatch(r"\d+", request.user):
        await reply.answer(400, {"error": "bad_request", "message": "X-User-Id"})
        return
    after, limit = int(request.query.get("after_id", "0")), int(request.query.get("limit", "50"))
    found = [event for event in reply.backend.events[request.user] if event["event_id"] > after]
    tag = f'"{after}-{limit}-{len(found)}"'
    if request.headers.get("if-none-match") == tag:
        await reply.answer(304, etag=tag)
        return
    page = found[:limit]
    headers = {"x_next_cursor": str(page[-1]["event_id"])} if page else {}
    await reply.answer(200, page, etag=tag, x_has_more=str(len(found) > limit).lower(), **headers)


def refuse(status: int, retry_after: int | None = None, **details: Any) -> Act:
    """An error in the common body."""

    async def act(reply: Reply) -> None:
        body = {"error": f"code_{status}", "message": f"told {status}", "details": details}
        await reply.answer(status, body, **({} if retry_after is None else {"retry_after": str(retry_after)}))

    return act


async def drop(reply: Reply) -> None:
    """No answer: the connection is reset."""
    reply.writer.transport.abort()
    raise ConnectionResetError


async def hang(reply: Reply) -> None:
    """Takes the request, and that is all."""
    await asyncio.Event().wait()


def say(body: Any) -> Act:
    """200 with this."""

    async def act(reply: Reply) -> None:
        await reply.answer(200, body)

    return act
