"""`aftercommit bot`: run the Telegram bot of a feed, and look at what it remembers."""

import functools
import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
import msgspec

from aftercommit._version import __version__
from aftercommit.cli.durations import shown_duration
from aftercommit.cli.exits import NOT_AS_IT_SHOULD_BE, PARTIAL
from aftercommit.cli.loading import running_server
from aftercommit.cli.logs import logging_to_stderr
from aftercommit.cli.numbers import Count
from aftercommit.cli.options import Given, as_json, pass_settings
from aftercommit.cli.output import line, message, print_json, print_table
from aftercommit.cli.prompts import confirm
from aftercommit.cli.retention import Duration
from aftercommit.cli.running import run_until_stopped
from aftercommit.clock import utc_now
from aftercommit.errors import StateError
from aftercommit.settings import DATABASE_URL, Settings
from aftercommit.telemetry import log_event

if TYPE_CHECKING:
    from aftercommit.contrib.telegram import Link, Store

logger = logging.getLogger("aftercommit.bot")

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
LINK_COLUMNS = ("chat", "user", "name", "language", "place", "muted until", "passed", "unreachable")
FAILURE_COLUMNS = ("when", "chat", "user", "event", "type", "kind", "reason")
_LONGEST_CODE_LIFE = timedelta(days=7)
# A bot says every five seconds that it works.
_BEATS_WITHIN: Final = timedelta(seconds=14)

_state_option = click.option(
    "--state",
    metavar="WHERE",
    help="What the bot remembers: a file of SQLite or an address of PostgreSQL. AFTERCOMMIT_BOT_STATE in the "
    "environment; default: bot.sqlite in AFTERCOMMIT_HOME.",
)
_TOLD = (
    click.option("--token", metavar="TOKEN", help="AFTERCOMMIT_BOT_TOKEN. Others see options: prefer the variable."),
    click.option("--api", metavar="URL", help="AFTERCOMMIT_BOT_API, where it is not https://api.telegram.org."),
    click.option("--feed", metavar="URL", help="AFTERCOMMIT_BOT_FEED: the events, as in https://…/tasks/me/events."),
    click.option(
        "--credential",
        metavar="TOKEN",
        help="AFTERCOMMIT_BOT_CREDENTIAL: what the backend knows the bot by. Prefer the variable here, too.",
    ),
    click.option(
        "--redeem",
        metavar="URL",
        help="AFTERCOMMIT_BOT_REDEEM: where the backend takes one-time codes. Default: ../link-codes/redeem beside the "
        "feed; none: only those of `aftercommit bot code` count.",
    ),
    click.option(
        "--page",
        metavar="URL",
        help="AFTERCOMMIT_BOT_PAGE: what a title leads to, as in https://…/tasks/board/{task_id}. Default: nothing.",
    ),
    click.option(
        "--health-user",
        metavar="USER",
        help="AFTERCOMMIT_BOT_HEALTH_USER: for whom the backend is asked at the start while nobody is linked. "
        "Default: 1.",
    ),
    click.option(
        "--config",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="TOML with names, texts and templates, for other feeds.",
    ),
)


def _chat_number(ctx: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    if value is None:
        return None
    if re.fullmatch(r"-?[0-9]{1,18}", value) is None:
        raise click.BadParameter(f"{value!r:.60} is no chat: write its number, as `aftercommit bot links` shows it")
    return int(value)


def _told_options(command: Decorated) -> Decorated:
    return functools.reduce(lambda decorated, option: option(decorated), reversed(_TOLD), command)


@click.group(invoke_without_command=True, short_help="Run the Telegram bot of a feed.")
@_told_options
@_state_option
@pass_settings
def bot(settings: Settings, config: Path | None, **options: Any) -> None:
    """Tell linked Telegram chats of their users' events, until stopped.

    Asks the backend once; without an answer the bot stays, answers, and polls after /connect. SIGTERM or Ctrl-C lets
    messages that are on their way get there.
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


@bot.command(short_help="Whether the feed answers, and what was set aside.")
@_state_option
@as_json
@pass_settings
def status(settings: Settings, state: str | None, as_json: bool) -> None:
    """Show how it stands. Ends with 3 when the feed does not answer a running bot, errs or refuses it (`trouble` says
    which of these, and what to do), when something was set aside, or when a chat cannot be reached.
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
        shown = found if running else {**found, "trouble": "not known while no bot runs"}
        for name, value in shown.items():
            line(f"{name.replace('_', ' '):<12} {_word(value)}")
    if found["trouble"] or found["unreachable"] or found["set_aside"]:
        raise click.exceptions.Exit(NOT_AS_IT_SHOULD_BE)


@bot.command(short_help="Which chats are linked to whom.")
@_state_option
@as_json
@pass_settings
def links(settings: Settings, state: str | None, as_json: bool) -> None:
    """Show every link with its place."""
    with _store(state) as store:
        found = store.links()
    if as_json:
        print_json([_plain(link) for link in found])
        return
    if not found:
        message("no chat is linked: `aftercommit bot code --user USER` makes a code that links one")
        return
    print_table(LINK_COLUMNS, [_row(link) for link in found])


@bot.command(short_help="What was set aside, and why.")
@click.option("--user", metavar="USER", help="Of this user alone.")
@click.option("--chat", callback=_chat_number, metavar="NUMBER", help="Of this chat alone; groups are below 0.")
@click.option(
    "--limit", type=Count(1, 100_000), default=100, show_default=True, metavar="COUNT", help="At most so many."
)
@click.option("--forget", is_flag=True, help="Show all, and take them off the record: you have seen them.")
@_state_option
@as_json
@pass_settings
def failures(
    settings: Settings, user: str | None, chat: int | None, limit: int, forget: bool, state: str | None, as_json: bool
) -> None:
    """Show events that were set aside for good, and gaps, the newest first."""
    if forget and (user is not None or chat is not None):
        raise click.UsageError("--forget is for all that was set aside: leave --user and --chat out")
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
        message("nothing was set aside" if user is None and chat is None else "nothing was set aside for these")
        return
    rows = [
        (_day(each.at), str(each.chat_id), each.user_id, each.event_id, each.event_type, each.kind, each.reason)
        for each in found
    ]
    print_table(FAILURE_COLUMNS, rows)
    if total > len(found):
        message(f"{total - len(found)} more are not shown: --limit {total} shows all")


@bot.command(short_help="Make a one-time code for a user.")
@click.option("--user", required=True, metavar="USER", help="Whom the chat will be linked to.")
@click.option("--name", metavar="NAME", help="How the bot calls them. Default: the user.")
@click.option(
    "--for",
    "lifetime",
    type=Duration(),
    default="10m",
    show_default=True,
    metavar="TIME",
    help="How long it counts; 7d at most.",
)
@_state_option
@as_json
@pass_settings
def code(settings: Settings, user: str, name: str | None, lifetime: timedelta | str, **options: Any) -> None:
    """Make a code and print it; sent to the bot as `/start CODE` it links that chat. A new one ends the one before."""
    from aftercommit.contrib.telegram import issue_code
    from aftercommit.contrib.telegram.linking import can_be_user

    if not isinstance(lifetime, timedelta) or not timedelta(0) < lifetime <= _LONGEST_CODE_LIFE:
        said = lifetime if isinstance(lifetime, str) else shown_duration(lifetime)
        raise click.UsageError(f"--for {said}: a code ends; give 10m, and 7d at most")
    if not can_be_user(user):
        raise click.UsageError(f"--user {user!r:.60}: give the user as the feed knows them, as in 17")
    with _store(options["state"], changes=True, make=True) as store:
        made = issue_code(store, user, name or user, lifetime)
    until = _day(utc_now() + lifetime)
    if options["as_json"]:
        print_json({"code": made, "user_id": user, "expires_at": until, "start": f"/start {made}"})
        return
    line(made)
    message(f"for user {user}, until {until}: send the bot /start {made}. This is the only time that it is shown")


@bot.command(short_help="Forget a link.")
@click.option("--user", metavar="USER", help="All chats of this user.")
@click.option("--chat", callback=_chat_number, metavar="NUMBER", help="This chat; groups are below 0.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@_state_option
@pass_settings
def unlink(settings: Settings, user: str | None, chat: int | None, yes: bool, state: str | None) -> None:
    """End links; a running bot notices with its next turn. What was set aside stays on record."""
    if user is None and chat is None:
        raise click.UsageError("nothing to unlink: say --user or --chat")
    with _store(state, changes=True) as store:
        chosen = [link for link in store.links() if user in (None, link.user_id) and chat in (None, link.chat_id)]
        if chosen and not yes:
            confirm(f"unlink {', '.join(f'chat {link.chat_id} of user {link.user_id}' for link in chosen)}?")
        for link in chosen:
            store.unlink(link.chat_id)
            message(f"chat {link.chat_id} is no longer linked to user {link.user_id}")
    if not chosen:
        message("no chat is linked like this: `aftercommit bot links` shows those that are")
        raise click.exceptions.Exit(PARTIAL)


def _hanging(beat: datetime | None, now: datetime) -> str | None:
    """What to say of a bot that is there and does nothing: its process is stopped, or hangs."""
    if beat is None or now - beat <= _BEATS_WITHIN:
        return None
    ago = shown_duration(timedelta(seconds=int((now - beat).total_seconds())))
    return f"the bot's process has done nothing for {ago}: it is stopped or hangs. Continue it, or restart it"


@contextmanager
def _store(state: str | None, *, changes: bool = False, make: bool = False) -> "Iterator[Store]":
    """The state, beside a bot that may work on it. Commands that only read do not upgrade its tables."""
    from aftercommit.contrib.telegram.settings import STATE
    from aftercommit.contrib.telegram.states import exists, open_store, safe_place

    _say_unused()
    given = click.get_current_context().meta.get("state")
    where = state or given or os.environ.get(STATE) or _found_state()
    if not make and not exists(where):
        raise StateError(f"there is no state of a bot in {safe_place(where)}: run `aftercommit bot`, or say --state")
    if make and not exists(where):
        message(f"a new state is made in {safe_place(where)}: the bot has to run with the same --state")
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
    """Where it is when nobody has said: in the file, or else in the database where `aftercommit up` runs a bot."""
    from aftercommit.contrib.telegram.settings import default_state
    from aftercommit.contrib.telegram.states import exists, has_state, safe_place

    file = default_state()
    database = None if exists(file) else os.environ.get(DATABASE_URL) or running_server()
    if database is None or not has_state(database):
        return file
    message(f"the bot's state is found in {safe_place(database)}: --state chooses another")
    return database


def _say_unused() -> None:
    """Of the options that every command takes, these are for outboxes. Who gives one takes it for --state."""
    told = click.get_current_context().ensure_object(Given).options
    for name in ("dsn", "app", "schema"):
        if name in told:
            message(f"--{name} is not used: what the bot remembers is found by --state")


def _say_stopping() -> None:
    remedy = "messages that are on their way get there; a second signal ends the process at once"
    log_event(logger, logging.INFO, "bot_stopping", remedy=remedy)


def _row(link: "Link") -> tuple[object, ...]:
    muted = _day(link.muted_until) if link.is_muted(utc_now()) else None
    who = (str(link.chat_id), link.user_id, link.name, link.language, link.place)
    return (*who, muted, link.passed, link.unreachable)


def _plain(link: "Link") -> dict[str, Any]:
    told: dict[str, Any] = msgspec.to_builtins(link)
    del told["code_hash"]
    return told


def _word(value: object) -> str:
    if value is None:
        return "none"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _day(moment: datetime | None) -> str | None:
    return moment.isoformat(sep=" ", timespec="seconds").replace("+00:00", "Z") if moment else None
