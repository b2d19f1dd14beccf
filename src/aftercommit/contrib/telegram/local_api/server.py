"""A local Bot API server: real HTTP with Telegram's formats, limits and errors, and a page with the chats."""

import asyncio
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from aftercommit.access.trusted import names_this_machine
from aftercommit.contrib.telegram.local_api.arguments import MOST_BODY
from aftercommit.contrib.telegram.local_api.changes import PATIENCE, Changes
from aftercommit.contrib.telegram.local_api.control import Control
from aftercommit.contrib.telegram.local_api.exchange import Exchange
from aftercommit.contrib.telegram.local_api.journal import Journal
from aftercommit.contrib.telegram.local_api.limits import BotApiLimits, RateLimit
from aftercommit.contrib.telegram.local_api.messenger import Messenger
from aftercommit.contrib.telegram.local_api.page import NothingHere, page_routes
from aftercommit.contrib.telegram.local_api.records import Call, Chat, Message
from aftercommit.contrib.telegram.local_api.switches import Fault, Switch, Switchboard
from aftercommit.contrib.telegram.local_api.view import MessengerView
from aftercommit.errors import DeclarationError, MissingExtra
from aftercommit.http.asgi import Asgi, BodyLimit, Receive, Scope, Send, answer_problem, header_of
from aftercommit.http.error_handlers import exception_handlers
from aftercommit.http.errors import Problem
from aftercommit.server.http_server import HttpServer
from aftercommit.service import Probe, Service

try:
    from starlette.applications import Starlette
except ModuleNotFoundError as problem:
    raise MissingExtra("serve", problem.name or "starlette") from problem

Found = TypeVar("Found")

TOKEN: Final = "1000000001:local-bot-api-server-no-secret-0001"
"""The token of the local bot: not a secret, and unknown to Telegram."""
_BOT_TOKEN: Final = re.compile(r"(?P<user>[1-9][0-9]{0,15}):[A-Za-z0-9_-]{20,64}")
# Open polls are answered at once when the server stops.
_DRAIN: Final = 1.0


class BotApiServer(Service):
    """Serves `/bot<token>/<method>` for one bot, `/control/…` for its users and faults, and `/`, a page with the chats.

    Everything is in memory, unless there is a journal. Methods may be called from any thread; those that wait come in
    two forms, async and blocking. `chat` is a Chat or its number.
    """

    name = "bot-api"

    def __init__(
        self,
        *,
        token: str = TOKEN,
        username: str = "aftercommit_bot",
        first_name: str = "aftercommit",
        limits: BotApiLimits | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        journal: Path | None = None,
        probe: Probe | None = None,
    ) -> None:
        """Opens its port at once, and answers when it is started. By default `limits` are exactly Telegram's.

        With a `journal`, chats and messages are stored in this file and restored from it; calls and faults are not. A
        file that another server uses is left alone.
        """
        super().__init__(probe)
        found = _BOT_TOKEN.fullmatch(token)
        if found is None:
            raise DeclarationError("the token must be digits, a colon, and 20 to 64 letters, digits, _ or -")
        if host != "localhost" and not ip_address(host).is_loopback:
            raise DeclarationError(f"the Bot API server listens on this machine only, not on {host}: use 127.0.0.1")
        self.token = token
        self.changes = Changes()
        bot = {"id": int(found["user"]), "is_bot": True, "first_name": first_name, "username": username}
        self.messenger = Messenger(self.changes, bot)
        self.switches = Switchboard(self.changes)
        self._exchange = Exchange(token, self.messenger, self.switches, RateLimit(limits or BotApiLimits()))
        self._view = MessengerView(self.messenger, self.switches, self._exchange)
        self._http = HttpServer(
            _LocalOnly(self._app()), host=host, port=port, drain_seconds=_DRAIN, on_stop=self._close
        )
        self.url = self._http.url
        self._journal = Journal(journal) if journal is not None else None
        if self._journal is not None:
            self._journal.open(self.messenger)

    def _app(self) -> Asgi:
        control = Control(self.messenger, self.switches, self._exchange, self._view)
        rooms = Starlette(routes=[*control.routes, *page_routes()], exception_handlers=exception_handlers())
        rooms.router.redirect_slashes = False
        rooms.router.default = NothingHere(rooms.router.default)
        limited = BodyLimit(rooms, MOST_BODY)

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            is_bots = scope["type"] == "http" and scope["path"].startswith("/bot")
            await (self._exchange if is_bots else limited)(scope, receive, send)

        return app

    async def run(self) -> None:
        """Answer until stopped."""
        try:
            async with self._http:
                await self.stopping.wait()
        finally:
            if self._journal is not None:
                self._journal.close()

    async def answers(self) -> None:
        """Wait until requests are answered."""
        await self._http.answers()

    def _close(self) -> None:
        with self.changes.lock:
            self._exchange.closing = True
            self.changes.tell()

    @classmethod
    @contextmanager
    def in_thread(cls, **options: Any) -> Iterator[Self]:
        """A server in its own thread, for tests without an event loop. Takes the options of the class."""
        server = cls(**options)
        begun = threading.Event()
        stop: list[Callable[[], object]] = []

        async def main() -> None:
            async with server:
                await server.answers()
                loop = asyncio.get_running_loop()
                stop.append(lambda: loop.call_soon_threadsafe(server.stopping.set))
                begun.set()
                await server.stopping.wait()

        def work() -> None:
            try:
                asyncio.run(main())
            finally:
                begun.set()

        thread = threading.Thread(target=work, name="bot-api", daemon=True)
        thread.start()
        begun.wait()
        try:
            yield server
        finally:
            for each in stop:
                each()
            thread.join()

    def lead_back(self, ways: Mapping[str, str]) -> None:
        """Set the links from the page back to the site: addresses by label."""
        for address in ways.values():
            if not address.startswith(("http://", "https://")):
                raise DeclarationError(f"{address!r:.100} is not an http:// or https:// address")
        self._view.ways = dict(ways)

    # --- users

    def open_chat(
        self,
        first_name: str = "Ada",
        *,
        chat_id: int | None = None,
        last_name: str | None = None,
        username: str | None = None,
        language: str | None = None,
    ) -> Chat:
        """Open a private chat with the bot, without messages; usually `write(chat, "/start")` comes next."""
        return self.messenger.open(
            first_name, chat_id=chat_id, last_name=last_name, username=username, language=language
        )

    def open_group(self, title: str = "Team", *, is_forum: bool = False) -> Chat:
        """Open a supergroup with the bot as a member; a forum has numbered topics."""
        return self.messenger.open_group(title, is_forum=is_forum)

    def write(self, chat: Chat | int, text: str, *, topic: int | None = None, is_anonymous: bool = False) -> Message:
        """Write to the bot; in a group as a member or an anonymous administrator."""
        return self.messenger.write(_id(chat), text, topic=topic, is_anonymous=is_anonymous)

    def set_webhook(self, url: str = "https://example.com/hook") -> None:
        """Set a webhook ("" deletes it): getUpdates gets 409 from now on."""
        self._exchange.methods.set_webhook(url)

    def block(self, chat: Chat | int) -> None:
        """The user blocks the bot: 403 from now on."""
        self.messenger.block(_id(chat))

    def unblock(self, chat: Chat | int) -> None:
        """The user unblocks the bot."""
        self.messenger.block(_id(chat), False)

    def forget_chat(self, chat: Chat | int) -> None:
        """Delete the chat: 400 "chat not found" from now on."""
        self.messenger.forget(_id(chat))

    # --- faults

    def switch(
        self, fault: Fault, *, chat: Chat | int | None = None, method: str | None = None, times: int | None = None
    ) -> Switch:
        """Inject a fault: for one chat or all, one method or all, a number of calls or until switched off."""
        return self.switches.on(fault, chat_id=None if chat is None else _id(chat), method=method, times=times)

    def heal(self) -> None:
        """Remove all faults; blocked chats stay blocked."""
        self.switches.off()

    # --- calls and messages of the bot

    def sent(self, chat: Chat | int) -> Sequence[Message]:
        """The bot's messages in a chat so far."""
        return [message for message in self.messenger.messages(_id(chat)) if message.from_bot]

    def calls(self, method: str | None = None, *, chat: Chat | int | None = None) -> Sequence[Call]:
        """The bot's calls so far, in order."""
        chat_id = None if chat is None else _id(chat)
        with self.changes.lock:
            return [
                call
                for call in self._exchange.calls
                if (method is None or call.method.lower() == method.lower())
                and (chat_id is None or call.chat_id == chat_id)
            ]

    def commands(self, language: str = "") -> Sequence[dict[str, str]]:
        """The bot's command menu, as set for all chats."""
        return [dict(each) for each in self._exchange.methods.commands.get(('{"type":"default"}', language), [])]

    def most_within(self, seconds: float, *, chat: Chat | int | None = None) -> int:
        """The largest number of messages that the bot tried to send or edit within this many seconds."""
        times = [
            call.received for call in self.calls(chat=chat) if call.method.lower() in ("sendmessage", "editmessagetext")
        ]
        return max((sum(begin <= each < begin + seconds for each in times) for begin in times), default=0)

    # --- waiting

    async def messages(self, chat: Chat | int, count: int = 1, timeout: float = PATIENCE) -> Sequence[Message]:
        """The bot's messages in a chat, once there are `count`."""
        return await self.changes.found(*_wanted(lambda: self.sent(chat), count, "messages"), timeout)

    def wait_for_messages(self, chat: Chat | int, count: int = 1, timeout: float = PATIENCE) -> Sequence[Message]:
        """The same, blocking."""
        return self.changes.found_blocking(*_wanted(lambda: self.sent(chat), count, "messages"), timeout)

    async def called(
        self, method: str, count: int = 1, *, chat: Chat | int | None = None, timeout: float = PATIENCE
    ) -> Sequence[Call]:
        """The calls of a method, once there are `count`."""
        calls = _wanted(lambda: self.calls(method, chat=chat), count, f"calls of {method}")
        return await self.changes.found(*calls, timeout)

    def wait_for_calls(
        self, method: str, count: int = 1, *, chat: Chat | int | None = None, timeout: float = PATIENCE
    ) -> Sequence[Call]:
        """The same, blocking."""
        calls = _wanted(lambda: self.calls(method, chat=chat), count, f"calls of {method}")
        return self.changes.found_blocking(*calls, timeout)

    async def until(self, condition: Callable[[], Found | None], timeout: float = PATIENCE) -> Found:
        """The first result of `condition` that is not None; it is checked after each change."""
        return await self.changes.found(condition, lambda: f"{condition} found nothing", timeout)

    def wait_until(self, condition: Callable[[], Found | None], timeout: float = PATIENCE) -> Found:
        """The same, blocking."""
        return self.changes.found_blocking(condition, lambda: f"{condition} found nothing", timeout)


def _wanted(
    listed: Callable[[], Sequence[Found]], count: int, what: str
) -> tuple[Callable[[], Sequence[Found] | None], Callable[[], str]]:
    """A look for `count` items, and the message if there are fewer."""

    def otherwise() -> str:
        return f"expected {count} {what}, got {[getattr(each, 'text', each) for each in listed()]}"

    return lambda: found if len(found := listed()) >= count else None, otherwise


class _LocalOnly:
    """Answers only requests to this machine's own names, against DNS rebinding by a web page."""

    def __init__(self, app: Asgi) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = header_of(scope, b"host") or "" if scope["type"] == "http" else "localhost"
        if not names_this_machine(host):
            refusal = Problem(421, f"{host!r:.100} is not this machine: use 127.0.0.1 or localhost")
            await answer_problem(send, refusal, scope["method"])
            return
        await self._app(scope, receive, send)


def _id(chat: Chat | int) -> int:
    return chat if isinstance(chat, int) else chat.chat_id
