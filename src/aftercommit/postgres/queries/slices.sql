-- name: mark
-- Set by every slice for its transaction. The server reports each change of application_name, also the one back at the end, so we see
-- without a query if a handler has ended the transaction, even if it has begun another.
-- During a statement, a server notices a lost client only with these settings. Otherwise a long statement of a killed worker would keep
-- its locks, and the standby would wait. A machine that vanishes is noticed within half a minute.
array[set_config('idle_in_transaction_session_timeout', %(patience)s, true),
             case when strpos(version(), 'linux') > 0 then set_config('client_connection_check_interval', '2s', true) end,
             set_config('tcp_keepalives_idle', '10', true), set_config('tcp_keepalives_interval', '5', true),
             set_config('tcp_keepalives_count', '3', true),
             set_config('application_name', left(current_setting('application_name'), 50) || ' (slice)', true),
             pg_current_xact_id()::text]

-- name: current_transaction
-- Whether a slice is still in the transaction that it has begun.
select pg_current_xact_id()::text

-- name: outcome_of_transaction
-- The outcome of a slice's transaction: committed, aborted or in progress.
select pg_xact_status(%(transaction)s::xid8)

-- name: session_settings
-- The settings of this session, SET LOCAL included, as name=value. Settings that the server reports to clients are compared there,
-- because poolers set them too.
select coalesce(array_agg(name || '=' || coalesce(setting, '') order by name), '{{}}') from pg_catalog.pg_settings
where source = 'session'
  and name not in ('application_name', 'idle_in_transaction_session_timeout', 'client_connection_check_interval', 'tcp_keepalives_idle',
                   'tcp_keepalives_interval', 'tcp_keepalives_count', 'jit', 'client_encoding', 'DateStyle', 'IntervalStyle',
                   'TimeZone', 'standard_conforming_strings')

-- name: begin_in_pool
-- Behind a pooler, other clients may have changed settings of the session. Sent in the same round trip as BEGIN.
begin; {session_settings}

-- name: commit_and_tidy
commit;
-- In the same round trip: resets everything that a handler can leave in a session. Prepared statements stay.
reset session authorization; reset all; set datestyle to iso; set jit to off; unlisten *; select pg_advisory_unlock_all(); close all; discard temp

-- name: tidy
-- The same after ROLLBACK.
reset session authorization; reset all; set datestyle to iso; set jit to off; unlisten *; select pg_advisory_unlock_all(); close all; discard temp

-- name: begin_slice
-- Opens a slice in the handler's transaction: the fence and the checkpoint in one row, then the inbox. An event with an inbox row is not
-- returned, and so not handled (null: all are new); a concurrent duplicate waits here and is then skipped.
-- The server ends the transaction if the handlers are silent for too long: their machine may be gone.
with fence as (
    update {schema}.consumer
    set position = greatest(position, %(position)s), updated_at = clock_timestamp(), suspect_position = null, suspect_attempts = 0,
        leased_until = clock_timestamp() + make_interval(secs => %(lease)s), lease_seconds = %(lease)s
    where name = %(checkpoint)s and token = %(token)s
    returning 1
),
inbox as (
    insert into {schema}.processed_events (event_id, consumer_name)
    select event_id, %(consumer)s from unnest(%(ids)s::uuid[]) as event_id, fence
    order by event_id
    on conflict do nothing
    returning event_id
)
select (select count(*) from fence), (select case when count(*) < cardinality(%(ids)s::uuid[]) then coalesce(array_agg(event_id), '{{}}') end from inbox),
       null, {mark}

-- name: begin_slice_early
-- The same before the events are in the log: takes those in the outbox for the next ones. They come last, with the position that the last
-- of them will have. If the append was quicker, they are in the log, and no longer in the outbox.
with waiting as (
    select id, event_type, row_number() over (order by position, seq) as place
    from (
        (select id, event_type, position, seq from {schema}.log
         where position > %(after)s
         order by position
         limit %(few)s::integer + 1)
        union all
        (select id, event_type, null, seq from {schema}.outbox
         where status = 'pending' and next_retry_at is null and seq > %(watermark)s and lane = any(%(lanes)s)
         order by seq
         limit %(few)s::integer + 1)
    ) next
),
expected as (
    select array_agg(id) as ids, max(place) as last
    from waiting
    where (%(types)s::text[] is null or event_type = any(%(types)s::text[]))
      and current_setting('transaction_isolation') = 'read committed'
    having count(*) > 0 and (select count(*) from waiting) <= %(few)s::integer
),
fence as (
    update {schema}.consumer
    set position = position + expected.last, updated_at = clock_timestamp(), suspect_position = null, suspect_attempts = 0,
        leased_until = clock_timestamp() + make_interval(secs => %(lease)s), lease_seconds = %(lease)s
    from expected
    where name = %(checkpoint)s and token = %(token)s and position = %(after)s
    returning position
),
inbox as (
    insert into {schema}.processed_events (event_id, consumer_name)
    select event_id, %(consumer)s from fence, expected, unnest(expected.ids) as event_id
    order by event_id
    on conflict do nothing
    returning event_id
)
select (select count(*) from fence),
       (select case when count(*) < (select cardinality(ids) from expected) then coalesce(array_agg(event_id), '{{}}') end from inbox),
       null, {mark}, (select ids from expected), (select position from fence), (select count(*) from waiting)

-- name: begin_slice_without_inbox
-- The same for a consumer without an inbox: the checkpoint alone says which events were handled, even if the answer to a COMMIT was
-- lost.
with before as (
    select name, position from {schema}.consumer where name = %(checkpoint)s and token = %(token)s for no key update
),
fence as (
    update {schema}.consumer
    set position = greatest(consumer.position, %(position)s), updated_at = clock_timestamp(), suspect_position = null, suspect_attempts = 0,
        leased_until = clock_timestamp() + make_interval(secs => %(lease)s), lease_seconds = %(lease)s
    from before where consumer.name = before.name
    returning before.position
)
select (select count(*) from fence), null, (select position from fence),
       {mark}

-- name: begin_shared_slice
-- One of several concurrent slices: they share the fence, and the checkpoint moves when all of them have committed.
with fence as (
    select 1 from {schema}.consumer where name = %(checkpoint)s and token = %(token)s for key share
),
inbox as (
    insert into {schema}.processed_events (event_id, consumer_name)
    select event_id, %(consumer)s from unnest(%(ids)s::uuid[]) as event_id, fence
    order by event_id
    on conflict do nothing
    returning event_id
)
select (select count(*) from fence), (select case when count(*) < cardinality(%(ids)s::uuid[]) then coalesce(array_agg(event_id), '{{}}') end from inbox),
       null, {mark}

-- name: begin_letters
-- The same for dead letters, which stay locked until the slice ends. The last column says that a letter has changed since it was read
-- (retried, edited, discarded): then the slice does not begin. A letter that waited behind the first of its aggregate may be due by now.
-- Without an inbox, the letter itself says that its event was not handled.
with fence as (
    select 1 from {schema}.consumer where name = %(checkpoint)s and token = %(token)s for key share
),
mine as (
    select letter.event_id
    from unnest(%(ids)s::uuid[], %(seen)s::timestamptz[], %(turns)s::timestamptz[]) as known (event_id, seen_at, turn)
    join {schema}.dead_letter_events letter on letter.event_id = known.event_id and letter.consumer_name = %(consumer)s, fence
    -- Written so that no index of open letters is used: in a large replay those are full of dead rows, and we have the key.
    where letter.event_id = any(%(ids)s::uuid[]) and letter.status not in ('parked', 'resolved', 'discarded')
      and letter.last_seen_at = known.seen_at
      and (known.turn is null or letter.next_retry_at = known.turn)
    order by letter.event_id
    for update of letter
),
inbox as (
    insert into {schema}.processed_events (event_id, consumer_name)
    select event_id, %(consumer)s from mine where %(inbox)s
    order by event_id
    on conflict do nothing
    returning event_id
)
select (select count(*) from fence),
       (select case when %(inbox)s and count(*) < cardinality(%(ids)s::uuid[]) then coalesce(array_agg(event_id), '{{}}') end from inbox),
       null, {mark},
       (select count(*) < cardinality(%(ids)s::uuid[]) from mine)

-- name: begin_new_slice
-- For the bus: the relay's lane leases are the fence, the inbox alone says what was handled. It takes for granted that nothing was, which
-- costs a third of ON CONFLICT; if a row is there, it fails with a unique violation. A concurrent duplicate waits here, and then fails.
with inbox as (
    insert into {schema}.processed_events (event_id, consumer_name)
    select event_id, %(consumer)s from unnest(%(ids)s::uuid[]) as event_id
    order by event_id
)
select 1, null, null, {mark}

-- name: begin_due_slice
-- The same for events that it reads from the outbox itself: untried ones of these lanes, if they are few and small, and the consumer takes
-- some of them. The columns of `begin_slice_early`, then those of `load_due`, in each row for one event.
with due as materialized (
    select o.*, case when pg_column_compression(payload) is null then pg_column_size(payload)
                     else octet_length(payload::text) end {audience_bytes} as _bytes
    from {schema}.outbox o
    where o.status = 'pending' and o.next_retry_at is null and o.seq > %(watermark)s and o.lane = any(%(lanes)s)
    order by o.seq
    limit %(few)s::integer + 1
),
inbox as (
    insert into {schema}.processed_events (event_id, consumer_name)
    select id, %(consumer)s from due
    where (%(types)s::text[] is null or event_type = any(%(types)s::text[]))
      and (select count(*) <= %(few)s::integer and sum(_bytes) <= %(few_bytes)s::bigint from due)
      -- What was read here would conflict with other publishers.
      and current_setting('transaction_isolation') <> 'serializable'
    order by id
    returning event_id
),
opened as materialized (
    select {mark} as mark, array_agg(event_id) as ids, count(*) as taken, (select count(*) from due) as waiting from inbox
)
select least(taken, 1), null, null, mark, ids, null, waiting,
       due.id, due.event_type, due.schema_version, due.aggregate_type, due.aggregate_id, due.occurred_at, due.correlation_id,
       due.causation_id, due.payload::text, due.created_at, due.seq, due.lane, due.retry_count {due_scope}
from opened left join due on taken > 0
order by due.seq

-- name: begin_unfenced_slice
-- The same if some may have been handled: only the others are returned (null: all are new).
with inbox as (
    insert into {schema}.processed_events (event_id, consumer_name)
    select event_id, %(consumer)s from unnest(%(ids)s::uuid[]) as event_id
    order by event_id
    on conflict do nothing
    returning event_id
)
select 1, (select case when count(*) < cardinality(%(ids)s::uuid[]) then coalesce(array_agg(event_id), '{{}}') end from inbox),
       null, {mark}

-- name: begin_joint_slice
-- Opens a slice of several consumers that wait at the same position, and locks their rows in order. 0 if one of them was taken over, paused,
-- moved or locked, if an inbox knows one of the events, or if they were read from another server.
with mine as (
    select name from {schema}.consumer
    where name = any(%(checkpoints)s::text[]) and token = %(token)s and position = %(after)s and not paused
    order by name
    for no key update skip locked
)
select case when (select count(*) from mine) = cardinality(%(checkpoints)s::text[])
             and pg_catalog.pg_postmaster_start_time() = %(server_started)s::timestamptz
             and not exists (select from {schema}.processed_events
                             where event_id = any(%(ids)s::uuid[]) and consumer_name = any(%(checkpoints)s::text[]))
       then 1 else 0 end, null, null, {mark}

-- name: finish_joint_slice
-- Its last statement. If an inbox row is there already, it fails, and the slice is undone.
with moved as (
    update {schema}.consumer
    set position = %(position)s, updated_at = clock_timestamp(), suspect_position = null, suspect_attempts = 0,
        leased_until = clock_timestamp() + make_interval(secs => %(lease)s), lease_seconds = %(lease)s
    where name = any(%(checkpoints)s::text[]) and token = %(token)s and position < %(position)s
)
insert into {schema}.processed_events (event_id, consumer_name)
select event_id, consumer_name from unnest(%(ids)s::uuid[], %(consumers)s::text[]) as handled (event_id, consumer_name)
order by event_id, consumer_name

-- name: savepoint
-- Before the first events of a slice in which a handler may fail.
savepoint aftercommit_events

-- name: next_savepoint
-- Before the next ones.
release savepoint aftercommit_events; savepoint aftercommit_events

-- name: back_to_savepoint
-- After a handler has failed: undoes what it and the handlers since the savepoint have written.
rollback to savepoint aftercommit_events

-- name: forget_handling
-- Removes the inbox rows of events of a slice that have failed.
delete from {schema}.processed_events where consumer_name = %(consumer)s and event_id = any(%(ids)s::uuid[])

-- name: return_unhandled
-- Removes inbox rows and checkpoint moves for events that were not handled: the slice took too long, or a handler has committed it.
with inbox as (
    delete from {schema}.processed_events where consumer_name = %(consumer)s and event_id = any(%(ids)s::uuid[])
)
update {schema}.consumer set position = least(position, %(position)s::bigint)
where name = %(checkpoint)s and token = %(token)s::uuid and %(position)s::bigint is not null
