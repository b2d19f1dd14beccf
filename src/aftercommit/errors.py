"""The errors that callers may want to catch, in one tree. Those that are only recorded stand where they arise.

    AftercommitError
    ├── DeclarationError           the code declares something that cannot work
    │   └── DuplicateDeclaration   a name is declared twice
    ├── ContractViolation          an event is refused before anything is written
    │   ├── UnknownEventType
    │   ├── InvalidPayload
    │   ├── PayloadTooLarge
    │   ├── InvalidEnvelope
    │   ├── IdempotencyConflict
    │   ├── ScopeViolation
    │   └── AudienceViolation
    ├── NotInTransaction           publish was called outside a transaction
    ├── UnsupportedConnection      publish got something that is not a connection it knows
    ├── UnreadableEvent            a recorded event cannot be turned into its type here
    │   └── NewerSchemaVersion
    │       └── NewerVersion       the same, and it says which version of which type
    ├── DatabaseError
    │   ├── DatabaseUnavailable
    │   │   └── DatabaseSilent     it is there, and does not answer
    │   ├── NotCommitted           the server rolled back instead
    │   ├── DatabaseRefused
    │   ├── MissingPrivilege
    │   ├── SchemaNotMigrated
    │   ├── SchemaTooNew
    │   ├── SchemaDrift
    │   └── SweepUnderWay
    ├── LeaseLost                  somebody else took over; nothing was written
    ├── TransportUnavailable       the destination as a whole is down; no attempt is spent
    ├── HandlerTimeout
    ├── ConsumerNameTaken
    ├── ConsumerRenamed
    ├── EmbeddedPostgresError
    ├── RepairError                what an operator asked for cannot be done as it was asked
    │   ├── SelectionError
    │   ├── LetterNotFound
    │   ├── PastHorizon            events might be handled twice
    │   └── OperationBusy
    ├── Unauthorized               whoever asks is not known, or no longer
    ├── FeedError                  what a reader of a feed asked for cannot be answered
    │   ├── BadParameter
    │   ├── InvalidCursor
    │   ├── CursorGone             the log no longer has what lies behind this cursor
    │   ├── FeedHeld               newer code is needed to read the next event
    │   └── UnknownStrand
    ├── FeedsFailed                what reads the log in this process has failed for good
    ├── FollowError                a feed cannot be followed from here
    │   ├── FeedRefused            the server refuses, and waiting does not help
    │   └── BookmarkError          a reader's place can be neither read nor kept
    ├── BotError                   the Telegram bot cannot work as it was told
    │   ├── TelegramRefused        Telegram does not know the token
    │   └── StateError             the bot's state cannot be used
    │       ├── StateTaken         another bot works on it
    │       └── StateUnavailable   at the moment
    ├── DrainFailed                in a test: a handler or the transport failed
    ├── DrainNeverEnded            in a test: there is always more to do
    └── MissingExtra               an optional dependency is not installed

A message says what was wrong, with the value, and what to do about it.
"""

from typing import Any, Final, Literal

_LONGEST_MESSAGE: Final = 500


class AftercommitError(Exception):
    """Base of everything raised by aftercommit."""


class DeclarationError(AftercommitError):
    """A declaration (event type, scope, consumer, view, setting) cannot work as written."""


class DuplicateDeclaration(DeclarationError):
    """A name was declared twice, so one of the two would never be reached."""


class ContractViolation(AftercommitError):
    """An event breaks its contract and was refused before anything was written."""


class UnknownEventType(ContractViolation):
    """The event's type was never declared on this outbox."""


class InvalidPayload(ContractViolation):
    """The payload is not what its event type promises; `field` names the place."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class PayloadTooLarge(ContractViolation):
    """The encoded payload is over the outbox's size limit."""


class InvalidEnvelope(ContractViolation):
    """A part of the envelope (name, time, id, correlation) is malformed or too long."""


class IdempotencyConflict(ContractViolation):
    """An idempotency key was used before, in the same scope, for other events."""


class ScopeViolation(ContractViolation):
    """A declared scope value is missing, mistyped or not declared."""


class AudienceViolation(ContractViolation):
    """Who hears of an event was not said, was said where the outbox declares no audience, or is not a list of names."""


class NotInTransaction(AftercommitError):
    """Publishing outside a transaction would break the promise, so it was refused."""


class UnsupportedConnection(AftercommitError):
    """The object given to publish is not a connection or session that aftercommit knows."""


class UnreadableEvent(AftercommitError):
    """A recorded event cannot be read by this process; it is parked, never dropped."""


class NewerSchemaVersion(UnreadableEvent):
    """The event was written by newer code than this process runs."""


class NewerVersion(NewerSchemaVersion):
    """The event has a newer version than this process knows, or a type that it does not know yet (then `known` is 0).

    Whoever reads it waits for newer code.
    """

    def __init__(self, message: str, *, event_type: str, version: int, known: int) -> None:
        super().__init__(message)
        self.event_type = event_type
        self.version = version
        self.known = known

    @property
    def kind(self) -> tuple[str, int]:
        """What is waited for: a type and its version."""
        return self.event_type, self.version


class DatabaseError(AftercommitError):
    """The database cannot be used as it is."""


class DatabaseUnavailable(DatabaseError):
    """No connection could be made; it may be possible later."""


class DatabaseSilent(DatabaseUnavailable):
    """The database did not answer within so many `seconds`. What it was asked to do may be done all the same."""

    def __init__(self, seconds: float) -> None:
        """How long it was waited for."""
        super().__init__(f"the database did not answer within {seconds:g} s: try again")
        self.seconds = seconds


class NotCommitted(DatabaseError):
    """The server did not say that it committed: nothing of the transaction was written."""


class DatabaseRefused(DatabaseError):
    """The server refuses this user, password, database or setting; waiting does not help."""


class MissingPrivilege(DatabaseError):
    """The database user may not do what is needed."""


class SchemaNotMigrated(DatabaseError):
    """The tables are missing or older than this code."""


class SchemaTooNew(DatabaseError):
    """The tables were migrated by newer code than this."""


class SchemaDrift(DatabaseError):
    """The tables differ from what this code and its declarations say."""


class LeaseLost(AftercommitError):
    """The lease was taken over by somebody else, and the write was refused by the fence."""


class TransportUnavailable(AftercommitError):
    """The destination as a whole cannot be reached; events wait and no attempt is spent."""


class HandlerTimeout(AftercommitError):
    """A handler did not finish within its declared time."""


class ConsumerNameTaken(AftercommitError):
    """Another program is alive under this consumer name."""


class ConsumerRenamed(AftercommitError):
    """A consumer has no checkpoint while another checkpoint has lost its consumer."""


class EmbeddedPostgresError(AftercommitError):
    """The embedded PostgreSQL could not be started, reached or stopped."""


class MissingExtra(AftercommitError):
    """An optional dependency is needed and not installed."""

    def __init__(self, extra: str, module: str) -> None:
        super().__init__(
            f"{module!r} is not installed. Install aftercommit with the extra {extra!r}, for example with "
            f"`pip install -e '.[{extra}]'` in a clone"
        )
        self.extra = extra
        self.module = module


class SweepUnderWay(DatabaseError):
    """Another program is doing a round of retention at this moment."""


class DrainFailed(AftercommitError):
    """A test drained an outbox and something failed; `drained` has the story, the cause is the handler's error."""

    def __init__(self, message: str, drained: Any) -> None:
        super().__init__(message)
        self.drained = drained


class DrainNeverEnded(AftercommitError):
    """A test drained an outbox and it did not come to an end."""


class RepairError(AftercommitError):
    """What an operator asked for (a retry, an edit, a replay) cannot be done as it was asked; nothing was changed."""


class SelectionError(RepairError):
    """A selection of events or dead letters cannot be read, or says something that the outbox does not have."""


class LetterNotFound(RepairError):
    """There is no such dead letter, or none in a state that allows what was asked."""


class PastHorizon(RepairError):
    """Of some events the inbox no longer knows whether they were handled, so a replay might handle them twice."""

    def __init__(self, message: str, count: int) -> None:
        super().__init__(message)
        self.count = count


class OperationBusy(RepairError):
    """Another process drives this operation right now."""


class SetChanged(RepairError):
    """Another number of events is chosen now than when they were counted; nothing was begun."""

    def __init__(self, message: str, expected: int, found: int) -> None:
        super().__init__(message)
        self.expected = expected
        self.found = found


class FeedsFailed(AftercommitError):
    """What reads the log for the feeds of this process has failed for good: the process has to be started anew."""


class Unauthorized(AftercommitError):
    """Whoever asks is not known, or no longer.

    Its text is always the same, because a closer one would help those who guess. `reason` says more, for our own log.
    `hint` is for the one who asks: only a server that was started for development gives one.
    """

    def __init__(self, reason: str, hint: str | None = None) -> None:
        super().__init__("Missing or invalid authentication token")
        self.reason = reason
        self.hint = hint


class FeedError(AftercommitError):
    """What a reader of a feed asked for cannot be answered as it was asked."""


class BadParameter(FeedError):
    """A parameter of a request has a value that the feed does not take."""

    def __init__(self, parameter: str, value: str, reason: str) -> None:
        super().__init__(f"{parameter}={value!r:.100}: {reason}")
        self.parameter = parameter
        self.value = value
        self.reason = reason


class InvalidCursor(FeedError):
    """A text is not a cursor of this feed. The remedy may depend on where it stood, in an address or in a header."""

    def __init__(self, text: str, reason: str, remedy: str | None = None) -> None:
        super().__init__(f"Invalid cursor format: {reason}" + (f", {remedy}" if remedy is not None else ""))
        self.text = text
        self.reason = reason
        self.parameter = "cursor"


class CursorGone(FeedError):
    """The log no longer has what lies behind this cursor; `restart` is the one to go on from, before the oldest event.

    `reason` is `retention` (events after the cursor were dropped) or `epoch` (the log was restored, and the cursor is
    of its former life).
    """

    def __init__(self, reason: Literal["retention", "epoch"], message: str, restart: Any) -> None:
        super().__init__(message)
        self.reason = reason
        self.restart = restart


class FeedHeld(FeedError):
    """The next event was written by newer code than this process runs; `known` is its version here, None for no such
    type. Nothing behind it is shown before somebody can read it."""

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
    """A feed cannot have events for this key, because of its form."""


class FollowError(AftercommitError):
    """A feed cannot be followed as it was asked."""


class FeedRefused(FollowError):
    """The server refuses, and waiting does not heal it: `status`, `code`, `message` and `details` are its own words.

    They are whole there; of a long message the text of the error has the beginning.
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
    """The place of a reader can be neither read nor kept where it was told to be."""


class BotError(AftercommitError):
    """The Telegram bot cannot work as it was told."""


class TelegramRefused(BotError):
    """Telegram does not know the bot's token, or no longer; waiting does not help. The token itself is never shown."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"Telegram refuses the bot's token ({reason}): set AFTERCOMMIT_BOT_TOKEN to one that @BotFather has given"
        )
        self.reason = reason


class StateError(BotError):
    """What the bot remembers cannot be used as it is."""


class StateTaken(StateError):
    """Another bot works on the same state; two would send everything twice."""


class StateUnavailable(StateError):
    """The bot's state can be neither read nor written at the moment."""
