"""The bot's state in SQL: one set of statements for two drivers, SQLite and PostgreSQL."""

import re
import secrets
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from typing import Any, Final, Protocol, TypeVar

import msgspec

from aftercommit.clock import utc_now
from aftercommit.contrib.telegram.state import FEED, Code, Link, UndeliveredEvent
from aftercommit.errors import StateError, StateTaken

Result = TypeVar("Result")
Rows = list[tuple[Any, ...]]
Run = Callable[..., Rows]

OFFSET: Final = "update_offset"
BEAT: Final = "beat"
# Seconds to wait for the lock of a bot that was killed just now, and between two attempts.
PATIENCE: Final = 2.0
LOOK: Final = 0.05
_LINK: Final = Link.__struct_fields__
_SECTION: Final = re.compile(r"^-- (?:name|version): (\w+)$", re.MULTILINE)


class StateDriver(Protocol):
    """One database. The function given to `work` gets a `run` that executes a statement by name."""

    @property
    def where(self) -> str:
        """Description of the database, without a password."""

    def work(self, function: Callable[[Run], Result]) -> Result:
        """Run the function in one transaction; StateUnavailable if that is not possible now."""

    def one(self, statement: str, /, **parameters: Any) -> Rows:
        """Run one statement in its own transaction."""

    def version(self) -> int:
        """The version of the tables; 0 if there are none. Changes nothing."""

    def prepare(self, versions: Mapping[int, str]) -> None:
        """Apply the versions that are not applied yet, in order."""

    def lock(self) -> None:
        """Take the bot's lock; StateTaken if another bot has it."""

    def is_taken(self) -> bool:
        """Whether a bot has the lock."""

    def close(self) -> None:
        """Release the lock and the connection."""


@cache
def statements(schema: str) -> dict[str, str]:
    """The statements by name, for tables in this schema."""
    return {
        name: text.replace("{schema}", schema).replace("{link_columns}", ", ".join(_LINK))
        for name, text in _sections("queries.sql").items()
    }


def versions() -> dict[int, str]:
    """The DDL of each version of the tables."""
    return {int(number): text for number, text in _sections("tables.sql").items()}


def outstanding(known: Mapping[int, str], applied: int, where: str) -> list[tuple[int, str]]:
    """Versions that are not applied yet; StateError if newer code made the tables."""
    if applied > max(known):
        raise StateError(
            f"the bot's state in {where} has version {applied}, and this code knows {max(known)}: deploy the newer "
            "aftercommit, or give the bot another state"
        )
    return [(number, text) for number, text in sorted(known.items()) if number > applied]


class Store:
    """The bot's state. Every method blocks, and may raise StateUnavailable.

    Each method is one transaction and can be repeated: after a lost connection it may or may not have been committed.
    Methods that take a link change nothing if the stored link has moved or was replaced meanwhile.
    """

    def __init__(self, driver: StateDriver) -> None:
        self.driver = driver

    def prepare(self) -> None:
        """Create or upgrade the tables. Raises StateError if newer code made them."""
        self.driver.prepare(versions())

    def check(self) -> None:
        """For programs that read beside a bot: StateError if the tables are missing or of another version."""
        found = self.driver.version()
        if found == 0:
            raise self._missing()
        if outstanding(versions(), found, self.driver.where):
            raise StateError(
                f"the bot's state in {self.driver.where} has version {found}, and this aftercommit needs version "
                f"{max(versions())}. Use the aftercommit of the running bot, or start the newer bot, which upgrades "
                "the state"
            )

    def prepare_beside_bot(self, *, make: bool = False) -> None:
        """For programs that write beside a bot: upgrade the tables, and with `make` create missing ones.

        It takes the bot's lock, so that no bot starts meanwhile. StateError if a running bot uses older tables.
        """
        found = self.driver.version()
        if found == max(versions()):
            return
        if found == 0 and not make:
            raise self._missing()
        try:
            self.driver.lock()
        except StateTaken:
            # A bot of this version may have prepared them just now.
            self.check()
            return
        try:
            self.prepare()
        finally:
            self.driver.close()

    def lock(self) -> None:
        """Be the only bot on this state until `close`; StateTaken if another bot has it."""
        self.driver.lock()

    def is_taken(self) -> bool:
        """Whether a bot is using this state."""
        return self.driver.is_taken()

    def close(self) -> None:
        """Release the lock and the connection; the next use connects again."""
        self.driver.close()

    def links(self) -> list[Link]:
        """All links, oldest first."""
        return [_link(row) for row in self.driver.one("links")]

    def link(self, chat_id: int) -> Link | None:
        """The link of a chat."""
        rows = self.driver.one("link", chat_id=chat_id)
        return _link(rows[0]) if rows else None

    def put_link(self, link: Link) -> None:
        """Link a chat, or replace its link."""
        values = {**msgspec.structs.asdict(link), "linked_at": _moment(link.linked_at)}
        values["muted_until"] = _moment(link.muted_until)
        values["unreachable_at"] = _moment(link.unreachable_at)
        self.driver.one("put_link", **values)

    def unlink(self, chat_id: int) -> bool:
        """Delete a link; whether there was one. Its undelivered events stay on record."""
        return bool(self.driver.one("unlink", chat_id=chat_id))

    def move(self, link: Link, place: str, *, delivered: bool = False) -> None:
        """Everything up to this position is settled; `delivered` if a message reached the chat."""

        def work(run: Run) -> None:
            run("move", **_from(link), place=place)
            if delivered:
                run("reached", chat_id=link.chat_id)

        self.driver.work(work)

    def set_aside(self, link: Link, failure: UndeliveredEvent, place: str | None) -> None:
        """Record an undelivered event, and move past it."""

        def work(run: Run) -> None:
            _record(run, failure)
            run("move", **_from(link), place=place)

        self.driver.work(work)

    def count_passed(self, link: Link, place: str) -> None:
        """Count an event of a muted chat, and move past it."""
        self.driver.one("count_passed", **_from(link), place=place)

    def told_passed(self, link: Link, failure: UndeliveredEvent | None = None) -> None:
        """The chat was told how many events it missed while muted, or that could not be delivered."""

        def work(run: Run) -> None:
            if failure is not None:
                _record(run, failure)
            whose = {name: value for name, value in _from(link).items() if name != "was"}
            run("told_passed", **whose, passed=link.passed)

        self.driver.work(work)

    def mute(self, chat_id: int, until: datetime | None) -> None:
        """Mute a chat until this time; None unmutes it."""
        self.driver.one("mute", chat_id=chat_id, until=_moment(until))

    def speak(self, chat_id: int, language: str) -> None:
        """Store the language of a chat."""
        self.driver.one("speak", chat_id=chat_id, language=language)

    def reached(self, chat_id: int) -> None:
        """The chat can be reached again."""
        self.driver.one("reached", chat_id=chat_id)

    def lost(self, chat_id: int, reason: str) -> None:
        """The chat can no longer be reached."""
        self.driver.one("lost", chat_id=chat_id, reason=reason, at=_moment(utc_now()))

    def renumber(self, chat_id: int, new_chat_id: int) -> None:
        """A group has a new number; its undelivered events move along."""

        def work(run: Run) -> None:
            run("renumber", chat_id=chat_id, new_chat_id=new_chat_id)
            run("forget_double_failures", chat_id=chat_id, new_chat_id=new_chat_id)
            run("renumber_failures", chat_id=chat_id, new_chat_id=new_chat_id)
            run("unlink", chat_id=chat_id)

        self.driver.work(work)

    def failures(
        self, chat_id: int | None = None, *, user_id: str | None = None, limit: int = 100
    ) -> list[UndeliveredEvent]:
        """Undelivered events, newest first."""
        rows = self.driver.one("failures", chat_id=chat_id, user_id=user_id, limit=limit)
        return [_failure(row) for row in rows]

    def count_failures(
        self, chat_id: int | None = None, *, user_id: str | None = None, since: datetime | None = None
    ) -> int:
        """Number of undelivered events."""
        return int(self.driver.one("count_failures", chat_id=chat_id, user_id=user_id, since=_moment(since))[0][0])

    def forget_failures(self, before: datetime) -> int:
        """Delete records of undelivered events that are older than this; returns how many."""
        return len(self.driver.one("forget_failures", before=_moment(before)))

    def put_code(self, code_hash: str, code: Code, expires_at: datetime) -> None:
        """Store the hash of a code; it replaces an unused code of the same user."""

        def work(run: Run) -> None:
            run("end_codes_of_user", user_id=code.user_id, now=_moment(utc_now()))
            run("put_code", hash=code_hash, user_id=code.user_id, name=code.name, expires_at=_moment(expires_at))

        self.driver.work(work)

    def take_code(self, code_hash: str, now: datetime) -> Code | None:
        """Use up a code: its user, or None if it is wrong, used or expired."""
        rows = self.driver.one("take_code", hash=code_hash, taker=secrets.token_hex(16))
        if not rows:
            return None
        user_id, name, expires_at = rows[0]
        return Code(user_id, name) if _time(expires_at) > now else None

    def offset(self) -> int:
        """Number of the first update that is not handled yet."""
        rows = self.driver.one("progress", name=OFFSET)
        return int(rows[0][0]) if rows else 0

    def save_offset(self, offset: int) -> None:
        """All updates before this number are handled."""
        self.driver.one("save_progress", name=OFFSET, value=offset)

    def beat(self, now: datetime) -> None:
        """Record that the bot is running."""
        self.driver.one("save_progress", name=BEAT, value=int(now.timestamp()))

    def last_beat(self) -> datetime | None:
        """When the bot last recorded that it is running; None if never."""
        rows = self.driver.one("progress", name=BEAT)
        return datetime.fromtimestamp(int(rows[0][0]), UTC) if rows else None

    def trouble(self) -> str | None:
        """The current trouble of the bot and what to do about it; None if there is none."""
        return "; ".join(str(said) for (said,) in self.driver.one("trouble")) or None

    def note_trouble(self, said: str | None, about: str = FEED) -> None:
        """Record trouble with the feed or with updates; None ends it."""
        if said is None:
            self.driver.one("end_trouble", name=about)
        else:
            self.driver.one("note_trouble", name=about, said=said)

    def _missing(self) -> StateError:
        return StateError(f"no bot state in {self.driver.where}: run `aftercommit bot`, or set --state")


def _sections(file: str) -> dict[str, str]:
    text = (resources.files("aftercommit.contrib.telegram.states") / file).read_text(encoding="utf-8")
    _, *parts = _SECTION.split(text)
    return {name: _without_comments(body) for name, body in zip(parts[::2], parts[1::2], strict=True)}


def _without_comments(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith("--")).strip()


def _from(link: Link) -> dict[str, Any]:
    whose = {"chat_id": link.chat_id, "user_id": link.user_id, "linked_at": _moment(link.linked_at)}
    return {**whose, "was": link.place or ""}


def _record(run: Run, failure: UndeliveredEvent) -> None:
    at = _moment(failure.at)
    run("put_failure", **{**msgspec.structs.asdict(failure), "at": at})
    if failure.kind in ("blocked", "gone"):
        run("lost", chat_id=failure.chat_id, reason=failure.reason, at=at)


def _link(row: tuple[Any, ...]) -> Link:
    values = dict(zip(_LINK, row, strict=True))
    values["linked_at"] = _time(values["linked_at"])
    for name in ("muted_until", "unreachable_at"):
        values[name] = _time(values[name]) if values[name] is not None else None
    return Link(**values)


def _failure(row: tuple[Any, ...]) -> UndeliveredEvent:
    values = dict(zip(UndeliveredEvent.__struct_fields__, row, strict=True))
    return UndeliveredEvent(**{**values, "at": _time(values["at"])})


def _moment(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat(timespec="microseconds")


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
