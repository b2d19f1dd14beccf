"""Checks whether a new payload may replace the one of a dead letter. Writes nothing."""

import json
from typing import Any, Final

import msgspec

from aftercommit.errors import InvalidPayload, PayloadTooLarge, UnreadableEvent
from aftercommit.event import json_rules
from aftercommit.event.definition import EventType
from aftercommit.event.envelope import Record
from aftercommit.operate.repair.letters import LetterDetail
from aftercommit.operate.repair.session import RepairSession
from aftercommit.outbox.declaration import MAX_PAYLOAD_BYTES

# No type accepts this. If an event type does not object to it in place of a value, it does not read that value.
_NONSENSE: Final[list[Any]] = [{"": [[]]}]


def checked_payload(session: RepairSession, letter: LetterDetail, payload: bytes) -> str:
    """The payload as text, if it matches the event's type; InvalidPayload otherwise."""
    _check_size(session, letter, payload)
    document = _document(payload)
    json_rules.check(document, typed=False)
    if session.outbox is not None:
        _check_type(session.outbox.registry.named(letter.event_type), letter, payload, document)
    return payload.decode()


def _check_size(session: RepairSession, letter: LetterDetail, payload: bytes) -> None:
    if session.outbox is not None:
        limit, remedy = session.outbox.max_payload_bytes, "raise Outbox(max_payload_bytes=…)"
    else:
        # The old payload was within the limit, whatever that is.
        limit = max(MAX_PAYLOAD_BYTES, len(letter.payload.encode()))
        remedy = "if your outbox allows more, name it with --app"
    if len(payload) > limit:
        raise PayloadTooLarge(
            f"the new payload has {len(payload):,} bytes, and the limit is {limit:,}: store the large part elsewhere "
            f"and refer to it, or {remedy}"
        )


def _document(payload: bytes) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(payload)
        # Readers differ in which of two equal keys they keep, so refuse duplicates here.
        json.loads(payload, object_pairs_hook=_refuse_doubles, parse_int=str, parse_float=str)
    except (msgspec.DecodeError, ValueError, RecursionError) as problem:
        raise InvalidPayload(f"the new payload is not JSON: {problem}", field="$") from problem
    if not isinstance(document, dict):
        raise InvalidPayload(f"the new payload must be a JSON object, not {payload[:40]!r}", field="$")
    return document


def _refuse_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise InvalidPayload(f"the new payload has the key {key!r:.80} twice in one object: keep one of them")
        found[key] = value
    return found


def _check_type(event_type: EventType, letter: LetterDetail, payload: bytes, document: dict[str, Any]) -> None:
    # Check it as a handler will read it, upcast to the current version, and as a publisher would write it.
    read = event_type.read(_stored(letter, payload)).payload
    written = event_type.encode(read)
    _refuse_unread(event_type, letter, document, written)
    named = event_type.aggregate_id_of(read)
    if named not in (None, letter.aggregate_id, _former_key(event_type, letter)):
        raise InvalidPayload(
            f"the new payload names {letter.aggregate_type} {named!r:.80}, but the event belongs to "
            f"{letter.aggregate_id!r}, which cannot change: discard the letter and publish another event instead",
            field=f"$.{event_type.key}" if isinstance(event_type.key, str) else None,
        )


def _refuse_unread(event_type: EventType, letter: LetterDetail, document: dict[str, Any], written: bytes) -> None:
    """Refuse a key that the type does not read, probably a typing error, unless the old payload has it too."""
    allowed = {*msgspec.json.decode(written), *_former(letter)}
    for key in [key for key in document if key not in allowed]:
        changed = msgspec.json.encode({**document, key: _NONSENSE})
        try:
            is_read = event_type.encode(event_type.read(_stored(letter, changed)).payload) != written
        except (UnreadableEvent, InvalidPayload):
            is_read = True
        if not is_read:
            known = ", ".join(sorted(allowed))
            raise InvalidPayload(
                f"the new payload has the key {key!r:.80}, which {event_type.name} does not read: use {known}",
                field=json_rules.dotted([key]),
            )


def _former(letter: LetterDetail) -> dict[str, Any]:
    former = msgspec.json.decode(letter.payload)
    return former if isinstance(former, dict) else {}


def _former_key(event_type: EventType, letter: LetterDetail) -> str | None:
    """The aggregate that the old payload names; a publisher may have given another one. None if it is unreadable."""
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
