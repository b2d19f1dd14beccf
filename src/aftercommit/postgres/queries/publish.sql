-- name: publish_one
-- One event in the caller's transaction; the doorbell rings at its commit, and only while a relay is listening. It says
-- for which lane, so that of several carriers one gets up. The bell hangs on a condition that is always true: evaluated
-- once, and cheaper than a query around the INSERT.
-- These statements run in a session of the caller's, whose search_path is anything: built-in functions and operators are called by
-- their full name.
insert into {schema}.outbox ({names})
select event.*
from (select {values}) as event ({names})
where coalesce((
    select pg_catalog.pg_notify({channel}, (
               pg_catalog.hashtextextended(event.aggregate_type operator(pg_catalog.||) '/' operator(pg_catalog.||) event.aggregate_id, 0)
               operator(pg_catalog.&) 63
           )::text)::text
    from {schema}.relay where listening limit 1
) operator(pg_catalog.<>) 'never', true)

-- name: publish_one_unprepared
-- The same for drivers that write values into the statement, which is then planned anew each time: this form is the
-- slower one to run and by far the quicker one to plan.
insert into {schema}.outbox ({names})
values ({values})
returning (select pg_catalog.pg_notify({channel}, outbox.lane::text) from {schema}.relay where listening limit 1)

-- name: publish_many
-- Many events in one statement, in the given order. What is the same for all of them comes as an array of one value.
insert into {schema}.outbox (id, aggregate_type, aggregate_id, event_type, schema_version, occurred_at, correlation_id, causation_id, payload {scope_names})
select {columns}
from {events}
where coalesce((select pg_catalog.pg_notify({channel}, '')::text from {schema}.relay where listening limit 1) operator(pg_catalog.<>) 'never', true)

-- name: publish_once
-- With an idempotency key: nothing is written when the key is known. A concurrent holder of the key is waited for.
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
    select pg_catalog.pg_notify({channel}, '') from {schema}.relay, fresh where listening limit 1
)
select (select pg_catalog.count(*) from fresh), (select pg_catalog.count(*) from rung)

-- name: find_key
-- The events that the first publish under this key wrote, and what they said.
select event_ids, fingerprint from {schema}.published_key where key operator(pg_catalog.=) {key} and scope operator(pg_catalog.=) {scope_text}
