"""Impossible states are impossible: every named CHECK of the tables refuses what it is there to refuse."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from aftercommit.testing.postgres import PostgresServerForTests
from tests.support.engine import connected, migrate_up

OUTBOX = (
    "insert into outbox (id, aggregate_type, aggregate_id, event_type, correlation_id, payload, {columns}) "
    "values (gen_random_uuid(), {names}, '{{}}', {values})"
)
LETTER = (
    "insert into dead_letter_events (event_id, consumer_name, event_type, schema_version, aggregate_type, "
    "aggregate_id, occurred_at, correlation_id, payload, seq, created_at, error, error_class, {columns}) "
    "values "
    "(gen_random_uuid(), 'index', 'placed', 1, 'order', '1', now(), 'because', '{{}}', 1, now(), 'broken', "
    "'Error', "
    "{values})"
)


def outbox(names: str = "'order', '1', 'placed', 'because'", **columns: str) -> str:
    columns = {"status": "'pending'", **columns}
    return OUTBOX.format(names=names, columns=", ".join(columns), values=", ".join(columns.values()))


def letter(**columns: str) -> str:
    columns = {"status": "'parked'", "attempts": "1", **columns}
    return LETTER.format(columns=", ".join(columns), values=", ".join(columns.values()))


CONSUMER = "insert into consumer (name, declared_by, position{columns}) values ('index', 'test', {values})"
LOG = (
    "insert into log (position, ts, id, seq, lane, aggregate_type, aggregate_id, event_type, schema_version, "
    "occurred_at, correlation_id, payload, retry_count, created_at) values (0, now(), gen_random_uuid(), 1, "
    "1, "
    "'order', '1', 'placed', 1, now(), 'because', '{}', 0, now())"
)

OPERATION = (
    "insert into operation (id, requested_by, target, selection, {columns}) "
    "values (gen_random_uuid(), 'me', '@owner', '{{}}', {values})"
)


def operation(**columns: str) -> str:
    columns = {"kind": "'replay'", **columns}
    return OPERATION.format(columns=", ".join(columns), values=", ".join(columns.values()))


VIOLATIONS = {
    "head_is_one_row": "insert into head (only_row) values (false)",
    "head_position_is_not_negative": "update head set position = -1",
    "head_gaps_are_behind_it": "update head set gaps = '{[1,5]}'",
    "life_is_numbered_from_one": "insert into life values (0, 1, 0, now(), gen_random_uuid(), '')",
    "life_begins_above_the_one_before": "insert into life values (2, 7, 7, now(), gen_random_uuid(), '')",
    "outbox_status_is_known": outbox(status="'published'"),
    "outbox_retry_count_is_not_negative": outbox(retry_count="-1"),
    "outbox_schema_version_is_positive": outbox(schema_version="0"),
    "outbox_failed_has_error_and_no_retry": outbox(status="'failed'", retry_count="1"),
    "outbox_names_are_not_empty": outbox(names="'order', '', 'placed', 'because'"),
    "outbox_occurred_at_is_readable": outbox(occurred_at="'infinity'"),
    # Asked of a table beside the log: in the log itself no partition takes such a position.
    "log_position_is_positive": "create temp table log (like log including constraints); " + LOG,
    "stream_seq_is_positive": "insert into stream (aggregate_type, aggregate_id, seq, ts) values ('a', '1', 0, now())",
    "lane_is_in_range": "insert into lane (lane) values (64)",
    "lane_is_held_or_free": "update lane set relay = gen_random_uuid() where lane = 0",
    "relay_lease_knows_its_length": "insert into relay (id, name, leased_until) values (gen_random_uuid(), 'r', now())",
    "published_key_names_events": "insert into published_key (key, event_ids) values ('once', '{}')",
    "consumer_position_is_not_negative": CONSUMER.format(columns="", values="-1"),
    "consumer_is_held_or_free": CONSUMER.format(columns=", worker", values="0, 'somebody'"),
    "consumer_suspect_is_counted": CONSUMER.format(columns=", suspect_attempts", values="0, 1"),
    "consumer_lanes_are_in_range": CONSUMER.format(columns=", lanes", values="0, 65"),
    "consumer_worker_lease_has_a_length": (
        "insert into consumer_worker values ('index', gen_random_uuid(), 'here:1', now(), 0)"
    ),
    "dead_letter_status_is_known": letter(status="'lost'"),
    "dead_letter_retry_has_a_time": letter(status="'retrying'"),
    "dead_letter_attempts_are_not_negative": letter(attempts="-1"),
    "dead_letter_history_is_a_list": letter(history="'{}'"),
    "operation_kind_is_known": operation(kind="'wish'"),
    "operation_status_is_known": operation(status="'stuck'", finished_at="now()"),
    "operation_ends_once": operation(status="'done'"),
    "operation_is_driven_or_free": operation(driver="gen_random_uuid()"),
    "operation_rate_is_positive": operation(per_second="0"),
    "operation_event_state_is_known": (
        "insert into operation_event (operation_id, ordinal, event_id, state) "
        "values (gen_random_uuid(), 1, gen_random_uuid(), 'lost')"
    ),
    "service_token_hash_is_sha256": (
        "insert into service_token (id, name, secret_hash, permissions) values ('a', 'b', '', '{}')"
    ),
    "revoked_token_kind_is_known": "insert into revoked_token (kind, value) values ('planet', 'x')",
    "rate_window_is_counted": "insert into rate_window values ('user', 'x', 60, 1, 0)",
    "rate_log_counts_each_moment": "insert into rate_log values ('user', 'x', 60, 0, '{1}', '{}')",
    "version_wait_is_for_newer_code": (
        "insert into version_wait (consumer_name, event_type, version, known, since, until, seen_at) "
        "values ('index', 'order.placed', 1, 1, now(), now(), now())"
    ),
    "upkeep_keeps_some_time": "update upkeep set keep = interval '0'",
    "upkeep_pass_has_begun": "update upkeep set next_page = 1",
    "upkeep_page_is_not_negative": "update upkeep set next_page = -1, began_at = now()",
    "upkeep_kept_back_is_an_object": "update upkeep set kept_back = '[]'",
}


@pytest.fixture(scope="module")
def connection(postgres_server: PostgresServerForTests) -> Iterator[psycopg.Connection[Any]]:
    dsn = postgres_server.clone(postgres_server.template("plain outbox", prepare=migrate_up))
    with connected(dsn, options="-c search_path=aftercommit") as connection:
        yield connection


@pytest.mark.parametrize("constraint", VIOLATIONS)
def test_an_impossible_state_is_refused_by_its_constraint(connection, constraint):
    with pytest.raises(psycopg.errors.CheckViolation) as refused:
        connection.execute(VIOLATIONS[constraint].encode())

    assert refused.value.diag.constraint_name == constraint


@pytest.mark.parametrize("column", ["next_retry_at", "last_error", "retry_count"])
def test_a_failed_event_has_an_error_and_an_attempt_and_waits_for_no_retry(connection, column):
    state = {"status": "'failed'", "retry_count": "1", "last_error": "'broken'", "next_retry_at": "null"}
    wrong = {"next_retry_at": "now()", "last_error": "null", "retry_count": "0"}
    connection.execute(outbox(**state).encode())

    with pytest.raises(psycopg.errors.CheckViolation) as refused:
        connection.execute(outbox(**{**state, column: wrong[column]}).encode())

    assert refused.value.diag.constraint_name == "outbox_failed_has_error_and_no_retry"


def test_every_constraint_is_violated_once(connection):
    query = """
        select distinct conname::text from pg_constraint
        where connamespace = 'aftercommit'::regnamespace and contype = 'c' and conislocal and coninhcount = 0
    """

    assert {row[0] for row in connection.execute(query)} == set(VIOLATIONS)


def test_every_constraint_has_a_name_that_says_what_holds(connection):
    query = """
        select conname::text from pg_constraint
        where connamespace = 'aftercommit'::regnamespace and contype = 'c' and conname ~ '_check[0-9]*$'
    """

    assert connection.execute(query).fetchall() == []
