"""Who handles what: consumers and their handlers as declarations. Running them is the consumer room's work."""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from aftercommit.backoff import Backoff, Exponential
from aftercommit.errors import DeclarationError, DuplicateDeclaration
from aftercommit.event.definition import EventType
from aftercommit.event.envelope import Event
from aftercommit.event.registry import Registry

Ordering = Literal["relaxed", "strict"]
Function = TypeVar("Function", bound=Callable[..., Any])
Reference = EventType | type[Any] | str

RELAY_NAME = "@relay"
_CONSUMER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,99}")


@dataclass(frozen=True, slots=True, eq=False)
class Handler:
    """One function of a consumer, and the events it takes."""

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
    """A named reader of events with handlers of its own, its own inbox, its own pace and its own failures."""

    name: str
    registry: Registry
    retry_count: int = 3
    backoff: Backoff = field(default_factory=lambda: Exponential(base=0.5, maximum=60.0))
    timeout: float = 30.0
    concurrency: int = 1
    ordering: Ordering = "relaxed"
    inbox: bool = True
    start: Literal["earliest", "latest"] | None = None
    handlers: list[Handler] = field(default_factory=list)
    is_async: bool | None = None

    def __post_init__(self) -> None:
        """Refuse settings that could not work."""
        if not _CONSUMER_NAME.fullmatch(self.name):
            raise DeclarationError(
                f"consumer name {self.name!r:.120} is not usable: 1 to 100 of letters, digits and _ . : / -"
            )
        if self.retry_count < 0 or self.timeout <= 0 or self.concurrency < 1:
            raise DeclarationError(
                f"consumer {self.name!r}: retry_count >= 0, timeout > 0 and concurrency >= 1 are needed"
            )
        if self.ordering not in ("relaxed", "strict"):
            raise DeclarationError(
                f"consumer {self.name!r}: ordering {self.ordering!r} must be 'relaxed' or 'strict'"
            )
        if not self.inbox and self.concurrency > 1:
            raise DeclarationError(
                f"consumer {self.name!r}: without an inbox only the checkpoint says what was handled, so concurrency must be 1"
            )

    @property
    def types(self) -> list[str] | None:
        """The event types any handler takes, or None when one of them may take any type."""
        found: set[str] = set()
        for handler in self.handlers:
            if handler.types is None:
                return None
            found |= handler.types
        return sorted(found)

    @property
    def declared_by(self) -> str:
        """Where the first handler lives; tells two programs under one name apart."""
        function = self.handlers[0].function
        return f"{function.__module__}.{function.__qualname__}"

    def on(
        self,
        *events: Reference,
        can_handle: Callable[[Event[Any]], bool] | None = None,
        batch: bool = False,
    ) -> Callable[[Function], Function]:
        """Declare a handler: `async def handle(event)`, or `handle(event, connection)` to write in its transaction.

        Without event types, `can_handle` alone decides. With `batch=True` the handler gets a list of events.
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
                    f"consumer {self.name!r} already has a handler for {shared} ({other.function.__qualname__}): "
                    "one event has one inbox row per consumer, so give the second handler a consumer name of its own"
                )
        is_async = inspect.iscoroutinefunction(function)
        if self.is_async is not None and self.is_async != is_async:
            raise DeclarationError(
                f"consumer {self.name!r} mixes async and sync handlers, which cannot share a transaction: "
                f"move {function.__qualname__} to a consumer of its own"
            )
        self.is_async = is_async
        self.handlers.append(
            Handler(function, types, condition, batch, _takes_transaction(function, self.name))
        )


def _takes_transaction(function: Callable[..., Any], consumer: str) -> bool:
    positional = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        and parameter.default is parameter.empty
    ]
    if len(positional) not in (1, 2):
        raise DeclarationError(
            f"handler {function.__qualname__} of consumer {consumer!r} takes {len(positional)} arguments: "
            "it must take the event, or the event and the connection"
        )
    return len(positional) == 2
