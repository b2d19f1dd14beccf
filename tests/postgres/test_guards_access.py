"""Service tokens and revocations against PostgreSQL: who gets in, how soon an end is heard, and what is stored."""

import asyncio
import hashlib
import json
import secrets
import time
from datetime import timedelta
from typing import Any

import jwt
import psycopg
import pytest

from aftercommit.access import revocation, service_tokens
from aftercommit.access.bearer import BearerAccess
from aftercommit.access.permissions import Permissions
from aftercommit.access.reader import Reader
from aftercommit.access.service_tokens import Created
from aftercommit.access.token_keys import TokenKeys
from aftercommit.access.tokens import TokenVerifier, mint, named_by
from aftercommit.errors import DatabaseUnavailable, DeclarationError, Unauthorized
from aftercommit.postgres.database import Database
from aftercommit.postgres.listen import Listener
from aftercommit.testing.fault_proxy import FaultProxy
from aftercommit.testing.signals import Signals
from tests.support.shop import Shop

READ = "investigation:*:read"
SECRET = {"kty": "oct", "kid": "one", "alg": "HS256", "k": "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY"}
KEYS = TokenKeys.from_text(json.dumps({"issuer": "us", "audience": "feeds", "keys": [SECRET]}))


class Guarded:
    """A server's access beside the database of a shop, and the operator's side of it."""

    def __init__(self, shop: Shop, **options: Any) -> None:
        self.shop = shop
        self.signals = Signals()
        self.access = BearerAccess(TokenVerifier(KEYS), shop.database, shop.outbox, probe=self.signals, **options)

    async def __aenter__(self) -> "Guarded":
        await self.access.start()
        await self.signals.wait("access.read")
        return self

    async def __aexit__(self, *problem: object) -> None:
        await self.access.stop()

    def create(self, *may: str, **options: Any) -> Created:
        with self.shop.connect(autocommit=True) as connection:
            return service_tokens.create(connection, self.shop.outbox.shape, "bot", may or (READ,), **options)

    def revoke(self, kind: revocation.Kind, value: str, **options: Any) -> None:
        with self.shop.connect(autocommit=True) as connection:
            revocation.revoke(connection, self.shop.outbox.shape, kind, value, **options)

    async def look(self) -> None:
        """The server looks now, as it does by itself after a while."""
        self.access._changed.set()
        await self.signals.next("access.read")

    async def reader(self, token: str, **headers: str) -> Reader:
        found = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.access.reader(f"Bearer {token}", found)

    async def refused(self, token: str, **headers: str) -> str:
        with pytest.raises(Unauthorized, match=r"^Missing or invalid authentication token$") as refusal:
            await self.reader(token, **headers)
        return refusal.value.reason


def minted(user: str = "ann") -> str:
    return mint(KEYS, user, [READ], timedelta(hours=1))


class TestServiceTokens:
    async def test_a_service_token_is_a_reader_with_its_permissions(self, shop: Shop) -> None:
        async with Guarded(shop) as server:
            made = server.create(READ)
            await server.look()

            reader = await server.reader(made.token)

            assert (reader.user, reader.service, reader.expires_at) == (f"service:{made.id}", made.id, None)
            assert reader.may("investigation:INV-1:read")
            assert not reader.may("investigation:INV-1:write")
            assert server.access.still_valid(reader)

    async def test_only_a_hash_of_the_secret_is_stored(self, shop: Shop) -> None:
        made = Guarded(shop).create()
        secret = made.token.rpartition("_")[2]
        (row,) = shop.rows("select secret_hash, service_token::text from service_token")

        assert bytes(row[0]) == hashlib.sha256(secret.encode()).digest()
        assert secret not in row[1]

    async def test_a_wrong_secret_id_or_form_is_refused(self, shop: Shop) -> None:
        async with Guarded(shop) as server:
            made = server.create()
            await server.look()
            token_id, secret = made.id, made.token.rpartition("_")[2]
            wrong = "x" + secret[1:] if secret[0] != "x" else "y" + secret[1:]

            for token in (
                f"act_{token_id}_{wrong}",
                f"act_{'x' * 12}_{secret}",
                f"act_{token_id}_",
                f"act_{token_id}",
                f"act_{token_id}_{secret}x",
                f"act_{token_id}_{secret}\n",
                "act_" + "x" * 100_000,
                "act_' or 1=1 --_" + secret,
                "act_\x00",
            ):
                await server.refused(token)
            assert (await server.reader(made.token)).service == token_id

    async def test_strangers_cost_no_query(self, shop: Shop) -> None:
        async with Guarded(shop, poll_seconds=3600.0) as server:
            made = server.create()
            await server.look()
            looks = server.signals.counts["access.read"]
            before = statements_of(shop)
            for _ in range(200):
                await server.refused(f"act_{secrets.token_hex(6)}_{'x' * 43}")
                await server.reader(made.token)

            assert server.signals.counts["access.read"] == looks
            assert statements_of(shop) == before

    async def test_a_token_that_was_revoked_or_expires_ends(self, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
        async with Guarded(shop) as server:
            made, brief = server.create(), server.create(lifetime=timedelta(hours=1))
            await server.look()
            reader, other = await server.reader(made.token), await server.reader(brief.token)
            with shop.connect(autocommit=True) as connection:
                shape = shop.outbox.shape
                assert service_tokens.revoke(connection, shape, made.id) is True
                assert service_tokens.revoke(connection, shape, made.id) is False
                assert service_tokens.revoke(connection, shape, "nobody") is None
            await server.look()

            assert not server.access.still_valid(reader)
            await server.refused(made.token)
            assert server.access.still_valid(other)
            later = time.time() + 7200
            monkeypatch.setattr(time, "time", lambda: later)
            assert not server.access.still_valid(other)
            assert "has expired" in await server.refused(brief.token)

    async def test_use_is_written_down_to_the_minute(self, shop: Shop) -> None:
        async with Guarded(shop) as server:
            made, unused = server.create(), server.create()
            await server.look()
            await server.reader(made.token)
            await server.look()
            # As if it had been used just now, however long the test takes from here.
            ((first,),) = shop.rows(
                "update service_token set last_used_at = now() + interval '1 hour' where last_used_at is not null "
                "returning last_used_at"
            )
            await server.reader(made.token)
            await server.look()

        assert shop.rows("select id, last_used_at from service_token where last_used_at is not null") == [
            (made.id, first)
        ]
        with shop.connect() as connection:
            listed = service_tokens.list_all(connection, shop.outbox.shape)
        assert [(each.id, each.state) for each in listed] == [(unused.id, "valid"), (made.id, "valid")]

    @pytest.mark.contract("T7")
    async def test_a_user_header_is_believed_only_with_the_right_to_act_as_one(self, shop: Shop) -> None:
        async with Guarded(shop) as server:
            bot, other = server.create(READ, "act-as-user"), server.create(READ, "*", "*:*")
            await server.look()

            reader = await server.reader(bot.token, x_user_id="17")
            assert (reader.user, reader.service, reader.may("investigation:INV-1:read")) == ("17", bot.id, True)
            assert reader.rights != (await server.reader(bot.token, x_user_id="18")).rights
            assert (await server.reader(bot.token)).user == f"service:{bot.id}"
            assert "without the permission act-as-user" in await server.refused(other.token, x_user_id="17")
            for name in ("", "a\nb", "x" * 256, "\x00"):
                await server.refused(bot.token, x_user_id=name)
            assert (await server.reader(minted("ann"), x_user_id="17")).user == "ann"

    async def test_nobody_is_let_in_before_revocations_are_known(self, shop: Shop) -> None:
        server = Guarded(shop)
        # A token that she gets a second later is valid.
        ann = minted("ann")
        server.revoke("user", "ann")
        made = server.create()
        for token in (ann, made.token):
            with pytest.raises(DatabaseUnavailable, match="has not been read yet"):
                await server.reader(token)
        assert "InvalidSignature" in await server.refused(ann[:-5] + "AAAAA")
        # Right after the start it is waited for.
        await server.access.start()
        try:
            assert (await server.reader(made.token)).service == made.id
            assert await server.refused(ann) == "the token was revoked"
            assert (await server.reader(minted("bob"))).user == "bob"
        finally:
            await server.access.stop()

    async def test_a_server_that_never_reached_the_database_does_not_guess(
        self, shop: Shop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("aftercommit.access.bearer.BEGIN_SECONDS", 0.05)
        async with FaultProxy(shop.dsn) as proxy:
            proxy.faults.black_hole = True
            access = BearerAccess(TokenVerifier(KEYS), Database(proxy.dsn), shop.outbox)
            await access.start()
            with pytest.raises(DatabaseUnavailable, match="has not been read yet"):
                await access.reader(f"Bearer {minted()}", {})
            proxy.heal()
            await access.stop()

    async def test_without_the_database_a_service_token_is_believed_for_a_while_and_a_jwt_goes_on(
        self, shop: Shop
    ) -> None:
        async with FaultProxy(shop.dsn) as proxy:
            server = Guarded(shop)
            made = server.create()
            access = BearerAccess(
                TokenVerifier(KEYS),
                Database(proxy.dsn),
                shop.outbox,
                poll_seconds=0.01,
                trust_seconds=30.0,
                probe=server.signals,
            )
            with pytest.raises(DatabaseUnavailable, match="cannot check"):
                await access.reader(f"Bearer {made.token}", {})
            async with access:
                await server.signals.wait("access.read")
                proxy.faults.black_hole = True
                proxy.reset()
                await server.signals.wait("database.lost")
                assert (await access.reader(f"Bearer {made.token}", {})).service == made.id
                access._trust = 0.0
                with pytest.raises(DatabaseUnavailable, match="cannot check"):
                    await access.reader(f"Bearer {made.token}", {})
                assert (await access.reader(f"Bearer {minted()}", {})).user == "ann"
                proxy.heal()

    @pytest.mark.parametrize(
        ("name", "may", "options"),
        [
            ("", [READ], {}),
            ("x" * 201, [READ], {}),
            ("bot", ["a:b*"], {}),
            ("bot", [READ], {"lifetime": timedelta()}),
            ("bot", [READ], {"lifetime": timedelta(days=40_000)}),
        ],
    )
    def test_what_cannot_be_made_is_refused_and_nothing_is_stored(
        self, shop: Shop, name: str, may: list[str], options: dict[str, Any]
    ) -> None:
        with shop.connect() as connection, pytest.raises(DeclarationError):
            service_tokens.create(connection, shop.outbox.shape, name, may, **options)
        assert shop.value("select count(*) from service_token") == 0


def statements_of(shop: Shop) -> Any:
    """What the server's own session has last asked, and when."""
    return shop.rows(
        "select pid, query_start from pg_stat_activity "
        "where datname = current_database() and application_name = 'aftercommit' order by pid"
    )


class TestRevocation:
    async def test_a_revoked_token_is_refused_and_ends_its_reader(self, shop: Shop) -> None:
        async with Guarded(shop) as server:
            one, other = minted(), minted()
            reader, unhurt = await server.reader(one), await server.reader(other)
            token_id, until = named_by(one)
            server.revoke("token", token_id, until=until, by="me", reason="lost")
            await server.look()

            assert not server.access.still_valid(reader)
            assert await server.refused(one) == "the token was revoked"
            assert server.access.still_valid(unhurt)
            with shop.connect() as connection:
                (listed,) = revocation.list_all(connection, shop.outbox.shape)
            assert (listed.value, listed.revoked_by, listed.reason) == (token_id, "me", "lost")

    async def test_all_tokens_of_a_user_are_revoked_and_later_ones_are_not(self, shop: Shop) -> None:
        async with Guarded(shop) as server:
            old, bob = minted("ann"), minted("bob")
            nameless = jwt.encode(
                {"iss": "us", "aud": "feeds", "sub": "ann", "exp": time.time() + 60},
                b"0123456789abcdef0123456789abcdef",
                headers={"kid": "one"},
            )
            server.revoke("user", "ann")
            await server.look()

            await server.refused(old)
            # Nobody can tell when it was issued.
            await server.refused(nameless)
            assert (await server.reader(bob)).user == "bob"
            reader = Reader("ann", Permissions(), "t", None, "", issued_at=time.time() + 2)
            assert server.access.still_valid(reader)

    async def test_a_revocation_is_heard_by_notification_long_before_the_next_look(self, shop: Shop) -> None:
        listener = Listener(shop.database, shop.signals)
        server = Guarded(shop, poll_seconds=3600.0, listener=listener)
        async with listener, server:
            await shop.signals.wait("listener.working")
            made, token = server.create(), minted()
            reader = await server.reader(token)
            await until(lambda: made.id in server.access.service_tokens._known)
            server.revoke("token", named_by(token)[0])
            with shop.connect(autocommit=True) as connection:
                service_tokens.revoke(connection, shop.outbox.shape, made.id)
            await until(lambda: not server.access.still_valid(reader))
            await until(lambda: made.id not in server.access.service_tokens._known)

    async def test_without_notifications_a_revocation_is_found_by_looking(self, shop: Shop) -> None:
        async with Guarded(shop, poll_seconds=0.05) as server:
            reader = await server.reader(minted())
            server.revoke("user", "ann")

            await until(lambda: not server.access.still_valid(reader))

    async def test_a_revocation_that_commits_late_is_not_missed(self, shop: Shop) -> None:
        """It gets its transaction number first, and others commit and are read before it."""
        async with Guarded(shop) as server:
            late, early = minted(), minted()
            shape = shop.outbox.shape
            with shop.connect() as slow:
                revocation.revoke(slow, shape, "token", named_by(late)[0])
                made = service_tokens.create(slow, shape, "late", [READ])
                server.revoke("token", named_by(early)[0])
                server.create()
                for _ in range(3):
                    await server.look()
                await server.refused(early)
                assert (await server.reader(late)).user == "ann"
                slow.commit()
            await server.look()

            await server.refused(late)
            assert (await server.reader(made.token)).service == made.id

    async def test_a_revocation_that_was_rolled_back_never_was(self, shop: Shop) -> None:
        async with Guarded(shop) as server:
            token = minted()
            with shop.connect() as connection:
                revocation.revoke(connection, shop.outbox.shape, "token", named_by(token)[0])
                connection.rollback()
            await server.look()

            assert (await server.reader(token)).user == "ann"

    async def test_revocations_survive_a_restart_of_the_server_and_of_the_database(self, shop: Shop) -> None:
        token = minted()
        Guarded(shop).revoke("token", named_by(token)[0])
        async with Guarded(shop) as server:
            await server.refused(token)
            shop.rows(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where datname = current_database() and application_name = 'aftercommit'"
            )
            server.access._changed.set()
            await server.signals.wait("database.lost")
            await server.refused(token)
            await server.signals.next("access.read")
            await server.refused(token)

    async def test_what_has_expired_by_itself_is_forgotten(self, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(revocation, "FORGET_SECONDS", -1.0)
        server = Guarded(shop)
        server.revoke("token", "past", until=time.time() - 10)
        server.revoke("token", "future", until=time.time() + 1000)
        server.revoke("user", "ann")
        async with server:
            assert set(server.access.revocations._tokens) == {"future"}

        assert shop.rows("select value from revoked_token order by value") == [("ann",), ("future",)]

    async def test_revoking_again_holds_at_least_as_long_as_before(self, shop: Shop) -> None:
        server = Guarded(shop)
        server.revoke("token", "t", until=None)
        server.revoke("token", "t", until=time.time() + 10)

        assert shop.value("select until = 'infinity' from revoked_token") is True

    @pytest.mark.parametrize("value", ["", "x" * 256, "a\nb"])
    def test_what_cannot_be_revoked_is_refused(self, shop: Shop, value: str) -> None:
        with pytest.raises(DeclarationError, match=r"token .* is not valid"):
            Guarded(shop).revoke("token", value)

    def test_a_kind_that_is_not_known_is_refused_by_the_table(self, shop: Shop) -> None:
        with pytest.raises(psycopg.errors.CheckViolation):
            Guarded(shop).revoke("planet", "x")  # type: ignore[arg-type]


async def until(condition: Any) -> None:
    """Until something holds that no point of the service tells."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - no point of the service tells
            await asyncio.sleep(0.01)
