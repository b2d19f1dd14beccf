"""`aftercommit token`: JWTs for development, service tokens, and revocation. Prints a new secret once, to stdout."""

import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
import psycopg

from aftercommit.cli.exits import PARTIAL
from aftercommit.cli.loading import find_outbox, load_database
from aftercommit.cli.options import Command, as_json, global_options, pass_settings
from aftercommit.cli.output import day_and_time, line, message, print_json, print_table
from aftercommit.cli.prompts import confirm
from aftercommit.cli.retention import FOR_EVER, Duration
from aftercommit.cli.selecting import by_option, reason_option, yes_option
from aftercommit.clock import utc_now
from aftercommit.embedded import default_folder
from aftercommit.operate.repair.repair import this_user
from aftercommit.postgres.shape import Shape
from aftercommit.settings import Settings
from aftercommit.text import plural, utc_second

if TYPE_CHECKING:
    from aftercommit.access.token_keys import TokenKeys

SERVICE_COLUMNS = ("id", "name", "state", "may", "created", "by", "expires", "last used")
REVOCATION_COLUMNS = ("revoked", "what", "when", "by", "reason", "until")
_VALID = "How long it is valid."


@click.group(short_help="Create, list and revoke tokens.")
@global_options
def token() -> None:
    """Create and revoke the tokens that clients of feeds send: JWTs for people, service tokens for programs."""


def _may_option(*, required: bool) -> Callable[[Command], Command]:
    help_text = "A permission, like 'investigation:*:read'. Repeat it for more."
    return click.option("--may", multiple=True, required=required, metavar="PERMISSION", help=help_text)


@token.command(short_help="Sign a JWT, for development.")
@click.option("--user", required=True, metavar="NAME", help="The user whom the token identifies.")
@_may_option(required=False)
@click.option("--for", "lifetime", type=Duration(), default="1h", show_default=True, metavar="TIME", help=_VALID)
@click.option(
    "--keys",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="A JWK set with a signing key. Default: AFTERCOMMIT_TOKEN_KEYS_FILE, AFTERCOMMIT_TOKEN_KEYS, or a key in "
    "AFTERCOMMIT_HOME, which is created when it is first needed.",
)
@click.option("--issuer", metavar="NAME", help="The claim `iss`, if the keys do not define it.")
@click.option("--audience", metavar="NAME", help="The claim `aud`, if the keys do not define it.")
@as_json
@pass_settings
def mint(settings: Settings, user: str, may: tuple[str, ...], lifetime: timedelta | str, **options: Any) -> None:
    """Sign a JWT and print it. Needs no database, only the signing key."""
    from aftercommit.access import tokens

    if not isinstance(lifetime, timedelta):
        raise click.UsageError(
            f"--for {lifetime}: a JWT must expire. For a token that does not, use `aftercommit token create`"
        )
    keys = _keys(options["keys"])
    minted = tokens.mint(keys, user, may, lifetime, issuer=options["issuer"], audience=options["audience"])
    until = utc_second(utc_now() + lifetime)
    if options["as_json"]:
        print_json({"token": minted, "user": user, "permissions": list(may), "expires_at": until})
        return
    line(minted)
    message(f"valid for user {user!r} until {until}: send it as `Authorization: Bearer …`")
    if not may:
        message("it has no permissions (--may): routes that require one answer with 403")


@token.command(short_help="Create a service token.")
@click.argument("name")
@_may_option(required=True)
@click.option("--for", "lifetime", type=Duration(), default=FOR_EVER, show_default=True, metavar="TIME", help=_VALID)
@by_option
@as_json
@pass_settings
def create(settings: Settings, name: str, may: tuple[str, ...], lifetime: timedelta | str, **options: Any) -> None:
    """Create a token for the program NAME and print it. Only its hash is stored, so it cannot be shown again."""
    from aftercommit.access import service_tokens

    with load_database(settings, "token").connect_sync() as connection:
        shape = find_outbox(settings, connection)
        ends = lifetime if isinstance(lifetime, timedelta) else None
        closes = service_tokens.ACT_AS_USER in may and not _is_closed(connection, shape)
        made = service_tokens.create(connection, shape, name, may, lifetime=ends, by=options["by"] or this_user())
    if options["as_json"]:
        print_json(msgspec.to_builtins(made) | {"name": name, "permissions": list(may)})
    else:
        line(made.token)
        message(f"service token {made.id} for {name!r}. Store it now: it cannot be shown again")
    if closes:
        message(
            "from now on, development servers too require this token with `X-User-Id`. Give it to the programs that "
            "send this header (for the bot: AFTERCOMMIT_BOT_CREDENTIAL)"
        )


def _is_closed(connection: psycopg.Connection[Any], shape: Shape) -> bool:
    """Whether development servers already require a service token with `X-User-Id`."""
    from aftercommit.access import service_tokens

    known = service_tokens.list_all(connection, shape)
    return any(service_tokens.ACT_AS_USER in each.permissions and each.state != "revoked" for each in known)


@token.command("list")
@as_json
@pass_settings
def list_tokens(settings: Settings, as_json: bool) -> None:
    """Show service tokens and revocations, without secrets."""
    from aftercommit.access import revocation, service_tokens

    with load_database(settings, "token").connect_sync() as connection:
        shape = find_outbox(settings, connection)
        tokens = service_tokens.list_all(connection, shape)
        revoked = revocation.list_all(connection, shape)
    if as_json:
        print_json(msgspec.to_builtins({"service_tokens": tokens, "revocations": revoked}))
        return
    rows = [
        (
            each.id,
            each.name,
            each.state,
            " ".join(each.permissions),
            _day(each.created_at),
            each.created_by,
            _day(each.expires_at),
            _day(each.last_used_at),
        )
        for each in tokens
    ]
    print_table(SERVICE_COLUMNS, rows)
    if revoked:
        line("")
        print_table(
            REVOCATION_COLUMNS,
            [
                (each.value, each.kind, _day(each.revoked_at), each.revoked_by, each.reason, _day(each.until))
                for each in revoked
            ],
        )


@token.command(short_help="Revoke tokens.")
@click.argument("tokens", nargs=-1, metavar="[TOKEN]...")
@click.option("--user", "users", multiple=True, metavar="NAME", help="All JWTs of this user that were issued so far.")
@reason_option
@by_option
@yes_option
@pass_settings
def revoke(
    settings: Settings, tokens: tuple[str, ...], users: tuple[str, ...], reason: str, by: str | None, yes: bool
) -> None:
    """Revoke service tokens (by id) and JWTs (by id, the claim jti). TOKEN can also be the whole token, or - to read
    tokens from stdin, which needs --yes.

    Servers apply it at once and close the open streams of these tokens.
    """
    given = [word for each in tokens for word in (sys.stdin.read().split() if each == "-" else [each])]
    if not given and not users:
        raise click.UsageError("nothing to revoke: give a token, its id, or --user")
    if not yes:
        what = [plural(len(given), "token")] if given else []
        what += [f"all JWTs of {user!r} that were issued so far" for user in users]
        confirm(f"Revoke {' and '.join(what)}? This cannot be undone")
    with load_database(settings, "token").connect_sync() as connection:
        shape, who = find_outbox(settings, connection), by or this_user()
        missing = [each for each in given if not _revoke_token(connection, shape, each, who, reason)]
        for user in users:
            _revoke_user(connection, shape, user, who, reason)
    if missing:
        raise click.exceptions.Exit(PARTIAL)


def _revoke_token(connection: psycopg.Connection[Any], shape: Shape, text: str, by: str, reason: str) -> bool:
    from aftercommit.access import revocation, service_tokens, tokens

    service = service_tokens.id_of(text)
    ended = service_tokens.revoke(connection, shape, service) if service is not None else None
    if ended is not None:
        message(f"service token {service} is revoked" if ended else f"service token {service} was revoked before")
        return True
    if text.startswith(service_tokens.PREFIX):
        message(f"there is no service token {service}" if service else "this is not a complete service token")
        return False
    token_id, until = tokens.named_by(text)
    revocation.revoke(connection, shape, "token", token_id, until=until, by=by, reason=reason)
    message(f"JWT {token_id} is revoked" + (" (there is no service token with this id)" if "." not in text else ""))
    return True


def _revoke_user(connection: psycopg.Connection[Any], shape: Shape, user: str, by: str, reason: str) -> None:
    from aftercommit.access import revocation

    moment = revocation.revoke(connection, shape, "user", user, by=by, reason=reason)
    message(f"all JWTs of {user!r} issued until {day_and_time(moment)} are revoked")


def _keys(path: Path | None) -> "TokenKeys":
    from aftercommit.access.token_keys import DEVELOPMENT_FILE, TokenKeys

    if path is not None:
        return TokenKeys.from_file(path)
    if (keys := TokenKeys.from_environment()) is not None:
        return keys
    folder = default_folder()
    is_new = not (folder / DEVELOPMENT_FILE).exists()
    keys = TokenKeys.for_development(folder)
    if is_new:
        path = (folder / DEVELOPMENT_FILE).absolute()
        message(f"created a new development key in {path}: development servers in this folder accept it")
    return keys


def _day(moment: datetime | None) -> str | None:
    return day_and_time(moment) if moment is not None else None
