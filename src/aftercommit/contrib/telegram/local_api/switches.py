"""What goes wrong when somebody wants it to: faults, for one chat or for all, for some calls or until switched off."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, ClassVar, Final, Self, TypeAlias

from aftercommit.contrib.telegram.local_api.changes import Changes
from aftercommit.errors import DeclarationError

_LONGEST_WAIT: Final = 3600
# A method and a chat; None is any.
_Scope: TypeAlias = tuple[str | None, int | None]


@dataclass(frozen=True, slots=True)
class TooManyRequests:
    """429: come back after so many seconds. Whoever comes before that is refused again, and it is on record."""

    name: ClassVar[str] = "too_many_requests"
    retry_after: int = 3

    def __post_init__(self) -> None:
        _check("retry_after", self.retry_after, 1, _LONGEST_WAIT)


@dataclass(frozen=True, slots=True)
class Blocked:
    """403: the person has blocked the bot."""

    name: ClassVar[str] = "blocked"


@dataclass(frozen=True, slots=True)
class ChatNotFound:
    """400: there is no such chat."""

    name: ClassVar[str] = "chat_not_found"


@dataclass(frozen=True, slots=True)
class ServerError:
    """5xx. `as_page`: from a proxy in front of Telegram, as HTML. `recorded`: the message is sent all the same."""

    name: ClassVar[str] = "server_error"
    status: int = 502
    as_page: bool = False
    recorded: bool = False

    def __post_init__(self) -> None:
        _check("status", self.status, 500, 599)


@dataclass(frozen=True, slots=True)
class Hang:
    """No answer, ever; the connection stays open until the client leaves or this is switched off.

    `recorded`: the message is sent, and nobody is told.
    """

    name: ClassVar[str] = "hang"
    recorded: bool = False


@dataclass(frozen=True, slots=True)
class Drop:
    """The connection is cut instead of an answer: before the message is sent, or, `recorded`, after it."""

    name: ClassVar[str] = "drop"
    recorded: bool = False


@dataclass(frozen=True, slots=True)
class Slow:
    """The answer takes so many seconds; the message is sent at their end, or, `recorded`, at their beginning."""

    name: ClassVar[str] = "slow"
    seconds: float = 2.0
    recorded: bool = False

    def __post_init__(self) -> None:
        _check("seconds", self.seconds, 0, _LONGEST_WAIT)


Fault: TypeAlias = TooManyRequests | Blocked | ChatNotFound | ServerError | Hang | Drop | Slow
"""Everything that can be switched on to go wrong."""
FAULTS: Final[dict[str, type[Fault]]] = {
    kind.name: kind for kind in (TooManyRequests, Blocked, ChatNotFound, ServerError, Hang, Drop, Slow)
}


def _check(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise DeclarationError(f"{name}={value!r:.40} is not between {least} and {most}")


@dataclass(eq=False)
class Switch:
    """A fault that is switched on. Leaving it as a context, or `off`, ends it; so does its last time.

    Without a chat it meets every call, and those to no chat as well; `method` narrows it to one method. `left` is how
    many more calls it will meet; None is no end.
    """

    number: int
    fault: Fault
    chat_id: int | None
    method: str | None
    left: int | None
    board: "Switchboard" = field(repr=False)
    met: int = 0
    was_ended: bool = False

    @property
    def is_on(self) -> bool:
        """Whether it still waits for calls."""
        return self in self.board.switches

    def off(self) -> None:
        """No more; calls that hang because of it are cut off."""
        self.board.off(self)

    def __enter__(self) -> Self:
        """It is on already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Off."""
        self.off()

    def meets(self, method: str, chat_id: int | None) -> bool:
        """Whether it is for this call."""
        if self.method is not None and self.method.lower() != method.lower():
            return False
        if isinstance(self.fault, Blocked | ChatNotFound) and chat_id is None:
            return False
        return self.chat_id is None or self.chat_id == chat_id

    def told(self) -> dict[str, Any]:
        """As the control routes tell it."""
        details = {name: getattr(self.fault, name) for name in type(self.fault).__slots__}
        chosen = {"chat_id": self.chat_id, "method": self.method, "left": self.left, "met": self.met}
        return {"switch": self.number, "fault": self.fault.name, **details, **chosen}


class Switchboard:
    """All switches that are on; the newest that fits a call decides."""

    def __init__(self, changes: Changes) -> None:
        """Nothing is wrong."""
        self.switches: Sequence[Switch] = ()
        self._changes = changes
        self._made: list[Switch] = []
        self._waits: dict[_Scope, float] = {}

    def on(
        self, fault: Fault, *, chat_id: int | None = None, method: str | None = None, times: int | None = None
    ) -> Switch:
        """Switch a fault on."""
        if times is not None and times < 1:
            raise DeclarationError(f"times={times} would do nothing: give at least 1, or None for no end")
        with self._changes.lock:
            switch = Switch(len(self._made) + 1, fault, chat_id, method, times, self)
            self._made.append(switch)
            self.switches = [*self.switches, switch]
            self._changes.tell(self)
            return switch

    def off(self, *switches: Switch) -> None:
        """Switch these off, or all; calls that hang because of them are cut off, and nobody has to wait any more."""
        with self._changes.lock:
            for switch in switches or self._made:
                switch.was_ended = True
                self._waits.pop((switch.method and switch.method.lower(), switch.chat_id), None)
            if not switches:
                self._waits.clear()
            self.switches = [switch for switch in self.switches if not switch.was_ended]
            self._changes.tell(self)

    def numbered(self, number: int) -> Switch | None:
        """The switch with this number, if it is on."""
        return next((switch for switch in self.switches if switch.number == number), None)

    def met(self, method: str, chat_id: int | None) -> Switch | None:
        """The switch that this call runs into, which counts it."""
        with self._changes.lock:
            found = next((switch for switch in reversed(self.switches) if switch.meets(method, chat_id)), None)
            if found is not None:
                found.met += 1
                if found.left is not None:
                    found.left -= 1
                    if found.left == 0:
                        self.switches = [switch for switch in self.switches if switch is not found]
                self._changes.tell(self)
            return found

    def told_to_wait(self, method: str | None, chat_id: int | None, seconds: int) -> None:
        """A 429 was answered: calls of the method, or all, to the chat, or all, are refused until this time is over."""
        with self._changes.lock:
            self._waits[method and method.lower(), chat_id] = time.monotonic() + seconds

    def remaining_wait(self, method: str, chat_id: int | None) -> float:
        """Seconds that a call would have to wait for because of an earlier 429; 0 or less for none."""
        now = time.monotonic()
        with self._changes.lock:
            scopes = ((each, chat) for each in (None, method.lower()) for chat in (None, chat_id))
            return max(self._waits.get(scope, now) - now for scope in scopes)
