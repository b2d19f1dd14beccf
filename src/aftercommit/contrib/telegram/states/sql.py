"""The bot's state in SQL: one set of statements, on a driver that knows how its database is reached."""

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
# That a killed bot is gone is noticed soon and not at once.
PATIENCE: Final = 2.0
LOOK: Final = 0.05
_LINK: Final = Link.__struct_fields__
_SECTION: Final = re.compile(r"^-- (?:name|version): (\w+)$", re.MULTILINE)


class StateDriver(Protocol):
    """One database. `work` is given a function that runs a statement by its name and returns its rows."""

    @property
    def where(self) -> str:
        """The place in words, without a password."""

    def work(self, function: Callable[[Run], Result]) -> Result:
        """Run the function in one transaction; StateUnavailable when that cannot be done at the moment."""

    def one(self, statement: str, /, **parameters: Any) -> Rows:
        """Run one statement, in a transaction of its own."""

    def version(self) -> int:
        """The version of the tables, 0 without any. Changes nothing."""

    def prepare(self, versions: Mapping[int, str]) -> None:
        """Apply, in order, what was not applied yet."""

    def lock(self) -> None:
        """Keep every other bot away; StateTaken when one is there."""

    def is_taken(self) -> bool:
        """Whether a bot is there."""

    def close(self) -> None:
        """Let go."""


@cache
def statements(schema: str) -> dict[str, str]:
    """The statements by their names, for tables in this schema."""
    return {
        name: text.replace("{schema}", schema).replace("{link_columns}", ", ".join(_LINK))
        for name, text in _sections("queries.sql").items()
    }


def versions() -> dict[int, str]:
    """The tables by their versions: what each adds."""
    return {int(number): text for number, text in _sections("tables.sql").items()}


def outstanding(known: Mapping[int, str], applied: int, where: str) -> list[tuple[int, str]]:
    """What has to be applied yet; StateError for tables of newer code."""
    if applied > max(known):
        raise StateError(
            f"the bot's state in {where} is of version {applied}, and this code knows {max(known)}: deploy the newer "
            "aftercommit, or give the bot another state"
        )
    return [(number, text) for number, text in sorted(known.items()) if number > applied]


class SqlStore:
    """The store on a driver."""

    def __init__(self, driver: StateDriver) -> None:
        """Nothing is opened yet."""
        self.driver = driver

    def prepare(self) -> None:
        """Make or upgrade the tables."""
        self.driver.prepare(versions())

    def check(self) -> None:
        """Refuse tables that are not of this version."""
        found = self.driver.version()
        if found == 0:
            raise self._missing()
        if outstanding(versions(), found, self.driver.where):
            raise StateError(
                f"the bot's state in {self.driver.where} is of version {found}, and this aftercommit needs version "
                f"{max(versions())}. Use the aftercommit of the running bot, or start the newer bot, which upgrades "
                "the state"
            )

    def prepare_beside_bot(self, *, make: bool = False) -> None:
        """Upgrade the tables under the bot's own lock, so that no bot starts on them meanwhile."""
        found = self.driver.version()
        if found == max(versions()):
            return
        if found == 0 and not make:
            raise self._missing()
        try:
            self.driver.lock()
        except StateTaken:
            # A bot of this version may just have prepared them.
            self.check()
            return
        try:
            self.prepare()
        finally:
            self.driver.close()

    def lock(self) -> None:
        """Be the only bot."""
        self.driver.lock()

    def is_taken(self) -> bool:
        """Whether a bot is there."""
        return self.driver.is_taken()

    def close(self) -> None:
        """Let go."""
        self.driver.close()

    def links(self) -> list[Link]:
        """All links."""
        return [_link(row) for row in self._rows("links")]

    def link(self, chat_id: int) -> Link | None:
        """The link of a chat."""
        rows = self._rows("link", chat_id=chat_id)
        return _link(rows[0]) if rows else None

    def put_link(self, link: Link) -> None:
        """Link, or link anew."""
        values = {**msgspec.structs.asdict(link), "linked_at": _moment(link.linked_at)}
        values["muted_until"] = _moment(link.muted_until)
        values["unreachable_at"] = _moment(link.unreachable_at)
        self._rows("put_link", **values)

    def unlink(self, chat_id: int) -> bool:
        """Forget a chat."""
        return bool(self._rows("unlink", chat_id=chat_id))

    def move(self, link: Link, place: str, *, delivered: bool = False) -> None:
        """Move on."""

        def work(run: Run) -> None:
            run("move", **_from(link), place=place)
            if delivered:
                run("reached", chat_id=link.chat_id)

        self.driver.work(work)

    def set_aside(self, link: Link, failure: UndeliveredEvent, place: str | None) -> None:
        """Record, and move on."""

        def work(run: Run) -> None:
            _record(run, failure)
            run("move", **_from(link), place=place)

        self.driver.work(work)

    def count_passed(self, link: Link, place: str) -> None:
        """Count, and move on."""
        self._rows("count_passed", **_from(link), place=place)

    def told_passed(self, link: Link, failure: UndeliveredEvent | None = None) -> None:
        """So many were told, or never will be."""

        def work(run: Run) -> None:
            if failure is not None:
                _record(run, failure)
            whose = {name: value for name, value in _from(link).items() if name != "was"}
            run("told_passed", **whose, passed=link.passed)

        self.driver.work(work)

    def mute(self, chat_id: int, until: datetime | None) -> None:
        """Mute."""
        self._rows("mute", chat_id=chat_id, until=_moment(until))

    def speak(self, chat_id: int, language: str) -> None:
        """Remember the language."""
        self._rows("speak", chat_id=chat_id, language=language)

    def reached(self, chat_id: int) -> None:
        """Reachable again."""
        self._rows("reached", chat_id=chat_id)

    def lost(self, chat_id: int, reason: str) -> None:
        """No longer reachable."""
        self._rows("lost", chat_id=chat_id, reason=reason, at=_moment(utc_now()))

    def renumber(self, chat_id: int, new_chat_id: int) -> None:
        """Another number."""

        def work(run: Run) -> None:
            run("renumber", chat_id=chat_id, new_chat_id=new_chat_id)
            run("forget_double_failures", chat_id=chat_id, new_chat_id=new_chat_id)
            run("renumber_failures", chat_id=chat_id, new_chat_id=new_chat_id)
            run("unlink", chat_id=chat_id)

        self.driver.work(work)

    def failures(
        self, chat_id: int | None = None, *, user_id: str | None = None, limit: int = 100
    ) -> list[UndeliveredEvent]:
        """What was set aside."""
        rows = self._rows("failures", chat_id=chat_id, user_id=user_id, limit=limit)
        return [_failure(row) for row in rows]

    def count_failures(
        self, chat_id: int | None = None, *, user_id: str | None = None, since: datetime | None = None
    ) -> int:
        """How much was."""
        return int(self._rows("count_failures", chat_id=chat_id, user_id=user_id, since=_moment(since))[0][0])

    def forget_failures(self, before: datetime) -> int:
        """Remove old records."""
        return len(self._rows("forget_failures", before=_moment(before)))

    def put_code(self, code_hash: str, code: Code, expires_at: datetime) -> None:
        """Keep a code."""

        def work(run: Run) -> None:
            run("end_codes_of_user", user_id=code.user_id, now=_moment(utc_now()))
            run("put_code", hash=code_hash, user_id=code.user_id, name=code.name, expires_at=_moment(expires_at))

        self.driver.work(work)

    def take_code(self, code_hash: str, now: datetime) -> Code | None:
        """Redeem a code."""
        rows = self._rows("take_code", hash=code_hash, taker=secrets.token_hex(16))
        if not rows:
            return None
        user_id, name, expires_at = rows[0]
        return Code(user_id, name) if _time(expires_at) > now else None

    def offset(self) -> int:
        """How far updates were read."""
        rows = self._rows("progress", name=OFFSET)
        return int(rows[0][0]) if rows else 0

    def save_offset(self, offset: int) -> None:
        """Updates are dealt with."""
        self._rows("save_progress", name=OFFSET, value=offset)

    def beat(self, now: datetime) -> None:
        """It works."""
        self._rows("save_progress", name=BEAT, value=int(now.timestamp()))

    def last_beat(self) -> datetime | None:
        """When it last did."""
        rows = self._rows("progress", name=BEAT)
        return datetime.fromtimestamp(int(rows[0][0]), UTC) if rows else None

    def trouble(self) -> str | None:
        """Why nothing is polled, or heard."""
        return "; ".join(str(said) for (said,) in self._rows("trouble")) or None

    def note_trouble(self, said: str | None, about: str = FEED) -> None:
        """Something is wrong; or it is no more."""
        if said is None:
            self._rows("end_trouble", name=about)
        else:
            self._rows("note_trouble", name=about, said=said)

    def _missing(self) -> StateError:
        return StateError(f"there is no state of a bot in {self.driver.where}: run `aftercommit bot`, or say --state")

    def _rows(self, statement: str, /, **parameters: Any) -> Rows:
        return self.driver.one(statement, **parameters)


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
