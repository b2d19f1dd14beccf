"""`aftercommit token`: JWTs for development, service tokens, and the end of both. Secrets go to stdout, once."""

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
import psycopg

from aftercommit.cli.exits import PARTIAL
from aftercommit.cli.loading import find_shape, load_database
from aftercommit.cli.options import as_json, global_options, pass_settings
from aftercommit.cli.output import line, message, print_json, print_table
from aftercommit.cli.prompts import confirm
from aftercommit.cli.retention import FOR_EVER, Duration
from aftercommit.cli.selecting import by_option, yes_option
from aftercommit.embedded import default_folder
from aftercommit.operate.overview import overview
from aftercommit.operate.repair.repair import this_user
from aftercommit.postgres.shape import Shape
from aftercommit.settings import Settings
from aftercommit.text import plural

if TYPE_CHECKING:
    from aftercommit.access.token_keys import TokenKeys

SERVICE_COLUMNS = ("id", "name", "state", "may", "created", "by", "expires", "last used")
REVOCATION_COLUMNS = ("revoked", "what", "when", "by", "reason", "until")


@click.group()
@global_options
def token() -> None:
    """Tokens that readers of feeds show: JWTs for people, service tokens for programs."""


_may_option = click.option(
    "--may",
    multiple=True,
    required=True,
    metavar="PERMISSION",
    help="What the bearer may, like 'investigation:*:read'; may be repeated.",
)


@token.command(short_help="Sign a JWT, for development.")
@click.option("--user", required=True, metavar="NAME", help="Whom the token speaks for.")
@click.option(
    "--may",
    multiple=True,
    metavar="PERMISSION",
    help="A permission, like 'investigation:*:read'; repeat it for more. Default: none.",
)
@click.option("--for", "lifetime", type=Duration(), default="1h", show_default=True, metavar="TIME", help="How long.")
@click.option(
    "--keys",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="A JWK set with a key that can sign. Default: AFTERCOMMIT_TOKEN_KEYS_FILE, AFTERCOMMIT_TOKEN_KEYS, or a key "
    "in AFTERCOMMIT_HOME, which is made when it is first needed.",
)
@click.option("--issuer", metavar="NAME", help="Who issues it, where the keys do not say.")
@click.option("--audience", metavar="NAME", help="For whom it is, where the keys do not say.")
@as_json
@pass_settings
def mint(settings: Settings, user: str, may: tuple[str, ...], lifetime: timedelta | str, **options: Any) -> None:
    """Sign a JWT and print it. Needs no database: whoever has the key can mint."""
    from aftercommit.access import tokens

    if not isinstance(lifetime, timedelta):
        raise click.UsageError(f"--for {lifetime}: a JWT ends; for one that does not, `aftercommit token create`")
    keys = _keys(options["keys"])
    minted = tokens.mint(keys, user, may, lifetime, issuer=options["issuer"], audience=options["audience"])
    until = (datetime.now(UTC) + lifetime).isoformat(timespec="seconds").replace("+00:00", "Z")
    if options["as_json"]:
        print_json({"token": minted, "user": user, "permissions": list(may), "expires_at": until})
        return
    line(minted)
    message(f"for {user!r}, until {until}: send it as `Authorization: Bearer …`")
    if not may:
        message("it has no permissions (--may): enough for routes that ask for none, like the tasks; others answer 403")


@token.command(short_help="Make a service token.")
@click.argument("name")
@_may_option
@click.option(
    "--for",
    "lifetime",
    type=Duration(),
    default=FOR_EVER,
    show_default=True,
    metavar="TIME",
    help="How long it counts.",
)
@by_option
@as_json
@pass_settings
def create(settings: Settings, name: str, may: tuple[str, ...], lifetime: timedelta | str, **options: Any) -> None:
    """Make a token for the program NAME and print it. Only its hash is stored: it is never shown again."""
    from aftercommit.access import service_tokens

    with load_database(settings, "token").connect_sync() as connection:
        shape = _shape(settings, connection)
        ends = lifetime if isinstance(lifetime, timedelta) else None
        closes = service_tokens.ACT_AS_USER in may and not _is_closed(connection, shape)
        made = service_tokens.create(connection, shape, name, may, lifetime=ends, by=options["by"] or this_user())
    if options["as_json"]:
        print_json(msgspec.to_builtins(made) | {"name": name, "permissions": list(may)})
    else:
        line(made.token)
        message(f"service token {made.id} for {name!r}. This is the only time that it is shown: keep it now")
    if closes:
        message(
            "from now on, development servers do not believe `X-User-Id` alone either: a program that names users "
            "needs this token (the bot: AFTERCOMMIT_BOT_CREDENTIAL)"
        )


def _is_closed(connection: psycopg.Connection[Any], shape: Shape) -> bool:
    """Whether a token of before has ended that users are believed by their header alone."""
    from aftercommit.access import service_tokens

    known = service_tokens.list_all(connection, shape)
    return any(service_tokens.ACT_AS_USER in each.permissions and each.state != "revoked" for each in known)


@token.command("list")
@as_json
@pass_settings
def list_tokens(settings: Settings, as_json: bool) -> None:
    """Show service tokens and revocations; secrets are not known here."""
    from aftercommit.access import revocation, service_tokens

    with load_database(settings, "token").connect_sync() as connection:
        shape = _shape(settings, connection)
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


@token.command(short_help="End tokens before their time.")
@click.argument("tokens", nargs=-1, metavar="[TOKEN]...")
@click.option("--user", "users", multiple=True, metavar="NAME", help="All JWTs that this user has until now.")
@click.option("--reason", default="", metavar="TEXT", help="Why, for the record.")
@by_option
@yes_option
@pass_settings
def revoke(
    settings: Settings, tokens: tuple[str, ...], users: tuple[str, ...], reason: str, by: str | None, yes: bool
) -> None:
    """End service tokens (by id) and JWTs (by their id, jti). A whole token is understood too; - reads from stdin, and
    needs --yes.

    Servers hear of it at once, and open streams of the bearer end.
    """
    given = [word for each in tokens for word in (sys.stdin.read().split() if each == "-" else [each])]
    if not given and not users:
        raise click.UsageError("nothing to revoke: name a token, its id, or --user")
    if not yes:
        what = [plural(len(given), "token")] if given else []
        what += [f"every JWT that {user!r} has until now" for user in users]
        confirm(f"Revoke {' and '.join(what)}? This cannot be undone")
    with load_database(settings, "token").connect_sync() as connection:
        shape, who = _shape(settings, connection), by or this_user()
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
        message(f"there is no service token {service or 'of this form'}")
        return False
    token_id, until = tokens.named_by(text)
    revocation.revoke(connection, shape, "token", token_id, until=until, by=by, reason=reason)
    message(f"token {token_id} is revoked" + (" (there is no service token of this id)" if "." not in text else ""))
    return True


def _revoke_user(connection: psycopg.Connection[Any], shape: Shape, user: str, by: str, reason: str) -> None:
    from aftercommit.access import revocation

    moment = revocation.revoke(connection, shape, "user", user, by=by, reason=reason)
    message(f"tokens of {user!r} that were issued until {_day(moment)} are revoked")


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
        message(f"made a new development key in {(folder / DEVELOPMENT_FILE).absolute()}: servers here believe it")
    return keys


def _shape(settings: Settings, connection: psycopg.Connection[Any]) -> Shape:
    shape = find_shape(settings, connection)
    # Says what to do where there is no outbox, before anything is tried.
    overview(connection, shape)
    return shape


def _day(moment: datetime | None) -> str | None:
    return moment.astimezone(UTC).isoformat(sep=" ", timespec="seconds").replace("+00:00", "Z") if moment else None
