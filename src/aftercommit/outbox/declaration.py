"""The Outbox: the declaration that publishers, relays and consumers share. It connects to nothing."""

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from aftercommit.backoff import Backoff, Exponential
from aftercommit.errors import DeclarationError, DuplicateDeclaration
from aftercommit.event.definition import EventType, Key, Upcaster, define
from aftercommit.event.registry import Registry
from aftercommit.outbox.adapters import publisher_for
from aftercommit.outbox.handlers import Consumer, Function, Ordering, Reference
from aftercommit.outbox.insert import Inserter, Receipt, checked_key
from aftercommit.postgres.shape import DeclaredView, LogFacet, Shape
from aftercommit.schema import migrate
from aftercommit.telemetry import Meter

if TYPE_CHECKING:
    import psycopg

    from aftercommit.outbox.adapters import AsyncTarget, SyncTarget

MAX_PAYLOAD_BYTES = 1 << 20
_SEVERAL = (list, tuple)

Payload = TypeVar("Payload", bound=type[Any])


class Outbox:
    """The events of one service, in one PostgreSQL schema.

    `scope` declares values that every event must have (`{"tenant_id": str}`). `ordering` says whether events after a
    failed one of the same aggregate go on (`relaxed`) or wait (`strict`). With `audience`, every event has a list of
    readers who receive it. `numbered` lists aggregate types whose events get a gapless number per aggregate. `indexed`
    lists columns to look up pending events by, and scopes to look up published ones by (the first scope always is one);
    `views` show events under your own names.
    """

    def __init__(
        self,
        schema: str = "aftercommit",
        *,
        scope: Mapping[str, type[Any]] | None = None,
        ordering: Ordering = "relaxed",
        max_attempts: int = 10,
        backoff: Backoff | None = None,
        max_payload_bytes: int = MAX_PAYLOAD_BYTES,
        audience: bool = False,
        numbered: Sequence[str] = (),
        indexed: Sequence[str] = (),
        views: Sequence[DeclaredView] = (),
    ) -> None:
        if ordering not in ("relaxed", "strict"):
            raise DeclarationError(f"ordering {ordering!r} must be 'relaxed' or 'strict'")
        if max_attempts < 1 or max_payload_bytes < 2:
            raise DeclarationError(
                f"max_attempts={max_attempts} and max_payload_bytes={max_payload_bytes} must be positive"
            )
        for option, names in (("numbered", numbered), ("indexed", indexed)):
            if isinstance(names, str):
                raise DeclarationError(f"{option}={names!r} is one string: give a list, [{names!r}]")
        self.shape = Shape(schema, dict(scope or {}), tuple(indexed), tuple(views), audience=_checked_flag(audience))
        self.ordering: Ordering = ordering
        self.max_attempts = max_attempts
        self.max_payload_bytes = max_payload_bytes
        self.backoff: Backoff = backoff or Exponential()
        self.numbered = tuple(numbered)
        self.registry = Registry()
        self.consumers: dict[str, Consumer] = {}
        self.meter = Meter(schema)
        self._inserter = Inserter(self.shape, self.registry, max_payload_bytes)

    @property
    def schema(self) -> str:
        """The PostgreSQL schema of this outbox."""
        return self.shape.schema

    def migrate(self, connection: "psycopg.Connection[Any]") -> list[str]:
        """Create or update the tables of this outbox; returns what was done. Relays and consumers do not migrate."""
        self.registry.require_upcasters()
        return migrate.up(connection, self.shape)

    def index_log(self, facets: Iterable[LogFacet]) -> None:
        """Declare indexes of the log for the filters of a feed; `migrate` makes those that are missing."""
        new = [facet for facet in dict.fromkeys(facets) if facet not in self.shape.facets]
        self.shape = replace(self.shape, facets=(*self.shape.facets, *new))

    def event(
        self,
        name: str,
        *,
        version: int = 1,
        oldest_version: int = 1,
        aggregate: str | None = None,
        key: Key | None = None,
        required: Sequence[str] = (),
    ) -> Callable[[Payload], Payload]:
        """Declare an event type whose payload is the decorated dataclass, msgspec.Struct or pydantic model.

        Every version from `oldest_version` on needs an upcaster to the next.
        """

        def declare(payload_class: Payload) -> Payload:
            self.declare(
                name,
                payload_class,
                version=version,
                oldest_version=oldest_version,
                aggregate=aggregate,
                key=key,
                required=required,
            )
            return payload_class

        return declare

    def declare(
        self,
        name: str,
        payload_class: type[Any] | None = None,
        *,
        version: int = 1,
        oldest_version: int = 1,
        aggregate: str | None = None,
        key: Key | None = None,
        required: Sequence[str] = (),
        schema: Mapping[str, Any] | None = None,
    ) -> EventType:
        """Declare an event type. Without a class, its payload is a dict, checked against a JSON `schema` if given."""
        return self.registry.add(
            define(
                name,
                payload_class,
                version=version,
                oldest_version=oldest_version,
                aggregate=aggregate,
                key=key,
                required=required,
                schema=schema,
            )
        )

    def upcast(self, event: Reference, *, from_version: int) -> Callable[[Upcaster], Upcaster]:
        """Declare how a payload of `from_version` becomes the next version; applied when events are read."""

        def register(upcaster: Upcaster) -> Upcaster:
            self.registry.add_upcaster(self.registry.resolve(event).name, from_version, upcaster)
            return upcaster

        return register

    def consumer(
        self,
        name: str,
        *,
        retry_count: int = 3,
        backoff: Backoff | None = None,
        timeout: float = 30.0,
        concurrency: int = 1,
        ordering: Ordering = "relaxed",
        inbox: bool = True,
        start: Literal["earliest", "latest"] | None = None,
        version_wait_seconds: float = 900.0,
        calls_per_commit: int = 100,
        lanes: int = 1,
    ) -> Consumer:
        """Declare a consumer. The database keeps its checkpoint, inbox and dead letters under its name.

        At an event of a newer version than this code knows, it waits `version_wait_seconds` for newer code.
        Up to `calls_per_commit` calls of handlers without a connection share a commit; a crash repeats at most those.
        With `lanes` above 1, its workers share the work; otherwise one works, and the others stand by.
        """
        if name in self.consumers:
            raise DuplicateDeclaration(
                f"consumer {name!r} is declared twice, and both would share an inbox: choose another name"
            )
        consumer = Consumer(
            name,
            self.registry,
            retry_count=retry_count,
            timeout=timeout,
            concurrency=concurrency,
            ordering=ordering,
            inbox=inbox,
            start=start,
            version_wait_seconds=version_wait_seconds,
            calls_per_commit=calls_per_commit,
            lanes=lanes,
        )
        if backoff is not None:
            consumer.backoff = backoff
        self.consumers[name] = consumer
        return consumer

    def on(self, *events: Reference, consumer: str, batch: bool = False) -> Callable[[Function], Function]:
        """Declare a handler. A consumer that is new is declared with default settings."""
        for event in events:
            # Before the consumer, so that a wrong event leaves no consumer without a handler behind.
            self.registry.resolve(event)
        declared = self.consumers.get(consumer) or self.consumer(consumer)
        return declared.on(*events, batch=batch)

    @overload
    def publish(
        self,
        connection: "SyncTarget",
        events: Any,
        *,
        audience: Iterable[str] | None = None,
        idempotency_key: str | None = None,
        outside_transaction: bool = False,
        **scope: Any,
    ) -> Receipt: ...

    @overload
    def publish(
        self,
        connection: "AsyncTarget",
        events: Any,
        *,
        audience: Iterable[str] | None = None,
        idempotency_key: str | None = None,
        outside_transaction: bool = False,
        **scope: Any,
    ) -> Coroutine[Any, Any, Receipt]: ...

    def publish(
        self,
        connection: Any,
        events: Any,
        *,
        audience: Iterable[str] | None = None,
        idempotency_key: str | None = None,
        outside_transaction: bool = False,
        **scope: Any,
    ) -> Receipt | Coroutine[Any, Any, Receipt]:
        """Write one event or a list of events in the caller's transaction. Pass scope values by name.

        `connection` is a psycopg, asyncpg, SQLAlchemy or Django connection or session; with an async one, await the
        result. publish() neither begins, commits nor rolls back the transaction. Outside a transaction it refuses to
        write, unless you pass `outside_transaction=True`. `audience` are the readers who receive these events, if the
        outbox declares one; a draft may have its own. A second publish with the same `idempotency_key` writes nothing
        and returns the ids of the first.
        """
        listed = list(events) if isinstance(events, _SEVERAL) else [events]
        if idempotency_key is not None:
            idempotency_key = checked_key(idempotency_key)
        rows = self._inserter.rows(listed, scope, audience)
        return publisher_for(connection).publish(rows, self._inserter, idempotency_key, alone=outside_transaction)


def _checked_flag(audience: bool) -> bool:
    if not isinstance(audience, bool):
        raise DeclarationError(
            f"audience={audience!r:.80} must be True or False: give the readers of an event to publish(…, audience=[…])"
        )
    return audience
