"""The errors that callers may want to catch, in one tree. Errors that are only recorded are defined where they arise.

    AftercommitError
    ├── DeclarationError           a declaration cannot work as written
    │   └── DuplicateDeclaration   a name is declared twice
    ├── ContractViolation          an event breaks its contract; nothing was written
    │   ├── UnknownEventType
    │   ├── InvalidPayload
    │   ├── PayloadTooLarge
    │   ├── InvalidEnvelope
    │   ├── IdempotencyConflict
    │   ├── ScopeViolation
    │   └── AudienceViolation
    ├── NotInTransaction           publish was called outside a transaction
    ├── UnsupportedConnection      publish got an object that is not a known connection
    ├── UnreadableEvent            this process cannot read a recorded event
    │   └── NewerSchemaVersion
    │       └── NewerVersion       with the event's type and version
    ├── DatabaseError
    │   ├── DatabaseUnavailable
    │   │   └── DatabaseSilent     connected, but it does not answer
    │   ├── NotCommitted           the server rolled back instead
    │   ├── DatabaseRefused
    │   ├── MissingPrivilege
    │   ├── SchemaNotMigrated
    │   ├── SchemaTooNew
    │   ├── SchemaDrift
    │   └── SweepUnderWay
    ├── LeaseLost                  another process took over; nothing was written
    ├── TransportUnavailable       the whole destination is down; no attempt is counted
    ├── HandlerTimeout
    ├── ConsumerNameTaken
    ├── ConsumerRenamed
    ├── EmbeddedPostgresError
    ├── RepairError                an operator's request cannot be carried out
    │   ├── SelectionError
    │   ├── LetterNotFound
    │   ├── PastHorizon            events might be handled twice
    │   ├── OperationBusy
    │   └── SetChanged             the selection has changed since it was counted
    ├── Unauthorized               missing or invalid credentials
    ├── FeedError                  a feed cannot answer a request
    │   ├── BadParameter
    │   ├── InvalidCursor
    │   ├── CursorGone             the log no longer has the events after this cursor
    │   ├── FeedHeld               reading the next event needs newer code
    │   └── UnknownStrand
    ├── FeedsFailed                the log reader of this process has failed for good
    ├── FollowError                a feed cannot be followed from here
    │   ├── FeedRefused            the server refuses, and waiting does not help
    │   └── BookmarkError          a reader's position cannot be read or saved
    ├── BotError                   the Telegram bot cannot work with its configuration
    │   ├── TelegramRefused        Telegram does not accept the token
    │   └── StateError             the bot's state cannot be used
    │       ├── StateTaken         another bot uses it
    │       └── StateUnavailable   it cannot be read or written at the moment
    ├── DrainFailed                in a test: a handler or the transport failed
    ├── DrainNeverEnded            in a test: there is always more to do
    └── MissingExtra               an optional dependency is not installed

A message says what went wrong, with the value, and what to do about it.
"""

from typing import Any, Final, Literal

_LONGEST_MESSAGE: Final = 500


class AftercommitError(Exception):
    """Base class of all errors that aftercommit raises."""


class DeclarationError(AftercommitError):
    """A declaration (event type, scope, consumer, view, setting) cannot work as written."""


class DuplicateDeclaration(DeclarationError):
    """A name was declared twice, so one of the two declarations could never be used."""


class ContractViolation(AftercommitError):
    """An event breaks its contract. It was refused, and nothing was written."""


class UnknownEventType(ContractViolation):
    """The event's type was never declared on this outbox."""


class InvalidPayload(ContractViolation):
    """The payload does not match its event type; `field` says where."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class PayloadTooLarge(ContractViolation):
    """The encoded payload exceeds the outbox's size limit."""


class InvalidEnvelope(ContractViolation):
    """A part of the envelope (name, time, id, correlation) is malformed or too long."""


class IdempotencyConflict(ContractViolation):
    """The idempotency key was used before, in the same scope, for different events."""


class ScopeViolation(ContractViolation):
    """A declared scope value is missing, mistyped or not declared."""


class AudienceViolation(ContractViolation):
    """The audience is missing, not a list of names, or given although the outbox declares no audience."""


class NotInTransaction(AftercommitError):
    """`publish` was called outside a transaction, where it could not guarantee anything."""


class UnsupportedConnection(AftercommitError):
    """The object given to `publish` is not a connection or session that aftercommit knows."""


class UnreadableEvent(AftercommitError):
    """This process cannot read a recorded event. The event is kept."""


class NewerSchemaVersion(UnreadableEvent):
    """Newer code than this process runs has written the event."""


class NewerVersion(NewerSchemaVersion):
    """The event has a newer version than this process knows, or a type that it does not know (then `known` is 0).

    Consumers wait for newer code before they go on.
    """

    def __init__(self, message: str, *, event_type: str, version: int, known: int) -> None:
        super().__init__(message)
        self.event_type = event_type
        self.version = version
        self.known = known

    @property
    def kind(self) -> tuple[str, int]:
        """The event type and the version that newer code has to know."""
        return self.event_type, self.version


class DatabaseError(AftercommitError):
    """The database cannot be used in its present state."""


class DatabaseUnavailable(DatabaseError):
    """The database cannot be reached now. A later attempt may succeed."""


class DatabaseSilent(DatabaseUnavailable):
    """The database did not answer within `seconds`. It may have executed the statement all the same."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the database did not answer within {seconds:g} s: try again")
        self.seconds = seconds


class NotCommitted(DatabaseError):
    """The server rolled the transaction back instead of committing it: nothing was written."""


class DatabaseRefused(DatabaseError):
    """The server refuses this user, password, database or setting; waiting does not help."""


class MissingPrivilege(DatabaseError):
    """The database user lacks a privilege."""


class SchemaNotMigrated(DatabaseError):
    """The tables are missing or older than this code."""


class SchemaTooNew(DatabaseError):
    """Newer code than this has migrated the tables, and this code cannot work with them."""


class SchemaDrift(DatabaseError):
    """The tables differ from what this code and its declarations need."""


class LeaseLost(AftercommitError):
    """Another process has taken over the lease, and the fence refused the write."""


class TransportUnavailable(AftercommitError):
    """The whole destination cannot be reached. Events wait, and no attempt is counted."""


class HandlerTimeout(AftercommitError):
    """A handler did not finish within its declared time."""


class ConsumerNameTaken(AftercommitError):
    """Another running program uses this consumer name."""


class ConsumerRenamed(AftercommitError):
    """A consumer has no checkpoint, and there is a checkpoint without a consumer: probably it was renamed."""


class EmbeddedPostgresError(AftercommitError):
    """The embedded PostgreSQL could not be started, reached or stopped."""


class MissingExtra(AftercommitError):
    """An optional dependency is not installed."""

    def __init__(self, extra: str, module: str) -> None:
        super().__init__(
            f"{module!r} is not installed. Install aftercommit with the extra {extra!r}, for example with "
            f"`pip install -e '.[{extra}]'` in a clone"
        )
        self.extra = extra
        self.module = module


class SweepUnderWay(DatabaseError):
    """Another program is running a retention round at the moment."""


class DrainFailed(AftercommitError):
    """A test drained an outbox and something failed; `drained` has the details, the cause is the handler's error."""

    def __init__(self, message: str, drained: Any) -> None:
        super().__init__(message)
        self.drained = drained


class DrainNeverEnded(AftercommitError):
    """A test drained an outbox, and there was always more to do."""


class RepairError(AftercommitError):
    """An operator's request (a retry, an edit, a replay) cannot be carried out; nothing was changed."""


class SelectionError(RepairError):
    """A selection of events or dead letters is malformed, or names something that the outbox does not have."""


class LetterNotFound(RepairError):
    """There is no such dead letter, or its state does not allow the action."""


class PastHorizon(RepairError):
    """The inbox no longer knows whether `count` of the events were handled, so a replay might handle them twice."""

    def __init__(self, message: str, count: int) -> None:
        super().__init__(message)
        self.count = count


class OperationBusy(RepairError):
    """Another process drives this operation right now."""


class SetChanged(RepairError):
    """The selection matches a different number of events than when it was counted; nothing was started."""

    def __init__(self, message: str, expected: int, found: int) -> None:
        super().__init__(message)
        self.expected = expected
        self.found = found


class FeedsFailed(AftercommitError):
    """The log reader behind this process's feeds has failed for good: restart the process."""


class Unauthorized(AftercommitError):
    """Missing or invalid credentials.

    The message is always the same, because a precise one would help attackers. `reason` is the precise one, for our
    own log. `hint` goes to the client: only a development server gives one.
    """

    def __init__(self, reason: str, hint: str | None = None) -> None:
        super().__init__("Missing or invalid authentication token")
        self.reason = reason
        self.hint = hint


class FeedError(AftercommitError):
    """A feed cannot answer a request."""


class BadParameter(FeedError):
    """A request parameter has a value that the feed does not accept."""

    def __init__(self, parameter: str, value: str, reason: str) -> None:
        super().__init__(f"{parameter}={value!r:.100}: {reason}")
        self.parameter = parameter
        self.value = value
        self.reason = reason


class InvalidCursor(FeedError):
    """The text is not a cursor of this feed. `remedy` differs between a query parameter and a header."""

    def __init__(self, text: str, reason: str, remedy: str | None = None) -> None:
        super().__init__(f"Invalid cursor format: {reason}" + (f", {remedy}" if remedy is not None else ""))
        self.text = text
        self.reason = reason
        self.parameter = "cursor"


class CursorGone(FeedError):
    """The log no longer has the events after this cursor; continue from `restart`, before the oldest event.

    `reason` is `retention` (events after the cursor were dropped) or `epoch` (the log was restored, and the cursor
    belongs to its previous life).
    """

    def __init__(self, reason: Literal["retention", "epoch"], message: str, restart: Any) -> None:
        super().__init__(message)
        self.reason = reason
        self.restart = restart


class FeedHeld(FeedError):
    """Newer code than this process runs has written the next event; `known` is the version known here, None if the type
    is unknown. The feed shows no later event until it can read this one."""

    def __init__(self, event_type: str, version: int, known: int | None) -> None:
        here = f"knows version {known}" if known is not None else "does not know this type"
        super().__init__(
            f"The next event is {event_type:.100} version {version}, and this server {here}: newer code is needed to "
            "read it. Try again"
        )
        self.event_type = event_type
        self.version = version
        self.known = known


class UnknownStrand(FeedError):
    """The key is malformed: the feed cannot have events for it."""


class FollowError(AftercommitError):
    """A feed cannot be followed as requested."""


class FeedRefused(FollowError):
    """The server refuses, and waiting does not help. `status`, `code`, `message` and `details` come from the server.

    The error text shortens a long message; `message` has all of it.
    """

    def __init__(
        self, status: int, code: str | None, message: str, details: dict[str, Any], retry_after: float | None = None
    ) -> None:
        super().__init__(f"The feed answered {status}{f' {code}' if code else ''}: {message[:_LONGEST_MESSAGE]}")
        self.status = status
        self.code = code
        self.message = message
        self.details = details
        self.retry_after = retry_after


class BookmarkError(FollowError):
    """The reader's position cannot be read from or saved to the configured place."""


class BotError(AftercommitError):
    """The Telegram bot cannot work with its configuration."""


class TelegramRefused(BotError):
    """Telegram does not accept the bot's token, and waiting does not help. The message does not contain the token."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"Telegram refuses the bot's token ({reason}): set AFTERCOMMIT_BOT_TOKEN to one that @BotFather has given"
        )
        self.reason = reason


class StateError(BotError):
    """The bot's state cannot be used."""


class StateTaken(StateError):
    """Another bot uses the same state; two bots would send everything twice."""


class StateUnavailable(StateError):
    """The bot's state cannot be read or written at the moment."""
