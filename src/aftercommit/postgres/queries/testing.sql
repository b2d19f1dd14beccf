-- name: kit_published_events
-- All events that this transaction sees, in the order of publishing. As text, so that every driver reads the same.
select row_to_json(event)::text, payload_text
from (
    select id as event_id, seq, lane, event_type, schema_version, aggregate_type, aggregate_id, occurred_at, correlation_id,
           causation_id, retry_count, created_at, null::bigint as position, status::text as status,
           payload::text as payload_text {scope_names}
    from {schema}.outbox
    union all
    select id, seq, lane, event_type, schema_version, aggregate_type, aggregate_id, occurred_at, correlation_id,
           causation_id, retry_count, created_at, position, 'published', payload::text {scope_names}
    from {schema}.log
) event
order by seq, position

-- name: kit_drain_state
-- The work left and the progress of all services: two equal answers mean that nothing changes any more.
select (select count(*) from {schema}.outbox where status = 'pending'),
       (select coalesce(sum(retry_count), 0)::bigint from {schema}.outbox),
       (select position from {schema}.head),
       (select coalesce(json_object_agg(name, position), '{{}}')::text from {whole_consumers} consumer)

-- name: kit_letters_of_all
-- All dead letters, in the order of publishing.
select event_id, consumer_name::text, status::text, event_type::text, attempts, error, error_class
from {schema}.dead_letter_events
order by seq, consumer_name

-- name: kit_expire_leases
-- Expires the leases of lanes and consumers, as after the death of their holders.
with lanes as (
    update {schema}.lane set leased_until = '-infinity' where relay is not null
),
relays as (
    delete from {schema}.relay
),
workers as (
    delete from {schema}.consumer_worker
)
update {schema}.consumer set leased_until = '-infinity' where token is not null and (lanes = 1 or strpos(name, '#') > 0)

-- name: kit_bring_forward
-- Moves all retries back by the same time, so that their order stays and the last one is due.
with outbox_span as (
    select max(next_retry_at) - statement_timestamp() as span from {schema}.outbox where status = 'pending'
),
letter_span as (
    select max(next_retry_at) - statement_timestamp() as span from {schema}.dead_letter_events where status = 'retrying'
),
events as (
    update {schema}.outbox set next_retry_at = next_retry_at - greatest(span, interval '0')
    from outbox_span where status = 'pending' and next_retry_at is not null
    returning 1
),
letters as (
    update {schema}.dead_letter_events set next_retry_at = next_retry_at - greatest(span, interval '0')
    from letter_span where status = 'retrying'
    returning 1
)
select (select count(*) from events) + (select count(*) from letters)

-- name: kit_steal_lanes
-- Another relay takes the lanes and dies at once: the former holder is fenced, and may take them again.
update {schema}.lane
set relay = gen_random_uuid(), token = gen_random_uuid(), leased_until = '-infinity'
where relay is not null
returning lane

-- name: kit_steal_consumer
-- The same for the lease of a consumer.
update {schema}.consumer
set worker = 'somebody else', token = gen_random_uuid(), leased_until = '-infinity'
where split_part(name, '#', 1) = %(consumer)s and token is not null and (lanes = 1 or strpos(name, '#') > 0)
returning name

-- name: kit_rewind_consumer
-- Moves the checkpoint back, and clears the lease: the events come again, and the inbox knows them.
update {schema}.consumer
set position = least(position, %(position)s), worker = null, token = null, leased_until = null, lease_seconds = null
where split_part(name, '#', 1) = %(consumer)s
returning position

-- name: kit_forget_handled
-- Removes an event from a consumer's inbox.
delete from {schema}.processed_events where event_id = %(event_id)s and consumer_name = %(consumer)s returning event_id

-- name: kit_remember_handled
-- Puts it back.
insert into {schema}.processed_events (event_id, consumer_name) values (%(event_id)s, %(consumer)s)
on conflict do nothing

-- name: kit_terminate_sessions
-- Ends the sessions in this database with this application_name (null: all but this one).
select pg_terminate_backend(pid, 5000)
from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
  and (%(application)s::text is null or application_name in (%(application)s, left(%(application)s, 50) || ' (slice)'))

-- name: kit_blocked_sessions
-- How many sessions of this database wait for a lock.
select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'

-- name: kit_patience
-- A bound for the wait for a locked row.
set lock_timeout = '10s'
