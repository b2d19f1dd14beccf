"""Rows to records: the one place that knows in which order the queries return an event's columns."""

from collections.abc import Sequence
from typing import Any

from aftercommit.event.envelope import Record
from aftercommit.postgres.shape import Shape


def outbox_record(row: Sequence[Any], shape: Shape) -> Record:
    """A row of `load_due`."""
    return Record(
        event_id=row[0],
        seq=row[1],
        lane=row[2],
        event_type=row[3],
        schema_version=row[4],
        aggregate_type=row[5],
        aggregate_id=row[6],
        occurred_at=row[7],
        correlation_id=row[8],
        causation_id=row[9],
        payload=row[10],
        retry_count=row[11],
        created_at=row[12],
        scope=dict(zip(shape.scope, row[13:], strict=True)),
    )


def log_record(row: Sequence[Any], shape: Shape) -> Record:
    """A row of `read_log` or `due_letters`."""
    return Record(
        position=row[0],
        ts=row[1],
        stream_seq=row[2],
        event_id=row[3],
        seq=row[4],
        lane=row[5],
        event_type=row[6],
        schema_version=row[7],
        aggregate_type=row[8],
        aggregate_id=row[9],
        occurred_at=row[10],
        correlation_id=row[11],
        causation_id=row[12],
        payload=row[13],
        retry_count=row[14],
        created_at=row[15],
        scope=dict(zip(shape.scope, row[16:], strict=True)),
    )
