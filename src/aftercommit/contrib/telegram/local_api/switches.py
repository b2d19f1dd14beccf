"""Fault injection: faults for one chat or all, for some calls or until switched off."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, ClassVar, Final, Self, TypeAlias, get_args

from aftercommit.contrib.telegram.local_api.changes import Changes
from aftercommit.errors import DeclarationError

_LONGEST_WAIT: Final = 3600
# A method and a chat; None means any.
_Scope: TypeAlias = tuple[str | None, int | None]


@dataclass(frozen=True, slots=True)
class TooManyRequests:
    """429 with `retry_after` seconds. Calls before that time are refused again, and recorded as too early."""

    name: ClassVar[str] = "too_many_requests"
    retry_after: int = 3

    def __post_init__(self) -> None:
        _check("retry_after", self.retry_after, 1, _LONGEST_WAIT)


@dataclass(frozen=True, slots=True)
class Blocked:
    """403: the user has blocked the bot."""

    name: ClassVar[str] = "blocked"


@dataclass(frozen=True, slots=True)
class ChatNotFound:
    """400: the chat does not exist."""

    name: ClassVar[str] = "chat_not_found"


@dataclass(frozen=True, slots=True)
class ServerError:
    """5xx. `as_page`: as HTML, like a proxy's. `recorded`: the message is delivered anyway."""

    name: ClassVar[str] = "server_error"
    status: int = 502
    as_page: bool = False
    recorded: bool = False

    def __post_init__(self) -> None:
        _check("status", self.status, 500, 599)


@dataclass(frozen=True, slots=True)
class Hang:
    """No answer: the connection stays open until the client leaves or the fault is switched off.

    `recorded`: the message is delivered anyway.
    """

    name: ClassVar[str] = "hang"
    recorded: bool = False


@dataclass(frozen=True, slots=True)
class Drop:
    """The connection is closed instead of an answer, before the message is delivered or (`recorded`) after."""

    name: ClassVar[str] = "drop"
    recorded: bool = False


@dataclass(frozen=True, slots=True)
class Slow:
    """The answer takes `seconds`; the message is delivered at their end or (`recorded`) at their beginning."""

    name: ClassVar[str] = "slow"
    seconds: float = 2.0
    recorded: bool = False

    def __post_init__(self) -> None:
        _check("seconds", self.seconds, 0, _LONGEST_WAIT)


Fault: TypeAlias = TooManyRequests | Blocked | ChatNotFound | ServerError | Hang | Drop | Slow
"""All kinds of faults."""
FAULTS: Final[dict[str, type[Fault]]] = {kind.name: kind for kind in get_args(Fault)}


def _check(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise DeclarationError(f"{name}={value!r:.40} is not between {least} and {most}")


@dataclass(eq=False)
class Switch:
    """A fault that is switched on, until `off`, the end of its context, or its last call.

    Without a chat it applies to every call, also to those without a chat; `method` limits it to one method. `left` is
    the number of calls left; None is unlimited.
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
        """Whether the fault is still on."""
        return self in self.board.switches

    def off(self) -> None:
        """Switch it off; calls that hang because of it are cut."""
        self.board.off(self)

    def __enter__(self) -> Self:
        """The fault is already on."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Switch it off."""
        self.off()

    def meets(self, method: str, chat_id: int | None) -> bool:
        """Whether the fault applies to this call."""
        if self.method is not None and self.method.lower() != method.lower():
            return False
        if isinstance(self.fault, Blocked | ChatNotFound) and chat_id is None:
            return False
        return self.chat_id is None or self.chat_id == chat_id

    def told(self) -> dict[str, Any]:
        """The fault in the format of the control routes."""
        details = {name: getattr(self.fault, name) for name in type(self.fault).__slots__}
        chosen = {"chat_id": self.chat_id, "method": self.method, "left": self.left, "met": self.met}
        return {"switch": self.number, "fault": self.fault.name, **details, **chosen}


class Switchboard:
    """All faults that are on; the newest one that applies to a call wins."""

    def __init__(self, changes: Changes) -> None:
        self.switches: Sequence[Switch] = ()
        self._changes = changes
        self._made: list[Switch] = []
        self._waits: dict[_Scope, float] = {}

    def on(
        self, fault: Fault, *, chat_id: int | None = None, method: str | None = None, times: int | None = None
    ) -> Switch:
        """Switch a fault on."""
        if times is not None and times < 1:
            raise DeclarationError(f"times={times} must be at least 1, or None for no limit")
        with self._changes.lock:
            switch = Switch(len(self._made) + 1, fault, chat_id, method, times, self)
            self._made.append(switch)
            self.switches = [*self.switches, switch]
            self._changes.tell(self)
            return switch

    def off(self, *switches: Switch) -> None:
        """Switch these faults off, or all. Calls that hang because of them are cut, and waits end."""
        with self._changes.lock:
            for switch in switches or self._made:
                switch.was_ended = True
                self._waits.pop((switch.method and switch.method.lower(), switch.chat_id), None)
            if not switches:
                self._waits.clear()
            self.switches = [switch for switch in self.switches if not switch.was_ended]
            self._changes.tell(self)

    def met(self, method: str, chat_id: int | None) -> Switch | None:
        """The fault that applies to this call; counts the call."""
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
        """After a 429: refuse calls of this method (or all) to this chat (or all) for this time."""
        with self._changes.lock:
            self._waits[method and method.lower(), chat_id] = time.monotonic() + seconds

    def remaining_wait(self, method: str, chat_id: int | None) -> float:
        """Seconds left of the wait of an earlier 429; 0 or less for none."""
        now = time.monotonic()
        with self._changes.lock:
            scopes = ((each, chat) for each in (None, method.lower()) for chat in (None, chat_id))
            return max(self._waits.get(scope, now) - now for scope in scopes)
