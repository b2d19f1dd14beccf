"""Reads the feed for the bot, one page for one user at a time, with `aftercommit.client`.

Every result is a value; the caller decides when to ask again. Keeps no state.
"""

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any, Final, TypeAlias

import httpx
import msgspec

from aftercommit.client import ReadOptions, read, read_back
from aftercommit.client import wire as wires
from aftercommit.client.connection import Answer, FeedConnection, Lost
from aftercommit.client.credential import Credential
from aftercommit.client.machine import GONE
from aftercommit.client.wire import FeedAddress, FetchedPage, Unreadable
from aftercommit.clock import utc_now
from aftercommit.contrib.telegram.api import trust
from aftercommit.contrib.telegram.redaction import Clean, Redaction
from aftercommit.contrib.telegram.settings import BotSettings
from aftercommit.contrib.telegram.trouble import BackendTrouble, Kind, kind_of
from aftercommit.errors import FeedRefused, FollowError
from aftercommit.text import readable

_NEWEST_SECONDS: Final = 60.0

_MOST_BODY: Final = 1 << 20


class News(msgspec.Struct, frozen=True):
    """A page with its ETag."""

    page: FetchedPage
    etag: str | None


class Unchanged(msgspec.Struct, frozen=True):
    """Nothing is new."""


class Gone(msgspec.Struct, frozen=True):
    """The cursor is gone: a reason code, a message, and where to restart (None: from the beginning)."""

    reason: Clean
    message: Clean
    restart: str | None


class PollFailed(msgspec.Struct, frozen=True):
    """The poll failed. `status` is set if the server refused."""

    trouble: BackendTrouble
    status: int | None = None
    retry_after: float | None = None


Polled: TypeAlias = News | Unchanged | Gone | PollFailed


class BackendReader:
    """Requests pages from the backend on behalf of users."""

    def __init__(self, settings: BotSettings, redaction: Redaction) -> None:
        """`redaction` removes secrets from what servers say."""
        self._settings = settings
        self._redaction = redaction
        self._client: httpx.AsyncClient | None = None

    @property
    def redeems(self) -> bool:
        """Whether the backend redeems link codes."""
        return self._settings.redeem is not None

    async def health(self, user: str) -> BackendTrouble | None:
        """Check the backend once; returns what is wrong, or None."""
        settings = self._settings
        address = self._address(user, settings.names.health_limit)
        answer = await self._get(address.poll(None), user, settings.health_seconds)
        if isinstance(answer, PollFailed | Gone):
            return answer.trouble if isinstance(answer, PollFailed) else BackendTrouble(Kind.ERROR, answer.message)
        try:
            settings.names.wire.page(answer.body, answer.headers, None)
        except Unreadable as problem:
            return self.unreadable(problem)
        return None

    async def poll(self, user: str, after: str | None, etag: str | None) -> Polled:
        """Request the page after a cursor."""
        settings = self._settings
        place = after if after is not None else settings.names.wire.beginning
        url = self._address(user, settings.names.limit).poll(place)
        tagged = {} if etag is None else {"If-None-Match": etag.encode("latin-1", "replace")}
        answer = await self._get(url, user, settings.pace.answer, tagged)
        if isinstance(answer, Gone) and (answer.restart or settings.names.wire.beginning) == place:
            return self._erred(f"cursor {place} is gone, but the feed says to restart there: {answer.message}")
        if isinstance(answer, PollFailed | Gone):
            return answer
        if answer.status == 304:
            return Unchanged()
        try:
            page = settings.names.wire.page(answer.body, answer.headers, place)
        except Unreadable as problem:
            return PollFailed(self.unreadable(problem))
        if not all(map(_can_be_kept, (*(event.cursor for event in page.events), page.next or ""))):
            # Without cursors of events, a crash would repeat a whole page.
            return self._erred("the feed's events have no cursors: they need `ts` and `seq`, or a bare array")
        return News(page, answer.headers.get("etag"))

    async def newest(self, user: str) -> str | None:
        """The cursor of the newest event, or of the beginning. Raises FollowError."""
        try:
            async with asyncio.timeout(_NEWEST_SECONDS):
                return await self._newest(user)
        except TimeoutError as problem:
            said = f"could not find the newest event of user {user} in {_NEWEST_SECONDS:g} s"
            raise FollowError(said) from problem

    async def redeem(self, code: str) -> Mapping[str, Any] | PollFailed:
        """Redeem a link code at the backend."""
        assert self._settings.redeem is not None
        headers = await self._credential({}).headers("application/json")
        sent = {name: value.decode() for name, value in headers.items()}
        try:
            async with (
                asyncio.timeout(self._settings.health_seconds),
                self._opened().stream(
                    "POST", self._settings.redeem, json={"code": code}, headers=sent, timeout=None
                ) as answer,
            ):
                body = bytearray()
                async for chunk in answer.aiter_bytes():
                    body += chunk
                    if len(body) > _MOST_BODY:
                        return self._erred(f"the answer is larger than {_MOST_BODY} bytes")
        except TimeoutError:
            return self._lost(f"no answer for {self._settings.health_seconds:g} s")
        except (httpx.HTTPError, OSError) as problem:
            return self._lost(f"{type(problem).__name__}: {readable(problem)}")
        if answer.status_code != 200:
            return self._refused(Answer(answer.status_code, answer.headers, bytes(body)))
        try:
            told = msgspec.json.decode(body, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            return self._erred(f"the answer is not JSON: {problem}")
        return told if isinstance(told.get("user_id"), int | str) else self._erred("the answer has no user_id")

    def trouble_of(self, problem: FollowError) -> BackendTrouble:
        """The trouble behind an error of the client."""
        match problem, problem.__cause__:
            case FeedRefused(status=status), _:
                kind = kind_of(status, has_credential=self._settings.credential is not None)
            case _, Unreadable() as cause:
                return self.unreadable(cause)
            case _, Lost() | TimeoutError():
                kind = Kind.NO_ANSWER
            case _:
                kind = Kind.ERROR
        return BackendTrouble(kind, self._redaction.told(problem))

    def unreadable(self, problem: Unreadable) -> BackendTrouble:
        """The trouble behind an answer that the bot cannot use."""
        return BackendTrouble(Kind.ERROR, self._redaction.told(problem))

    async def close(self) -> None:
        """Close the connections; the next request opens them again."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _get(
        self, url: str, user: str, within: float, headers: Mapping[str, bytes] | None = None
    ) -> "Answer | Gone | PollFailed":
        sent = await self._credential(self._settings.feed_headers(user)).headers("application/json")
        try:
            answer = await FeedConnection(self._opened()).get(url, {**sent, **(headers or {})}, within)
        except Lost as problem:
            return self._lost(readable(problem))
        if answer.status == GONE:
            reset, words = wires.reset_of(_refusal(answer)), self._redaction.words
            return Gone(words(reset.reason), words(reset.message), reset.restart)
        return answer if answer.status in (200, 304) else self._refused(answer)

    async def _newest(self, user: str) -> str | None:
        names, url = self._settings.names, self._settings.feed_url(user)
        place = names.wire.beginning
        try:
            async with aclosing(read_back(url, **self._options(user, names.health_limit))) as events:
                async for event in events:
                    place = event.cursor or place
                    break
        except FeedRefused as problem:
            # A feed that cannot be read backwards is read from its beginning.
            if problem.status != 400:
                raise
        return place if place is None else await self._onward(url, place, self._options(user, names.largest))

    async def _onward(self, url: str, place: str, options: ReadOptions) -> str:
        """Read on until a page is empty: a server may ignore `before`, and may not say that there is more."""
        while True:
            before = place
            async for event in read(url, after=place, **options):
                place = event.cursor or place
            if place == before:
                return place

    def _options(self, user: str, limit: int) -> ReadOptions:
        settings = self._settings
        return ReadOptions(
            token=settings.credential,
            headers=settings.feed_headers(user),
            wire=settings.names.wire,
            client=self._opened(),
            limit=limit,
            pace=settings.pace,
        )

    def _address(self, user: str, limit: int) -> FeedAddress:
        return FeedAddress(self._settings.feed_url(user), self._settings.names.wire, limit=limit)

    def _credential(self, headers: Mapping[str, str]) -> Credential:
        return Credential(self._settings.credential, headers)

    def _refused(self, answer: Answer) -> PollFailed:
        refused = _refusal(answer)
        return PollFailed(self.trouble_of(refused), refused.status, refused.retry_after)

    def _lost(self, reason: str) -> PollFailed:
        return PollFailed(BackendTrouble(Kind.NO_ANSWER, self._redaction.words(reason)))

    def _erred(self, reason: str) -> PollFailed:
        return PollFailed(self.unreadable(Unreadable(reason)))

    def _opened(self) -> httpx.AsyncClient:
        if self._client is None:
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=16)
            self._client = httpx.AsyncClient(limits=limits, verify=trust())
        return self._client


def _can_be_kept(place: str | None) -> bool:
    """Whether a cursor can be stored and sent again."""
    return place is not None and place.isprintable()


def _refusal(answer: Answer) -> FeedRefused:
    return wires.refusal(answer.status, answer.headers, answer.body, utc_now())
