-- name: relay_listens
-- Whether a relay sleeps until somebody rings. The statement has locked the outbox before it asks: a relay that falls asleep after the answer
-- sees that lock, and looks for itself. The function reads a sequence, which takes a third of the time of a query on the table of relays.
pg_catalog.pg_sequence_last_value({doorbell}::pg_catalog.regclass) is not null

-- name: publish_one
-- One event in the caller's transaction. At the commit, the doorbell wakes the relay, but only while one listens; it names the lane, so
-- that only one carrier wakes. The bell is in a condition that is always true.
-- These statements run in the caller's session, whose search_path can be anything, so built-in functions and operators have full names.
-- Without a correlation id, the event's own id is one.
insert into {schema}.outbox ({names} {correlation_name})
select event.* {correlation}
from (select {values}) as event ({names})
where case when {relay_listens} then pg_catalog.pg_notify({channel}, (
               pg_catalog.hashtextextended(event.aggregate_type operator(pg_catalog.||) '/' operator(pg_catalog.||) event.aggregate_id, 0)
               operator(pg_catalog.&) 63
           )::text)::text operator(pg_catalog.<>) 'never' else true end

-- name: publish_one_unprepared
-- The same for drivers that put values into the statement, which is planned every time: slower to run, but much quicker to plan.
insert into {schema}.outbox ({names})
values ({values})
returning case when {relay_listens} then pg_catalog.pg_notify({channel}, outbox.lane::text) end

-- name: publish_many
-- Many events in one statement, in the given order. A value that all events share is an array of one. The bell is in a query of its own,
-- which is evaluated once.
insert into {schema}.outbox (id, aggregate_type, aggregate_id, event_type, schema_version, occurred_at, correlation_id, causation_id, payload {scope_names})
select {columns}
from {events}
where coalesce((select case when {relay_listens} then pg_catalog.pg_notify({channel}, '')::text end) operator(pg_catalog.<>) 'never', true)

-- name: may_copy
-- Returned by publish_many when it writes the first of many events: whether COPY may write the others. COPY is refused under row level security,
-- and it skips rules. publish_many locks the outbox before it looks for a relay that sleeps; a separate statement before COPY would not.
(select not (pg_class.relhasrules or pg_catalog.row_security_active(pg_class.oid))
 from pg_catalog.pg_class where pg_class.oid operator(pg_catalog.=) {outbox}::pg_catalog.regclass)

-- name: publish_copy
-- Many events, in the binary format.
copy {schema}.outbox ({names}) from stdin (format binary)

-- name: publish_once
-- With an idempotency key: writes nothing if the key exists. Waits for a concurrent transaction with the same key.
with fresh as (
    insert into {schema}.published_key (key, scope, fingerprint, event_ids) values ({key}, {scope_text}, {fingerprint}, {ids})
    on conflict (key, scope) do nothing
    returning key
),
published as (
    insert into {schema}.outbox (id, aggregate_type, aggregate_id, event_type, schema_version, occurred_at, correlation_id, causation_id, payload {scope_names})
    select {columns}
    from fresh, {events}
),
rung as (
    select pg_catalog.pg_notify({channel}, '') from fresh where {relay_listens}
)
select (select pg_catalog.count(*) from fresh), (select pg_catalog.count(*) from rung)

-- name: find_key
-- The events of the first publish with this key, and their fingerprint.
select event_ids, fingerprint from {schema}.published_key where key operator(pg_catalog.=) {key} and scope operator(pg_catalog.=) {scope_text}
