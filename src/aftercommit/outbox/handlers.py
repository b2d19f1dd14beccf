"""The declarations of consumers and their handlers. Nothing runs here."""

import functools
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from aftercommit.backoff import LONGEST_DELAY, Backoff, Exponential
from aftercommit.errors import DeclarationError, DuplicateDeclaration
from aftercommit.event.definition import EventType
from aftercommit.event.envelope import Event
from aftercommit.event.registry import Registry
from aftercommit.postgres.shape import LANES

Ordering = Literal["relaxed", "strict"]
Function = TypeVar("Function", bound=Callable[..., Any])
Reference = EventType | type[Any] | str

ANY_TYPE = "*"
# The rows of its lanes are named consumer#lane.
MAX_DIVIDED_NAME = 97
_CONSUMER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,99}")


@dataclass(frozen=True, slots=True, eq=False)
class Handler:
    """A handler function, and the events that it takes."""

    function: Callable[..., Any]
    types: frozenset[str] | None
    condition: Callable[[Event[Any]], bool] | None
    batch: bool
    takes_transaction: bool

    def can_handle(self, event: Event[Any]) -> bool:
        """Whether this event is for this handler."""
        if self.types is not None and event.type not in self.types:
            return False
        return self.condition is None or self.condition(event)


@dataclass(slots=True, eq=False)
class Consumer:
    """A named reader of events, with its own handlers, inbox, checkpoint and dead letters."""

    name: str
    registry: Registry
    retry_count: int = 3
    backoff: Backoff = field(default_factory=lambda: Exponential(base=0.5, maximum=60.0))
    timeout: float = 30.0
    concurrency: int = 1
    ordering: Ordering = "relaxed"
    inbox: bool = True
    start: Literal["earliest", "latest"] | None = None
    version_wait_seconds: float = 900.0
    calls_per_commit: int = 100
    lanes: int = 1
    handlers: list[Handler] = field(default_factory=list)
    is_async: bool | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _CONSUMER_NAME.fullmatch(self.name):
            raise DeclarationError(
                f"consumer name {self.name!r:.120} is not valid: use 1 to 100 letters, digits and _ . : / -, and begin "
                "with a letter or digit"
            )
        if self.retry_count < 0 or self.timeout <= 0 or self.concurrency < 1 or self.calls_per_commit < 1:
            raise DeclarationError(
                f"consumer {self.name!r}: must have retry_count >= 0, timeout > 0, concurrency >= 1 and "
                "calls_per_commit >= 1"
            )
        if not 0 <= self.version_wait_seconds <= LONGEST_DELAY:
            raise DeclarationError(
                f"consumer {self.name!r}: version_wait_seconds={self.version_wait_seconds!r} must be from 0 to "
                f"{LONGEST_DELAY:g}"
            )
        if self.ordering not in ("relaxed", "strict"):
            raise DeclarationError(f"consumer {self.name!r}: ordering {self.ordering!r} must be 'relaxed' or 'strict'")
        if not self.inbox and self.concurrency > 1:
            raise DeclarationError(
                f"consumer {self.name!r}: without an inbox, only the checkpoint tells which events were handled, "
                "so concurrency must be 1"
            )
        if not self.inbox and self.ordering == "strict":
            raise DeclarationError(
                f"consumer {self.name!r}: with ordering='strict', events behind a failed one wait as dead letters, and "
                "only the inbox tells which of them were handled: drop inbox=False, or ordering='strict'"
            )
        if not isinstance(self.lanes, int) or not 1 <= self.lanes <= LANES:
            raise DeclarationError(f"consumer {self.name!r}: lanes={self.lanes!r} must be a number from 1 to {LANES}")
        if self.lanes > 1 and len(self.name) > MAX_DIVIDED_NAME:
            raise DeclarationError(
                f"consumer {self.name!r}: the name of a consumer with lanes has at most {MAX_DIVIDED_NAME} characters"
            )
        if self.start not in (None, "earliest", "latest"):
            raise DeclarationError(f"consumer {self.name!r}: start {self.start!r} must be 'earliest' or 'latest'")

    @property
    def types(self) -> list[str] | None:
        """The event types that its handlers take, or None if a handler may take any type."""
        found: set[str] = set()
        for handler in self.handlers:
            if handler.types is None:
                return None
            found |= handler.types
        return sorted(found)

    @property
    def declared_by(self) -> str:
        """The event types as text, to tell two different consumers of the same name apart."""
        if not self.handlers:
            raise DeclarationError(f"consumer {self.name!r} has no handler: declare one with on(…)")
        return " ".join(self.types) if self.types is not None else ANY_TYPE

    def on(
        self, *events: Reference, can_handle: Callable[[Event[Any]], bool] | None = None, batch: bool = False
    ) -> Callable[[Function], Function]:
        """Declare a handler: `handle(event)`, or `handle(event, connection)` to write in its transaction.

        Without event types, `can_handle` decides. With `batch=True`, the handler gets a list of events.
        """
        if not events and can_handle is None:
            raise DeclarationError(f"consumer {self.name!r}: on(…) needs event types, can_handle=…, or both")
        types = frozenset(self.registry.resolve(event).name for event in events) if events else None

        def register(function: Function) -> Function:
            self._add(function, types, can_handle, batch)
            return function

        return register

    def _add(
        self,
        function: Callable[..., Any],
        types: frozenset[str] | None,
        condition: Callable[[Event[Any]], bool] | None,
        batch: bool,
    ) -> None:
        for other in self.handlers:
            overlap = other.types & types if other.types is not None and types is not None else None
            unconditional = condition is None or other.condition is None
            if (overlap or overlap is None) and unconditional:
                shared = ", ".join(sorted(overlap)) if overlap else "any type"
                raise DuplicateDeclaration(
                    f"consumer {self.name!r} already has a handler for {shared} ({_name(other.function)}): "
                    "an event has one inbox row per consumer, so give the second handler its own consumer"
                )
        takes_transaction = _takes_transaction(function, self.name)
        is_async = _is_async(function, self.name)
        if self.is_async is not None and self.is_async != is_async:
            raise DeclarationError(
                f"consumer {self.name!r} mixes async and sync handlers, which cannot share a transaction: "
                f"move {_name(function)} to its own consumer"
            )
        self.is_async = is_async
        self.handlers.append(Handler(function, types, condition, batch, takes_transaction))


def _name(function: Callable[..., Any]) -> str:
    """The name of a function for messages: of the function inside a partial, of the class of an object."""
    while isinstance(function, functools.partial):
        function = function.func
    named: Any = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def _is_async(function: Callable[..., Any], consumer: str) -> bool:
    called = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    candidates = (function, called)
    if any(inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one) for one in candidates):
        raise DeclarationError(
            f"handler {_name(function)} of consumer {consumer!r} is a generator, so a call would run nothing: "
            "remove the yield"
        )
    return any(inspect.iscoroutinefunction(one) for one in candidates)


def _takes_transaction(function: Callable[..., Any], consumer: str) -> bool:
    if not callable(function):
        raise DeclarationError(f"handler {function!r} of consumer {consumer!r} is not callable: give a function")
    needed = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    by_name = [parameter.name for parameter in needed if parameter.kind == parameter.KEYWORD_ONLY]
    if by_name or len(needed) not in (1, 2):
        named = f" ({', '.join(by_name)} by keyword only)" if by_name else ""
        raise DeclarationError(
            f"handler {_name(function)} of consumer {consumer!r} needs {len(needed)} arguments{named}: "
            "it must take the event, or the event and the connection"
        )
    return len(needed) == 2
