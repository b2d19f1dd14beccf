"""`/control/…`: lets the page, or a test in another process, act on the messenger. JSON both ways."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from aftercommit.contrib.telegram.local_api.exchange import Exchange
from aftercommit.contrib.telegram.local_api.messenger import Messenger
from aftercommit.contrib.telegram.local_api.switches import FAULTS, Fault, Switchboard
from aftercommit.contrib.telegram.local_api.view import MessengerView
from aftercommit.errors import AftercommitError, MissingExtra
from aftercommit.http import sse
from aftercommit.http.errors import Problem, bad_request, not_found

try:
    from starlette.requests import Request
    from starlette.responses import Response, StreamingResponse
    from starlette.routing import BaseRoute, Route
except ModuleNotFoundError as problem:
    raise MissingExtra("serve", problem.name or "starlette") from problem

Asked = TypeVar("Asked", bound=msgspec.Struct)
_HEARTBEAT: Final = 5.0
# An event, because EventSource does not report comments.
_BEAT: Final = sse.event(b"{}", name="heartbeat")
_NO_STORE: Final = {"Cache-Control": "no-store"}


class NewChat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A new chat with the bot."""

    first_name: str
    last_name: str | None = None
    username: str | None = None
    language_code: str | None = None
    chat_id: int | None = None


class Written(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message to the bot."""

    text: str


class Blocking(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Block or unblock the bot."""

    blocked: bool


class SwitchedOn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fault by name, with its parameters."""

    fault: str
    chat_id: int | None = None
    method: str | None = None
    times: int | None = None
    retry_after: int | None = None
    status: int | None = None
    seconds: float | None = None
    as_page: bool | None = None
    recorded: bool | None = None

    def made(self) -> Fault:
        """The fault itself."""
        kind = FAULTS.get(self.fault)
        if kind is None:
            raise bad_request(f"Unknown fault {self.fault!r:.60}: use one of {', '.join(FAULTS)}")
        details = {name: getattr(self, name) for name in ("retry_after", "status", "seconds", "as_page", "recorded")}
        given = {name: value for name, value in details.items() if value is not None}
        unknown = given.keys() - set(kind.__slots__)
        if unknown:
            raise bad_request(f"The fault {self.fault} has no parameter {min(unknown)}")
        return kind(**given)


class Control:
    """The control routes."""

    def __init__(self, messenger: Messenger, board: Switchboard, exchange: Exchange, view: MessengerView) -> None:
        self._messenger = messenger
        self._board = board
        self._exchange = exchange
        self._view = view
        self._changes = messenger.changes
        # Change numbers start over with each server process.
        self._epoch = format(time.time_ns(), "x")

    @property
    def routes(self) -> list[BaseRoute]:
        """All routes."""
        return [
            Route("/control/state", self._state, methods=["GET"]),
            Route("/control/events", self._events, methods=["GET"]),
            Route("/control/calls", self._calls, methods=["GET"]),
            Route("/control/chats", _guarded(self._open), methods=["POST"]),
            Route("/control/chats/{chat_id:int}", _guarded(self._forget), methods=["DELETE"]),
            Route("/control/chats/{chat_id:int}/messages", _guarded(self._write), methods=["POST"]),
            Route("/control/chats/{chat_id:int}/blocked", _guarded(self._block), methods=["PUT"]),
            Route("/control/switches", _guarded(self._switch_on), methods=["POST"]),
            Route("/control/switches", _guarded(self._switch_all_off), methods=["DELETE"]),
            Route("/control/switches/{number:int}", _guarded(self._switch_off), methods=["DELETE"]),
        ]

    async def _state(self, request: Request) -> Response:
        return _json(self._view.everything())

    async def _calls(self, request: Request) -> Response:
        with self._changes.lock:
            return _json([self._view.call(call) for call in self._exchange.calls])

    async def _events(self, request: Request) -> Response:
        headers = {**_NO_STORE, "X-Accel-Buffering": "no"}
        return StreamingResponse(self._follow(request), media_type="text/event-stream", headers=headers)

    async def _follow(self, request: Request) -> AsyncIterator[bytes]:
        """Send everything, then changes. A client that reconnects continues where it was."""
        epoch, _, number = request.headers.get("last-event-id", "").partition("-")
        seen = int(number) if epoch == self._epoch and number.isdecimal() else -1
        yield sse.opening(1000)
        while not self._exchange.closing:
            news = None if seen < 0 else self._view.news(seen)
            kind = "news" if news is not None else "everything"
            told = news if news is not None else self._view.everything()
            if told["number"] != seen:
                seen = told["number"]
                yield sse.event(msgspec.json.encode(told), name=kind, identity=f"{self._epoch}-{seen}")
            changed = await self._changes.within(_HEARTBEAT, partial(self._is_news, seen))
            yield b"" if changed else _BEAT

    def _is_news(self, number: int) -> bool | None:
        return self._changes.number != number or self._exchange.closing or None

    async def _open(self, request: Request) -> Response:
        asked = await _read(request, NewChat)
        chat = self._messenger.open(
            asked.first_name,
            chat_id=asked.chat_id,
            last_name=asked.last_name,
            username=asked.username,
            language=asked.language_code,
        )
        return _json(self._view.chat(chat), 201)

    async def _forget(self, request: Request) -> Response:
        self._messenger.forget(self._chat(request))
        return Response(status_code=204)

    async def _write(self, request: Request) -> Response:
        asked = await _read(request, Written)
        message = self._messenger.write(self._chat(request), asked.text)
        return _json(self._view.message(message), 201)

    async def _block(self, request: Request) -> Response:
        asked = await _read(request, Blocking)
        chat_id = self._chat(request)
        self._messenger.block(chat_id, asked.blocked)
        return _json(self._view.chat(self._messenger.chats[chat_id]))

    async def _switch_on(self, request: Request) -> Response:
        asked = await _read(request, SwitchedOn)
        switch = self._board.on(asked.made(), chat_id=asked.chat_id, method=asked.method, times=asked.times)
        return _json(switch.told(), 201)

    async def _switch_off(self, request: Request) -> Response:
        number = request.path_params["number"]
        switch = next((switch for switch in self._board.switches if switch.number == number), None)
        if switch is None:
            raise not_found("This fault does not exist or was already removed")
        switch.off()
        return Response(status_code=204)

    async def _switch_all_off(self, request: Request) -> Response:
        self._board.off()
        return Response(status_code=204)

    def _chat(self, request: Request) -> int:
        chat_id = int(request.path_params["chat_id"])
        if chat_id not in self._messenger.chats:
            raise not_found(f"Chat {chat_id} does not exist")
        return chat_id


def _guarded(route: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """Protect a route from pages of other origins, which can send forms, but no JSON."""

    async def guard(request: Request) -> Response:
        origin = request.headers.get("origin")
        if origin is not None and origin.partition("://")[2] != request.headers.get("host"):
            raise Problem(403, f"Pages of {origin!r:.100} may not call this server")
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if request.method != "DELETE" and kind != "application/json":
            raise Problem(415, f"The content type is {kind!r:.60}: send application/json")
        try:
            return await route(request)
        except Problem:
            raise
        except AftercommitError as error:
            raise bad_request(str(error)) from None

    return guard


async def _read(request: Request, kind: type[Asked]) -> Asked:
    try:
        return msgspec.json.decode(await request.body(), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise bad_request(f"The body is not valid: {problem}") from None


def _json(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, _NO_STORE, media_type="application/json")
