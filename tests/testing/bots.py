"""What tests of the local Bot API share: a bot that speaks to it as any program would, over HTTP."""

import ssl
from typing import Any, NamedTuple

import httpx

from aftercommit.contrib.telegram.local_api import BotApiServer
from tests.support.programs import PATIENCE

# What is asked here is plain HTTP; by default httpx reads all certificate authorities there are for every client.
TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class Answer(NamedTuple):
    """What the server said."""

    status: int
    body: Any
    headers: httpx.Headers

    @property
    def result(self) -> Any:
        assert self.status == 200, self.body
        assert self.body["ok"] is True
        return self.body["result"]

    @property
    def error(self) -> tuple[int, str]:
        assert self.body["ok"] is False
        assert self.body["error_code"] == self.status
        return self.status, self.body["description"]


class BotClient:
    """A bot of a few lines."""

    def __init__(self, telegram: BotApiServer, patience: float = PATIENCE) -> None:
        """`patience` is how long it waits for an answer."""
        self.telegram = telegram
        self.http = httpx.AsyncClient(base_url=telegram.url, timeout=httpx.Timeout(PATIENCE, read=patience), verify=TLS)

    async def call(self, method: str, **arguments: Any) -> Answer:
        """A call with a JSON body."""
        return told(await self.http.post(f"/bot{self.telegram.token}/{method}", json=arguments))

    async def send(self, chat: Any, text: str, **more: Any) -> Answer:
        """A message."""
        return await self.call("sendMessage", chat_id=chat.chat_id, text=text, **more)

    async def lost(self, method: str, **arguments: Any) -> bool:
        """Whether a call ends without an answer."""
        try:
            await self.call(method, **arguments)
        except httpx.TransportError:
            return True
        return False


def told(answer: httpx.Response) -> Answer:
    return Answer(answer.status_code, answer.json(), answer.headers)
