"""Bearer tokens: JWTs, and with a database also service tokens and revocations.

A token that was verified before costs neither a query nor a signature check. Service tokens and revocations are kept in
memory; a background service reads their changes.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import psycopg

from aftercommit.access.reader import Reader
from aftercommit.access.revocation import Revocations
from aftercommit.access.service_tokens import PREFIX, ServiceTokens
from aftercommit.access.tokens import TokenVerifier
from aftercommit.errors import DatabaseUnavailable, Unauthorized
from aftercommit.postgres.database import Database
from aftercommit.postgres.listen import Listener
from aftercommit.postgres.resilience import DatabaseService, close_quietly
from aftercommit.postgres.shape import HasShape, Shape, shape_of
from aftercommit.schema.requirement import require_schema
from aftercommit.service import Probe, Waker
from aftercommit.telemetry import log_event

logger = logging.getLogger("aftercommit.access")

USER_HEADER = "x-user-id"
# A request right after the start waits for the first read, at most so long.
BEGIN_SECONDS: Final = 5.0
_SCHEME = "bearer "


class BearerAccess(DatabaseService):
    """Authenticates JWTs and service tokens. Run it beside the server (`async with access: …`), or let `FeedApp` do it.

    It reads changes when it is notified, and every `poll_seconds`. While the database is unavailable, it accepts known
    service tokens for `trust_seconds`, and JWTs until they expire. Before its first read it accepts nothing, because a
    token may be revoked.
    """

    name = "access"
    may_be_cut = True
    # A service token may act on behalf of a user.
    vary = ("Authorization", "X-User-Id")

    def __init__(
        self,
        tokens: TokenVerifier | None,
        database: Database | None = None,
        outbox: HasShape | Shape | None = None,
        *,
        listener: Listener | None = None,
        poll_seconds: float = 5.0,
        trust_seconds: float = 60.0,
        probe: Probe | None = None,
    ) -> None:
        """Without a database it accepts JWTs only, and they cannot be revoked."""
        super().__init__(probe)
        self._tokens = tokens
        self._database = database
        self._shape = shape_of(outbox) if outbox is not None else Shape()
        self._poll, self._trust = poll_seconds, trust_seconds
        self._changed = listener.subscribe(self._shape.guard_channel) if listener is not None else Waker()
        self.service_tokens = ServiceTokens(self._shape)
        self.revocations = Revocations(self._shape)
        self._has_read = asyncio.Event()
        self._watchers: list[Callable[[], None]] = []

    async def reader(self, authorization: str | None, headers: Mapping[str, str], peer: str | None = None) -> Reader:
        """The reader of this Authorization header; Unauthorized, with the same text for every reason."""
        try:
            credential = _credential(authorization)
            if credential.startswith(PREFIX):
                return await self._service(credential, headers.get(USER_HEADER))
            return await self._user(credential)
        except Unauthorized as refusal:
            log_event(logger, logging.DEBUG, "unauthorized", reason=refusal.reason)
            raise

    def known_reader(self, authorization: str) -> Reader | None:
        """The reader, if the token was verified before and is still valid; otherwise None."""
        if self._database is not None and not self._has_read.is_set():
            return None
        try:
            credential = _credential(authorization)
            if not credential.startswith(PREFIX):
                reader = self._tokens.known(credential) if self._tokens is not None else None
                return None if reader is None or self.revocations.hit(reader) else reader
            is_fresh = self._database is not None and self.service_tokens.age <= self._trust
            return self.service_tokens.verify(credential) if is_fresh else None
        except Unauthorized:
            return None

    def still_valid(self, reader: Reader) -> bool:
        """Whether the reader's token is still valid, as far as this process knows."""
        if reader.expires_at is not None and reader.expires_at <= time.time():
            return False
        if reader.service is not None:
            return self.service_tokens.stands(reader)
        return not self.revocations.hit(reader)

    async def grants(self, permission: str) -> bool:
        """Whether a service token, even an expired one, names this permission. False without a database."""
        if self._database is None:
            return False
        await self._first_read()
        self._require_fresh()
        return self.service_tokens.grants(permission)

    def watch(self, call: Callable[[], None]) -> None:
        """Call this right after each read of service tokens and revocations."""
        self._watchers.append(call)

    async def run(self) -> None:
        """Keep service tokens and revocations up to date until stopped; survives an outage of the database."""
        if self._database is None:
            await self.stopping.wait()
        else:
            await super().run()

    async def session(self) -> None:
        """Read everything once, then changes; record which service tokens were used."""
        assert self._database is not None
        connection = await self._database.connect(bounded=True)
        try:
            await require_schema(connection, self._shape)
            self.service_tokens.begin_anew()
            self.revocations.begin_anew()
            while not self.stopping.is_set():
                await self._keep_up(connection)
                self.session_is_up()
                await self.reach("access.read")
                await self.pause(self._poll, self._changed)
        finally:
            await close_quietly(connection)

    async def _keep_up(self, connection: psycopg.AsyncConnection[Any]) -> None:
        await self.service_tokens.refresh(connection)
        self._tell()
        await self.revocations.refresh(connection)
        self._tell()
        self._has_read.set()
        await self.service_tokens.note_use(connection)

    def _tell(self) -> None:
        for call in self._watchers:
            call()

    async def _user(self, credential: str) -> Reader:
        if self._tokens is None:
            raise Unauthorized("no keys for tokens are configured")
        reader = self._tokens.verify(credential)
        if self._database is not None:
            await self._first_read()
        if self.revocations.hit(reader):
            raise Unauthorized("the token was revoked")
        return reader

    async def _service(self, credential: str, user: str | None) -> Reader:
        if self._database is None:
            raise Unauthorized("service tokens need a database, and none is configured")
        await self._first_read()
        self._require_fresh()
        return self.service_tokens.verify(credential, user)

    async def _first_read(self) -> None:
        """Give a server that has just started a moment for its first read."""
        if self._has_read.is_set():
            return
        if self._task is not None and not self._task.done():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._has_read.wait(), BEGIN_SECONDS)
        if not self._has_read.is_set():
            raise DatabaseUnavailable(
                "cannot check tokens: the list of revoked tokens has not been read yet. Try again"
            )

    def _require_fresh(self) -> None:
        if self.service_tokens.age > self._trust:
            raise DatabaseUnavailable(
                "cannot check service tokens: the database has not answered for a while. Try again"
            )


def _credential(authorization: str | None) -> str:
    if authorization is None:
        raise Unauthorized("there is no Authorization header")
    if authorization.startswith("Bearer "):
        return authorization[len(_SCHEME) :].strip(" ")
    if authorization[: len(_SCHEME)].lower() != _SCHEME:
        raise Unauthorized("the Authorization header is not a Bearer token")
    return authorization[len(_SCHEME) :].strip(" ")
