"""A Bot API server of one's own, on this machine alone: real HTTP, Telegram's shapes, limits and errors, and a page."""

import asyncio
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from aftercommit.access.trusted import names_this_machine
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
from aftercommit.http.asgi import Asgi, Receive, Scope, Send, answer_problem, header_of
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
"""The token of the local bot: no secret, and unknown to Telegram."""
_BOT_TOKEN: Final = re.compile(r"(?P<user>[1-9][0-9]{0,15}):[A-Za-z0-9_-]{20,64}")
# Whoever polls is answered at once when the server stops.
_DRAIN: Final = 1.0


class BotApiServer(Service):
    """`/bot<token>/<method>` for one bot, `/control/…` for its people and its faults, and `/` to look at it all.

    Everything is in memory, unless it is given a journal. Methods may be called from any thread; those that wait come
    in two kinds, awaited and blocking. `chat` is a Chat or its number.
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
        """Listens from here on; answers when it is started. `limits` are Telegram's, to the letter, unless given.

        With a `journal`, chats and messages are kept in this file and are there again in the server's next life; a
        file that another server holds is left alone. Calls and switches are never kept.
        """
        super().__init__(probe)
        found = _BOT_TOKEN.fullmatch(token)
        if found is None:
            raise DeclarationError("the token is not like Telegram's: digits, a colon, and 20 to 64 letters or digits")
        if host != "localhost" and not ip_address(host).is_loopback:
            raise DeclarationError(f"the Bot API server is for this machine alone and not for {host}: use 127.0.0.1")
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

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            is_bots = scope["type"] == "http" and scope["path"].startswith("/bot")
            await (self._exchange if is_bots else rooms)(scope, receive, send)

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
        """Until requests are answered."""
        await self._http.answers()

    def _close(self) -> None:
        with self.changes.lock:
            self._exchange.closing = True
            self.changes.tell()

    @classmethod
    @contextmanager
    def in_thread(cls, **options: Any) -> Iterator[Self]:
        """A server in a thread of its own, for tests that have no event loop. Options are those of the class."""
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
        """What the bot belongs to: addresses that the page of the chats leads to, by what stands on the link."""
        for address in ways.values():
            if not address.startswith(("http://", "https://")):
                raise DeclarationError(f"{address!r:.100} is no address: give one that begins with http:// or https://")
        self._view.ways = dict(ways)

    # --- the people

    def open_chat(
        self,
        first_name: str = "Ada",
        *,
        chat_id: int | None = None,
        last_name: str | None = None,
        username: str | None = None,
        language: str | None = None,
    ) -> Chat:
        """Somebody begins a private chat with the bot. Nothing is written yet; `write(chat, "/start")` is the usual."""
        return self.messenger.open(
            first_name, chat_id=chat_id, last_name=last_name, username=username, language=language
        )

    def open_group(self, title: str = "Team", *, is_forum: bool = False) -> Chat:
        """A supergroup that the bot is a member of; a forum has topics, each by a number."""
        return self.messenger.open_group(title, is_forum=is_forum)

    def write(self, chat: Chat | int, text: str, *, topic: int | None = None, is_anonymous: bool = False) -> Message:
        """The person writes to the bot; in a group a member, or an administrator who stays anonymous."""
        return self.messenger.write(_id(chat), text, topic=topic, is_anonymous=is_anonymous)

    def set_webhook(self, url: str = "https://example.com/hook") -> None:
        """Somebody sets a webhook for this bot ("" deletes it): 409 to getUpdates from now on."""
        with self.changes.lock:
            self._exchange.methods.webhook = url
            self.changes.tell()

    def block(self, chat: Chat | int) -> None:
        """The person blocks the bot: 403 from now on."""
        self.messenger.block(_id(chat))

    def unblock(self, chat: Chat | int) -> None:
        """The person takes it back."""
        self.messenger.block(_id(chat), False)

    def forget_chat(self, chat: Chat | int) -> None:
        """The chat is no more: 400, chat not found, from now on."""
        self.messenger.forget(_id(chat))

    # --- the faults

    def switch(
        self, fault: Fault, *, chat: Chat | int | None = None, method: str | None = None, times: int | None = None
    ) -> Switch:
        """Switch a fault on, for a chat or for all, for a method or for all, for so many calls or until it is off."""
        return self.switches.on(fault, chat_id=None if chat is None else _id(chat), method=method, times=times)

    def heal(self) -> None:
        """Switch every fault off; people who blocked the bot stay so."""
        self.switches.off()

    # --- what the bot did

    def sent(self, chat: Chat | int) -> Sequence[Message]:
        """What the bot has sent to a chat so far."""
        return [message for message in self.messenger.messages(_id(chat)) if message.from_bot]

    def calls(self, method: str | None = None, *, chat: Chat | int | None = None) -> Sequence[Call]:
        """The bot's calls so far, in the order they came."""
        chat_id = None if chat is None else _id(chat)
        with self.changes.lock:
            return [
                call
                for call in self._exchange.calls
                if (method is None or call.method.lower() == method.lower())
                and (chat_id is None or call.chat_id == chat_id)
            ]

    def commands(self, language: str = "") -> Sequence[dict[str, str]]:
        """The bot's commands, as set for everybody."""
        return [dict(each) for each in self._exchange.methods.commands.get(('{"type":"default"}', language), [])]

    def most_within(self, seconds: float, *, chat: Chat | int | None = None) -> int:
        """The most messages that the bot has tried to send or edit within any span of so many seconds."""
        times = [
            call.received for call in self.calls(chat=chat) if call.method.lower() in ("sendmessage", "editmessagetext")
        ]
        return max((sum(begin <= each < begin + seconds for each in times) for begin in times), default=0)

    # --- waiting

    async def messages(self, chat: Chat | int, count: int = 1, timeout: float = PATIENCE) -> Sequence[Message]:
        """What the bot has sent to a chat, once there are so many."""
        return await self.changes.found(*self._wanted_messages(chat, count), timeout)

    def wait_for_messages(self, chat: Chat | int, count: int = 1, timeout: float = PATIENCE) -> Sequence[Message]:
        """The same, blocking."""
        return self.changes.found_blocking(*self._wanted_messages(chat, count), timeout)

    async def called(
        self, method: str, count: int = 1, *, chat: Chat | int | None = None, timeout: float = PATIENCE
    ) -> Sequence[Call]:
        """The calls of a method, once there are so many."""
        return await self.changes.found(*self._wanted_calls(method, count, chat), timeout)

    def wait_for_calls(
        self, method: str, count: int = 1, *, chat: Chat | int | None = None, timeout: float = PATIENCE
    ) -> Sequence[Call]:
        """The same, blocking."""
        return self.changes.found_blocking(*self._wanted_calls(method, count, chat), timeout)

    async def until(self, condition: Callable[[], Found | None], timeout: float = PATIENCE) -> Found:
        """What the condition finds, looked at whenever something has changed here."""
        return await self.changes.found(condition, lambda: f"{condition} found nothing", timeout)

    def wait_until(self, condition: Callable[[], Found | None], timeout: float = PATIENCE) -> Found:
        """The same, blocking."""
        return self.changes.found_blocking(condition, lambda: f"{condition} found nothing", timeout)

    def _wanted_messages(
        self, chat: Chat | int, count: int
    ) -> tuple[Callable[[], Sequence[Message] | None], Callable[[], str]]:
        def look() -> Sequence[Message] | None:
            sent = self.sent(chat)
            return sent if len(sent) >= count else None

        return look, lambda: f"the bot sent {[message.text for message in self.sent(chat)]} and not {count} messages"

    def _wanted_calls(
        self, method: str, count: int, chat: Chat | int | None
    ) -> tuple[Callable[[], Sequence[Call] | None], Callable[[], str]]:
        def look() -> Sequence[Call] | None:
            calls = self.calls(method, chat=chat)
            return calls if len(calls) >= count else None

        return look, lambda: f"{method} was called {len(self.calls(method, chat=chat))} times and not {count}"


class _LocalOnly:
    """An application that answers to this machine's own names alone.

    A page elsewhere may have its name point here; the browser would let it read the chats, and use the bot.
    """

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
