"""The listener reads its socket itself: it must notice a lost session, and disturb no other socket."""

import asyncio
import os
import socket
from typing import Any

import psycopg
import pytest

from aftercommit import Database, Outbox
from aftercommit.postgres.listen import Listener
from aftercommit.testing.signals import Signals
from tests.support.consuming import terminate
from tests.support.shop import Shop


async def test_a_socket_that_gets_the_number_of_the_lost_one_is_left_alone(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends the session, and a program that accepts connections gets the number of its socket."""
    loop, signals = asyncio.get_running_loop(), Signals()
    sessions: list[tuple[int, int]] = []
    listening = Listener._listen

    async def listen(this: Listener, connection: Any) -> None:
        sessions.append((connection.pgconn.socket, connection.info.backend_pid))
        await listening(this, connection)

    async def accept(number: int) -> tuple[asyncio.Transport, socket.socket]:
        """A connection whose socket gets this number as soon as it is free, and its other end."""
        while True:
            await asyncio.sleep(0)
            try:
                os.fstat(number)
            except OSError:
                mine, other = sorted(socket.socketpair(), key=lambda each: each.fileno() != number)
                assert mine.fileno() == number
                transport, _ = await loop.create_connection(asyncio.Protocol, sock=mine)
                return transport, other

    monkeypatch.setattr(Listener, "_listen", listen)
    listener = Listener(shop.database, signals)
    listener.subscribe("channel")
    async with listener:
        await signals.wait("listener.working")
        ((number, pid),) = sessions
        accepting = asyncio.create_task(accept(number))
        await asyncio.to_thread(terminate, shop, pid)
        transport, other = await accepting
        await signals.wait("listener.working", 2)
        transport.close()
        other.close()


async def test_a_session_that_the_driver_has_given_up_is_replaced(shop: Shop) -> None:
    """Bytes that are no message: the driver closes the socket, without an error."""
    parts = psycopg.conninfo.conninfo_to_dict(shop.dsn)
    clients: list[asyncio.StreamWriter] = []

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        clients.append(writer)
        there, to = await _to_server(parts)
        await asyncio.gather(pump(reader, to), pump(there, writer), return_exceptions=True)

    signals = Signals()
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as proxy:
        port = proxy.sockets[0].getsockname()[1]
        direct = {"host": "127.0.0.1", "port": port, "sslmode": "disable", "gssencmode": "disable"}
        through = psycopg.conninfo.make_conninfo(shop.dsn, **direct)
        listener = Listener(Database(shop.dsn, listen_dsn=through), signals)
        listener.subscribe("channel")
        async with listener:
            await signals.wait("listener.working")
            clients[-1].write(b"Q\x00\x10\x00\x00")
            await signals.wait("listener.working", 2)
        for client in clients:
            client.close()
            await client.wait_closed()


@pytest.mark.parametrize("encoding", ["utf8", "latin1"])
async def test_channels_are_read_in_the_encoding_of_the_session(shop: Shop, encoding: str) -> None:
    signals, channel = Signals(), Outbox("büro").shape.publish_channel
    listener = Listener(Database(psycopg.conninfo.make_conninfo(shop.dsn, client_encoding=encoding)), signals)
    heard = listener.subscribe(channel, {"1"})
    async with listener:
        await signals.wait("listener.working")
        heard.clear()
        with shop.connect() as connection:
            connection.execute("select pg_notify(%s, 'ü'), pg_notify(%s, '1')", (channel, channel))
        await heard.wait()


async def _to_server(parts: dict[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """The server itself, on its socket or its port."""
    if str(parts["host"]).startswith("/"):
        return await asyncio.open_unix_connection(f"{parts['host']}/.s.PGSQL.{parts['port']}")
    return await asyncio.open_connection(parts["host"], int(parts["port"]))
