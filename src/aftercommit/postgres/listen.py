"""One LISTEN connection per process, which wakes all services. Only an optimisation: every reader also polls.

Behind a pooler in transaction mode, notifications do not arrive; the listener finds that out and logs it.
"""

import asyncio
import logging
from collections.abc import Collection
from typing import Any
from uuid import uuid4

import psycopg
from psycopg import sql
from psycopg.pq import ConnStatus

from aftercommit.postgres.database import Database
from aftercommit.postgres.resilience import DatabaseService, close_quietly
from aftercommit.service import LONG, Probe, Waker, wait_for_any
from aftercommit.telemetry import log_event

logger = logging.getLogger("aftercommit.listener")

PROVING_SECONDS = 2.0
# A machine that was frozen during the test looks like a pooler, so the test is repeated soon, then less and less often.
PROVE_AGAIN_SOON = 1.0
PROVE_AGAIN_SECONDS = 60.0


class Listener(DatabaseService):
    """Sets wakers when their channel is notified; `working` says whether notifications arrive."""

    name = "listener"
    may_be_cut = True

    def __init__(self, database: Database, probe: Probe | None = None) -> None:
        super().__init__(probe)
        self._database = database
        self._events: dict[str, list[tuple[Waker, Collection[str] | None]]] = {}
        self._proof = f"aftercommit_proof_{uuid4().hex[:16]}"
        self._is_deaf = False
        self._prove_again = PROVE_AGAIN_SOON
        self.working = False
        # The last payload on each channel, since notifications arrive.
        self.heard: dict[str, str] = {}

    def subscribe(self, channel: str, payloads: Collection[str] | None = None) -> Waker:
        """A waker that is set at each notification of the channel, or only at those with one of these payloads.

        Call it before the listener starts.
        """
        event = Waker()
        self._events.setdefault(channel, []).append((event, payloads))
        return event

    def wake_all(self) -> None:
        """Wake every subscriber, because notifications may have been missed before a reconnect."""
        self.heard.clear()
        for subscriptions in self._events.values():
            for event, _ in subscriptions:
                event.set()

    async def session(self) -> None:
        """Listen until stopped; if notifications do not arrive, try again later."""
        connection = await self._database.connect(listen=True, bounded=True)
        try:
            for channel in [*self._events, self._proof]:
                await connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
            self.session_is_up()
            if not await self._proved(connection):
                # Otherwise a connection in the pooler's pool would go on listening for its next client.
                await connection.execute("unlisten *")
                await close_quietly(connection)
                await self._be_deaf()
                return
            self.working, self._is_deaf, self._prove_again = True, False, PROVE_AGAIN_SOON
            self.wake_all()
            await self.reach("listener.working")
            await self._listen(connection)
        finally:
            self.working = False
            await close_quietly(connection)

    async def _proved(self, connection: psycopg.AsyncConnection[Any]) -> bool:
        # Through a pooler in transaction mode, LISTEN succeeds but nothing arrives. So we notify ourselves.
        sender = await self._database.connect(bounded=True)
        try:
            await sender.execute("select pg_notify(%s, '')", (self._proof,))
        finally:
            await close_quietly(sender)
        async for notification in connection.notifies(timeout=PROVING_SECONDS):
            if notification.channel == self._proof:
                return True
        return False

    async def _be_deaf(self) -> None:
        if not self._is_deaf:
            remedy = "set AFTERCOMMIT_LISTEN_URL (listen_dsn) to an address past the pooler; polling until then"
            log_event(logger, logging.WARNING, "notifications_do_not_arrive", remedy=remedy)
        self._is_deaf = True
        await self.reach("listener.deaf")
        seconds = min(self._prove_again, PROVE_AGAIN_SECONDS)
        self._prove_again = 2 * seconds
        await self.pause(seconds)

    async def _listen(self, connection: psycopg.AsyncConnection[Any]) -> None:
        # Read where the event loop finds the socket readable. The driver's own loop would resume a task first, and each
        # turn of the event loop comes between a commit and its handler.
        loop, server, lost = asyncio.get_running_loop(), connection.pgconn, Waker()
        socket, encoding, problems = server.socket, connection.info.encoding, list[psycopg.Error]()

        def read() -> None:
            try:
                server.consume_input()
                while (notification := server.notifies()) is not None:
                    channel = notification.relname.decode(encoding, "replace")
                    self._hear(channel, notification.extra.decode(encoding, "replace"))
                if server.status != ConnStatus.OK:
                    # The driver has given the session up without an error.
                    raise psycopg.OperationalError("the connection for notifications is lost")
            except psycopg.Error as problem:
                loop.remove_reader(socket)
                problems.append(problem)
                lost.set()

        loop.add_reader(socket, read)
        try:
            while not self.stopping.is_set() and not problems:
                await wait_for_any(LONG, self.stopping, lost)
        finally:
            if not problems:
                # Otherwise the number may belong to another socket by now.
                loop.remove_reader(socket)
        if problems:
            raise problems[0]

    def _hear(self, channel: str, payload: str) -> None:
        self.heard[channel] = payload
        for event, payloads in self._events.get(channel, ()):
            if payloads is None or payload in payloads:
                event.set()
