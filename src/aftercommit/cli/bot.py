"""`aftercommit bot`: runs the Telegram bot of a feed, and shows and changes its state."""

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from aftercommit._version import __version__
from aftercommit.cli.durations import shown_duration
from aftercommit.cli.exits import NOT_AS_IT_SHOULD_BE, PARTIAL
from aftercommit.cli.loading import running_server
from aftercommit.cli.logs import logging_to_stderr
from aftercommit.cli.numbers import limit_option
from aftercommit.cli.options import Given, as_json, pass_settings, together
from aftercommit.cli.output import day_and_time, line, message, print_fields, print_json, print_table
from aftercommit.cli.prompts import confirm
from aftercommit.cli.retention import Duration
from aftercommit.cli.running import run_until_stopped
from aftercommit.cli.selecting import yes_option
from aftercommit.clock import utc_now
from aftercommit.errors import StateError
from aftercommit.settings import DATABASE_URL, Settings
from aftercommit.telemetry import log_event

if TYPE_CHECKING:
    from aftercommit.contrib.telegram import Link, Store

logger = logging.getLogger("aftercommit.bot")

LINK_COLUMNS = ("chat", "user", "name", "language", "place", "muted until", "passed", "unreachable")
FAILURE_COLUMNS = ("when", "chat", "user", "event", "type", "kind", "reason")
_LONGEST_CODE_LIFE = timedelta(days=7)
# A bot records a heartbeat every five seconds.
_BEATS_WITHIN: Final = timedelta(seconds=14)

_state_option = click.option(
    "--state",
    metavar="WHERE",
    help="The bot's state: a SQLite file or the address of a PostgreSQL database. Default: AFTERCOMMIT_BOT_STATE, or "
    "bot.sqlite in AFTERCOMMIT_HOME.",
)
_OPTIONS = {
    "--token TOKEN": "The bot's token. Default: AFTERCOMMIT_BOT_TOKEN. Prefer the variable: others can see options.",
    "--api URL": "The Bot API. Default: AFTERCOMMIT_BOT_API, or https://api.telegram.org.",
    "--feed URL": "The feed to follow, like https://…/tasks/me/events. Default: AFTERCOMMIT_BOT_FEED.",
    "--credential TOKEN": "The bot's service token for the backend. Default: AFTERCOMMIT_BOT_CREDENTIAL. Prefer the "
    "variable.",
    "--redeem URL": "Where the backend redeems one-time codes, or `none` to accept only those of `aftercommit bot "
    "code`. Default: AFTERCOMMIT_BOT_REDEEM, or ../link-codes/redeem beside the feed.",
    "--page URL": "The page that titles link to, like https://…/tasks/board/{task_id}. Default: "
    "AFTERCOMMIT_BOT_PAGE, or none.",
    "--health-user USER": "The user for the check of the backend at the start, if no chat is linked. Default: "
    "AFTERCOMMIT_BOT_HEALTH_USER, or 1.",
}
_config_option = click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="A TOML file with names, texts and templates, for other feeds.",
)
_bot_options = together(
    *(click.option(name.split()[0], metavar=name.split()[1], help=text) for name, text in _OPTIONS.items()),
    _config_option,
)


def _chat_number(ctx: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    if value is None:
        return None
    if re.fullmatch(r"-?[0-9]{1,18}", value) is None:
        raise click.BadParameter(f"{value!r:.60} is not a chat number: see `aftercommit bot links`")
    return int(value)


@click.group(invoke_without_command=True, short_help="Run the Telegram bot of a feed.")
@_bot_options
@_state_option
@pass_settings
def bot(settings: Settings, config: Path | None, **options: Any) -> None:
    """Send linked Telegram chats the events of their users, until stopped.

    Checks the backend once at the start. If it does not answer, the bot still answers commands, and follows the feed
    after /connect. SIGTERM or Ctrl-C finishes the messages in progress.
    """
    context = click.get_current_context()
    if context.invoked_subcommand is not None:
        context.meta["state"] = options["state"]
        return
    from aftercommit.contrib.telegram import Bot, bot_settings

    _say_unused()
    told = bot_settings(options, config)
    with logging_to_stderr(settings, logging.INFO):
        log_event(logger, logging.INFO, "bot_starting", version=__version__)
        run_until_stopped(lambda: Bot(told), _say_stopping)
        log_event(logger, logging.INFO, "bot_stopped")


@bot.command(short_help="Show whether the bot runs, and its problems.")
@_state_option
@as_json
@pass_settings
def status(settings: Settings, state: str | None, as_json: bool) -> None:
    """Show whether the bot runs, its links and its problems. Exits with 3 if `trouble` reports a problem of the running
    bot or its feed, if messages failed for good, or if a chat cannot be reached.
    """
    with _store(state) as store:
        links, now, running = store.links(), utc_now(), store.is_taken()
        found = {
            "running": running,
            "trouble": (_hanging(store.last_beat(), now) or store.trouble()) if running else None,
            "links": len(links),
            "muted": sum(link.is_muted(now) for link in links),
            "unreachable": sum(link.unreachable is not None for link in links),
            "set_aside": store.count_failures(),
        }
    if as_json:
        print_json(found)
    else:
        shown = found if running else {**found, "trouble": "unknown: the bot is not running"}
        print_fields({name.replace("_", " "): _word(value) for name, value in shown.items()})
    if found["trouble"] or found["unreachable"] or found["set_aside"]:
        raise click.exceptions.Exit(NOT_AS_IT_SHOULD_BE)


@bot.command(short_help="Show linked chats and their users.")
@_state_option
@as_json
@pass_settings
def links(settings: Settings, state: str | None, as_json: bool) -> None:
    """Show every linked chat with its user and its position in the feed."""
    with _store(state) as store:
        found = store.links()
    if as_json:
        shown = [msgspec.to_builtins(link) for link in found]
        print_json([{name: value for name, value in each.items() if name != "code_hash"} for each in shown])
        return
    if not found:
        message("no chat is linked: create a code with `aftercommit bot code --user USER`, and send it to the bot")
        return
    print_table(LINK_COLUMNS, [_row(link) for link in found])


@bot.command(short_help="Show messages that failed for good, and gaps.")
@click.option("--user", metavar="USER", help="Only of this user.")
@click.option("--chat", callback=_chat_number, metavar="NUMBER", help="Only of this chat; groups are below 0.")
@limit_option(100, 100_000)
@click.option("--forget", is_flag=True, help="Show all, and then delete them from the state.")
@_state_option
@as_json
@pass_settings
def failures(
    settings: Settings, user: str | None, chat: int | None, limit: int, forget: bool, state: str | None, as_json: bool
) -> None:
    """Show events whose messages failed for good, and gaps in the feed, newest first."""
    if forget and (user is not None or chat is not None):
        raise click.UsageError("--forget deletes all failures: leave out --user and --chat")
    with _store(state, changes=forget) as store:
        now = utc_now()
        total = store.count_failures(chat, user_id=user)
        found = store.failures(chat, user_id=user, limit=max(total, 1) if forget else limit)
        if forget:
            store.forget_failures(now)
    if as_json:
        print_json({"total": total, "failures": [msgspec.to_builtins(each) for each in found]})
        return
    if not found:
        message("no failures" if user is None and chat is None else "no failures of this user or chat")
        return
    rows = [
        (day_and_time(each.at), str(each.chat_id), each.user_id, each.event_id, each.event_type, each.kind, each.reason)
        for each in found
    ]
    print_table(FAILURE_COLUMNS, rows)
    if total > len(found):
        message(f"{total - len(found)} more are not shown: use --limit {total} to see all")


@bot.command(short_help="Create a one-time code for a user.")
@click.option("--user", required=True, metavar="USER", help="The user to link the chat to.")
@click.option("--name", metavar="NAME", help="The name by which the bot addresses the user. Default: USER.")
@click.option(
    "--for",
    "lifetime",
    type=Duration(),
    default="10m",
    show_default=True,
    metavar="TIME",
    help="How long it is valid; at most 7d.",
)
@_state_option
@as_json
@pass_settings
def code(settings: Settings, user: str, name: str | None, lifetime: timedelta | str, **options: Any) -> None:
    """Create a code and print it. A chat that sends `/start CODE` to the bot is linked to the user. A new code replaces
    the user's previous one.
    """
    from aftercommit.contrib.telegram import issue_code
    from aftercommit.contrib.telegram.linking import can_be_user

    if not isinstance(lifetime, timedelta) or not timedelta(0) < lifetime <= _LONGEST_CODE_LIFE:
        said = lifetime if isinstance(lifetime, str) else shown_duration(lifetime)
        raise click.UsageError(f"--for {said}: give more than 0s and at most 7d, like 10m")
    if not can_be_user(user):
        raise click.UsageError(f"--user {user!r:.60}: give the user's id in the feed, like 17")
    with _store(options["state"], changes=True, make=True) as store:
        made = issue_code(store, user, name or user, lifetime)
    until = day_and_time(utc_now() + lifetime)
    if options["as_json"]:
        print_json({"code": made, "user_id": user, "expires_at": until, "start": f"/start {made}"})
        return
    line(made)
    message(f"valid for user {user} until {until}: send the bot /start {made}. The code cannot be shown again")


@bot.command(short_help="Unlink chats.")
@click.option("--user", metavar="USER", help="All chats of this user.")
@click.option("--chat", callback=_chat_number, metavar="NUMBER", help="This chat; groups are below 0.")
@yes_option
@_state_option
@pass_settings
def unlink(settings: Settings, user: str | None, chat: int | None, yes: bool, state: str | None) -> None:
    """Unlink chats. A running bot notices it with its next poll. Failures stay on record."""
    if user is None and chat is None:
        raise click.UsageError("nothing to unlink: give --user or --chat")
    with _store(state, changes=True) as store:
        chosen = [link for link in store.links() if user in (None, link.user_id) and chat in (None, link.chat_id)]
        if chosen and not yes:
            confirm(f"Unlink {', '.join(f'chat {link.chat_id} of user {link.user_id}' for link in chosen)}?")
        for link in chosen:
            store.unlink(link.chat_id)
            message(f"chat {link.chat_id} is no longer linked to user {link.user_id}")
    if not chosen:
        message("no such link: see `aftercommit bot links`")
        raise click.exceptions.Exit(PARTIAL)


def _hanging(beat: datetime | None, now: datetime) -> str | None:
    """The problem of a bot whose process is suspended or hangs."""
    if beat is None or now - beat <= _BEATS_WITHIN:
        return None
    ago = shown_duration(timedelta(seconds=int((now - beat).total_seconds())))
    return f"the bot's process has done nothing for {ago}: it is suspended or hangs. Continue or restart it"


@contextmanager
def _store(state: str | None, *, changes: bool = False, make: bool = False) -> "Iterator[Store]":
    """Open the state, also while a bot uses it. Commands that only read do not upgrade its tables."""
    from aftercommit.contrib.telegram.settings import STATE
    from aftercommit.contrib.telegram.states import exists, open_store, safe_place

    _say_unused()
    given = click.get_current_context().meta.get("state")
    where = state or given or os.environ.get(STATE) or _found_state()
    if not make and not exists(where):
        raise StateError(f"there is no state of a bot in {safe_place(where)}: run `aftercommit bot`, or give --state")
    if make and not exists(where):
        message(f"creating a new state in {safe_place(where)}: start the bot with the same --state")
    store = open_store(where)
    try:
        if changes:
            store.prepare_beside_bot(make=make)
        else:
            store.check()
        yield store
    finally:
        store.close()


def _found_state() -> str:
    """The default state: the file, or else the database of a running `aftercommit up`, which may run a bot."""
    from aftercommit.contrib.telegram.settings import default_state
    from aftercommit.contrib.telegram.states import exists, has_state, safe_place

    file = default_state()
    database = None if exists(file) else os.environ.get(DATABASE_URL) or running_server()
    if database is None or not has_state(database):
        return file
    message(f"using the bot's state in {safe_place(database)}: choose another with --state")
    return database


def _say_unused() -> None:
    """Warn about global options that only apply to outboxes; the user may have confused them with --state."""
    told = click.get_current_context().ensure_object(Given).options
    for name in ("dsn", "app", "schema"):
        if name in told:
            message(f"--{name} is ignored: use --state to choose the bot's state")


def _say_stopping() -> None:
    remedy = "finishes the messages in progress; a second signal ends the process at once"
    log_event(logger, logging.INFO, "bot_stopping", remedy=remedy)


def _row(link: "Link") -> tuple[object, ...]:
    muted = day_and_time(link.muted_until) if link.muted_until and link.is_muted(utc_now()) else None
    who = (str(link.chat_id), link.user_id, link.name, link.language, link.place)
    return (*who, muted, link.passed, link.unreachable)


def _word(value: object) -> str:
    if value is None:
        return "none"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
