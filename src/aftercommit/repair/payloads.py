"""Whether another payload may take the place of the one that a dead letter has. Decides only; nothing is written."""

import msgspec

from aftercommit.errors import InvalidPayload, UnreadableEvent
from aftercommit.event import json_rules
from aftercommit.event.definition import EventType
from aftercommit.event.envelope import Record
from aftercommit.repair.ground import Ground
from aftercommit.repair.letters import LetterDetail


def checked_payload(ground: Ground, letter: LetterDetail, payload: bytes) -> str:
    """The payload as text that can be stored, if it is what the event's type promises; InvalidPayload otherwise."""
    try:
        document = msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise InvalidPayload(f"the new payload is not JSON: {problem}", field="$") from problem
    if not isinstance(document, dict):
        raise InvalidPayload(f"the new payload must be a JSON object, not {payload[:40]!r}", field="$")
    json_rules.check(document, typed=False)
    if ground.outbox is not None:
        _check_type(ground.outbox.registry.named(letter.event_type), letter, payload)
    return payload.decode()


def _check_type(event_type: EventType, letter: LetterDetail, payload: bytes) -> None:
    # As a handler will read it, lifted to the version of this code; and as a publisher would have had to write it.
    read = event_type.read(_stored(letter, payload)).payload
    event_type.encode(read)
    named = event_type.aggregate_id_of(read)
    if named not in (None, letter.aggregate_id, _former_key(event_type, letter)):
        raise InvalidPayload(
            f"the new payload is of {letter.aggregate_type} {named!r:.80}, but the event is of {letter.aggregate_id!r} "
            "and keeps its place there: discard the letter and publish another event instead",
            field=f"$.{event_type.key}" if isinstance(event_type.key, str) else None,
        )


def _former_key(event_type: EventType, letter: LetterDetail) -> str | None:
    """What the key said before: a publisher may have named another aggregate by hand. None when it cannot be read."""
    try:
        return event_type.aggregate_id_of(event_type.read(_stored(letter, letter.payload.encode())).payload)
    except (UnreadableEvent, InvalidPayload):
        return None


def _stored(letter: LetterDetail, payload: bytes) -> Record:
    return Record(
        event_id=letter.event_id,
        event_type=letter.event_type,
        schema_version=letter.schema_version,
        aggregate_type=letter.aggregate_type,
        aggregate_id=letter.aggregate_id,
        occurred_at=letter.occurred_at,
        correlation_id=letter.correlation_id,
        causation_id=letter.causation_id,
        scope=dict(letter.scope),
        payload=payload,
        created_at=letter.created_at,
        seq=0,
    )
