"""`/bot<token>/<method>`: answers one call, or injects the fault that is switched on for it."""

import asyncio
import math
import re
import time
from collections import deque
from collections.abc import Coroutine, Mapping
from http import HTTPStatus
from typing import Any, Final, TypeVar

import msgspec

from aftercommit.contrib.telegram.local_api.arguments import (
    MOST_BODY,
    Refusal,
    from_json,
    integer,
    read_arguments,
    too_many_requests,
)
from aftercommit.contrib.telegram.local_api.limits import RateLimit
from aftercommit.contrib.telegram.local_api.messenger import Messenger
from aftercommit.contrib.telegram.local_api.methods import Methods, chat_named
from aftercommit.contrib.telegram.local_api.records import Call, Update
from aftercommit.contrib.telegram.local_api.switches import (
    Blocked,
    ChatNotFound,
    Drop,
    Hang,
    ServerError,
    Slow,
    Switch,
    Switchboard,
    TooManyRequests,
)
from aftercommit.http.asgi import JSON, Header, Receive, Scope, Send, answer, connection_of, header_of, lost

Result = TypeVar("Result")

LONGEST_POLL: Final = 50
MOST_CALLS: Final = 100_000
_ADDRESS: Final = re.compile(r"/bot(?P<token>[^/]*)/(?P<method>[^/]*)/?")
_TOKEN: Final = re.compile(r"[1-9][0-9]{0,15}:[A-Za-z0-9_-]{20,64}")
_CONFLICT: Final = "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running"
_WEBHOOK: Final = (
    "Conflict: can't use getUpdates method while webhook is active; use deleteWebhook to delete the webhook first"
)
_PHRASES: Final = {status.value: status.phrase for status in HTTPStatus}
_encode: Final = msgspec.json.Encoder().encode


class _Gone(Exception):
    """The client has left, or is to get no answer."""


class Exchange:
    """Answers a bot's calls, and keeps a record of them."""

    def __init__(self, token: str, messenger: Messenger, board: Switchboard, rate: RateLimit) -> None:
        self.calls: deque[Call] = deque(maxlen=MOST_CALLS)
        self.methods = Methods(messenger, rate)
        self.closing = False
        self._token = token
        self._messenger = messenger
        self._changes = messenger.changes
        self._board = board
        self._poller: Call | None = None
        self._count = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a call, or inject a fault."""
        try:
            method, arguments = await self._read(scope, receive)
        except Refusal as refusal:
            await _answer(send, refusal.status, refusal.told(), scope["method"])
            return
        call = self._record(method, arguments)
        try:
            status, body = await self._while_there(self._outcome(call), receive)
        except _Gone:
            self._finish(call, None, None)
            await _cut(scope, receive)
            return
        self._finish(call, status, body)
        await _answer(send, status, body, scope["method"])

    async def _read(self, scope: Scope, receive: Receive) -> tuple[str, dict[str, str]]:
        found = _ADDRESS.fullmatch(scope["path"])
        if found is None or _TOKEN.fullmatch(found["token"]) is None:
            raise Refusal(404, "Not Found")
        if found["token"] != self._token:
            raise Refusal(401, "Unauthorized")
        if scope["method"] not in ("GET", "POST", "HEAD"):
            raise Refusal(405, "Method Not Allowed")
        content_type = header_of(scope, b"content-type") or ""
        return found["method"], read_arguments(scope["query_string"], content_type, await _body(receive))

    def _record(self, method: str, arguments: Mapping[str, str]) -> Call:
        with self._changes.lock:
            self._count += 1
            chat_id = chat_named(arguments, self._messenger.chats)
            call = Call(self._count, method, chat_id, arguments, time.monotonic())
            self.calls.append(call)
            self._changes.tell(call)
            return call

    def _finish(self, call: Call, status: int | None, body: Mapping[str, Any] | bytes | None) -> None:
        with self._changes.lock:
            call.answered = time.monotonic()
            call.status = status
            if isinstance(body, Mapping):
                call.description = body.get("description")
            self._changes.tell(call)

    async def _while_there(self, work: Coroutine[Any, Any, Result], receive: Receive) -> Result:
        """Do the work, unless the client leaves first."""
        working = asyncio.create_task(work)
        leaving = asyncio.create_task(lost(receive))
        try:
            await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise _Gone
            return await working
        finally:
            for task in (working, leaving):
                task.cancel()
            await asyncio.gather(working, leaving, return_exceptions=True)

    async def _outcome(self, call: Call) -> tuple[int, Mapping[str, Any] | bytes]:
        """Status and body; raises `_Gone` for no answer."""
        try:
            if call.method.lower() != "getupdates" and call.method.lower() not in self.methods.known:
                raise Refusal(404, "Not Found: method not found")
            self._must_have_waited(call)
            switch = self._board.met(call.method, call.chat_id)
            if switch is not None:
                return await self._broken(switch, call)
            return await self._result(call)
        except Refusal as refusal:
            if refusal.retry_after is not None and not call.too_early and call.fault is None:
                self._board.told_to_wait(call.method, call.chat_id, refusal.retry_after)
            return refusal.status, refusal.told()

    def _must_have_waited(self, call: Call) -> None:
        remaining = self._board.remaining_wait(call.method, call.chat_id)
        if remaining > 0:
            call.too_early = True
            raise too_many_requests(max(1, math.ceil(remaining)))

    async def _broken(self, switch: Switch, call: Call) -> tuple[int, Mapping[str, Any] | bytes]:
        """The answer to a call that meets a fault."""
        fault = switch.fault
        call.fault = fault.name
        match fault:
            case TooManyRequests():
                self._board.told_to_wait(switch.method, switch.chat_id, fault.retry_after)
                raise too_many_requests(fault.retry_after)
            case Blocked():
                raise Refusal(403, "Forbidden: bot was blocked by the user")
            case ChatNotFound():
                raise Refusal(400, "Bad Request: chat not found")
        done = await self._result(call) if fault.recorded else None
        match fault:
            case ServerError():
                return _server_error(fault)
            case Hang():
                ended = self._changes.until(lambda: (switch.was_ended or self.closing) or None)
                await asyncio.wrap_future(ended)
                raise _Gone
            case Drop():
                raise _Gone
            case Slow():
                await asyncio.sleep(fault.seconds)
                return done or await self._result(call)

    async def _result(self, call: Call) -> tuple[int, Mapping[str, Any]]:
        if call.method.lower() == "getupdates":
            updates = await self._get_updates(call)
            return 200, {"ok": True, "result": [update.told() for update in updates]}
        about = self._about(call.method.lower())
        result = self.methods.known[call.method.lower()](call)
        return 200, {"ok": True, "result": result, **({"description": about} if about else {})}

    def _about(self, method: str) -> str | None:
        """Telegram's description of some successful calls."""
        if method == "deletewebhook":
            return "Webhook was deleted" if self.methods.webhook else "Webhook is already deleted"
        return "Webhook was set" if method == "setwebhook" else None

    async def _get_updates(self, call: Call) -> list[Update]:
        limit = integer(call.arguments, "limit", 100, 1, 100)
        timeout = integer(call.arguments, "timeout", 0, 0, LONGEST_POLL)
        kinds = from_json(call.arguments.get("allowed_updates", ""))
        with self._changes.lock:
            # An earlier poll gets a conflict; the new one takes its place, as at Telegram.
            self._poller = call
            self._messenger.confirm(integer(call.arguments, "offset", 0, -(1 << 31), 1 << 31))
            if isinstance(kinds, list):
                self._messenger.allow(kind for kind in kinds if isinstance(kind, str))
            self._changes.tell()

        def look() -> list[Update] | None:
            if self._poller is not call or self.methods.webhook:
                # Wake the earlier poll; it raises the conflict itself.
                return []
            return self._messenger.updates[:limit] or ([] if self.closing else None)

        found = await self._changes.within(timeout, look)
        with self._changes.lock:
            if self.methods.webhook:
                raise Refusal(409, _WEBHOOK)
            if self._poller is not call:
                raise Refusal(409, _CONFLICT)
            self._poller = None
        return found or []


async def _body(receive: Receive) -> bytes:
    pieces: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await receive()
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > MOST_BODY:
            raise Refusal(413, "Request Entity Too Large")
        more = message.get("more_body", False)
    return b"".join(pieces)


async def _answer(send: Send, status: int, body: Mapping[str, Any] | bytes, method: str) -> None:
    if isinstance(body, bytes):
        content, kind = body, (b"content-type", b"text/html")
    else:
        content, kind = _encode(body), JSON
    headers: list[Header] = [kind, (b"content-length", b"%d" % len(content))]
    if isinstance(body, Mapping) and "retry_after" in body.get("parameters", {}):
        headers.append((b"retry-after", b"%d" % body["parameters"]["retry_after"]))
    if status == 413:
        headers.append((b"connection", b"close"))
    await answer(send, status, headers, b"" if method == "HEAD" else content)


async def _cut(scope: Scope, receive: Receive) -> None:
    """Close the connection without an answer."""
    connection = connection_of(scope)
    if connection is not None:
        connection.abort()
    await lost(receive)


def _server_error(fault: ServerError) -> tuple[int, Mapping[str, Any] | bytes]:
    phrase = _PHRASES.get(fault.status, "Server Error")
    if fault.as_page:
        return fault.status, f"<html><head><title>{fault.status} {phrase}</title></head></html>\r\n".encode()
    return fault.status, {"ok": False, "error_code": fault.status, "description": phrase}
