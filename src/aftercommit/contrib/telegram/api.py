"""The Bot API over HTTP. Every call returns a `Reply`, also when the connection fails.

The token is part of every address, so addresses are kept out of errors and out of httpx's log lines.
"""

import asyncio
import logging
import ssl
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import msgspec

from aftercommit.contrib.telegram.answers import Later, Refused, Reply, understand
from aftercommit.contrib.telegram.markup import plain
from aftercommit.contrib.telegram.progress import WINDOW
from aftercommit.contrib.telegram.redaction import Redaction
from aftercommit.errors import MissingExtra
from aftercommit.text import readable

try:
    import httpx
except ModuleNotFoundError as problem:
    raise MissingExtra("telegram", "httpx") from problem

UPDATES: Final = ("message", "my_chat_member")
_MOST_BODY: Final = 16 << 20
# Telegram's reasons that a second attempt without HTML, or without the topic, can avoid.
_NOT_HTML: Final = "can't parse entities"
_NO_TOPIC: Final = "message thread not found"


@cache
def trust() -> ssl.SSLContext:
    """The trusted certificates, read once, because that is slow."""
    return httpx.create_ssl_context()


class BotApi:
    """The methods of the Bot API that the bot uses, for one token."""

    def __init__(self, token: str, base: str, *, seconds: float = 30.0, redaction: Redaction | None = None) -> None:
        """`seconds` is the timeout for an answer; `redaction` knows the other secrets."""
        self._token = token
        self._base = base.rstrip("/")
        self._seconds = seconds
        self._client: httpx.AsyncClient | None = None
        self._redaction = redaction or Redaction(token, base)

    async def get_me(self) -> Reply:
        """The bot's own account."""
        return await self._call("getMe", {})

    async def get_updates(self, offset: int, wait: int) -> Reply:
        """Updates from this number on; waits up to `wait` seconds for one."""
        asked = {"offset": offset, "timeout": wait, "limit": WINDOW, "allowed_updates": UPDATES}
        return await self._call("getUpdates", asked, self._seconds + wait)

    async def send_message(self, chat_id: int, text: str, topic: int | None = None) -> Reply:
        """Send HTML without a link preview.

        If Telegram cannot parse the HTML, the message is sent as plain text. If the topic is gone, it goes to the chat.
        """
        asked: dict[str, Any] = {
            "chat_id": chat_id,
            "text": self._redaction.clean(text),
            "parse_mode": "HTML",
            "link_preview_options": {"is_disabled": True},
        }
        if topic is not None:
            asked["message_thread_id"] = topic
        reply = await self._call("sendMessage", asked)
        if isinstance(reply, Refused) and _NO_TOPIC in reply.reason.lower() and asked.pop("message_thread_id", None):
            reply = await self._call("sendMessage", asked)
        if isinstance(reply, Refused) and _NOT_HTML in reply.reason.lower():
            del asked["parse_mode"]
            reply = await self._call("sendMessage", {**asked, "text": plain(asked["text"])})
        return reply

    async def set_my_commands(self, commands: Sequence[tuple[str, str]], language: str | None) -> Reply:
        """Set the command menu for one language, or the default for all others."""
        listed = [{"command": name, "description": about} for name, about in commands]
        chosen = {} if language is None else {"language_code": language}
        return await self._call("setMyCommands", {"commands": listed, **chosen})

    async def close(self) -> None:
        """Close the connections; the next call opens them again."""
        client, self._client = self._client, None
        logging.getLogger("httpx").removeFilter(self._redaction)
        if client is not None:
            await client.aclose()

    async def _call(self, method: str, asked: dict[str, Any], seconds: float | None = None) -> Reply:
        within = self._seconds if seconds is None else seconds
        client = self._opened()
        try:
            # Around the whole call: httpx's timeouts apply to each read.
            async with asyncio.timeout(within):
                return await self._ask(client, method, asked)
        except TimeoutError:
            return Later(f"{method}: no answer for {within:g} s")
        except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL, OSError) as problem:
            return Later(self._redaction.clean(f"{method}: {type(problem).__name__}: {readable(problem)}"))

    async def _ask(self, client: httpx.AsyncClient, method: str, asked: dict[str, Any]) -> Reply:
        request = client.build_request(
            "POST",
            f"{self._base}/bot{self._token}/{method}",
            content=msgspec.json.encode(asked),
            headers={"Content-Type": "application/json"},
            timeout=None,
        )
        response = await client.send(request, stream=True, follow_redirects=False)
        try:
            body = bytearray()
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > _MOST_BODY:
                    return Later(f"{method}: the answer is larger than {_MOST_BODY} bytes")
            return understand(response.status_code, bytes(body), self._redaction.clean)
        finally:
            await response.aclose()

    def _opened(self) -> httpx.AsyncClient:
        if self._client is None:
            logging.getLogger("httpx").addFilter(self._redaction)
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=32)
            self._client = httpx.AsyncClient(limits=limits, verify=trust())
        return self._client
