-- name: head
-- The head of the log.
select position, ts, epoch from {schema}.head

-- name: page_bytes
-- The bytes of a range of the log as they are sent to the client, where payloads are not compressed.
select coalesce(sum(case when pg_column_compression(payload) is null then pg_column_size(payload)
                         else octet_length(payload::text) end {audience_bytes}), 0)::bigint
from {schema}.log
where position > %(after)s and position <= %(upto)s
  and (%(types)s::text[] is null or event_type = any(%(types)s::text[]))

-- name: next_in_log
-- The first position after this one that is still in the log, and how many events before it were dropped.
select next.position, {schema}.given(head.gaps, %(after)s, coalesce(next.position - 1, %(head)s))
from {schema}.head
cross join (select min(position) as position from {schema}.log where position > %(after)s) next

-- name: read_log
-- A page of the log by position. A life of the log has no gaps, so a page is a range; types narrow it.
select id, event_type, schema_version, aggregate_type, aggregate_id, occurred_at, correlation_id, causation_id, payload,
       created_at, seq, position {scope_names}
from {schema}.log
where position > %(after)s and position <= %(upto)s
  and (%(types)s::text[] is null or event_type = any(%(types)s::text[]))
order by position

-- name: read_log_cut
-- The same for a range that is too large for memory: as many events as fit, at least one. (A leading underscore, because no scope
-- column has such a name.)
select id, event_type, schema_version, aggregate_type, aggregate_id, occurred_at, correlation_id, causation_id, payload,
       created_at, seq, position {scope_names}
from (
    select *, sum(_bytes) over (order by position rows between unbounded preceding and 1 preceding) as _bytes_before
    from (
        select id, event_type, schema_version, aggregate_type, aggregate_id, occurred_at, correlation_id, causation_id,
               payload, created_at, seq, position,
               case when pg_column_compression(payload) is null then pg_column_size(payload)
                    else octet_length(payload::text) end {audience_bytes} as _bytes {scope_names}
        from {schema}.log
        where position > %(after)s and position <= %(upto)s
          and (%(types)s::text[] is null or event_type = any(%(types)s::text[]))
    ) sized
) page
where coalesce(_bytes_before, 0) < %(max_bytes)s
order by position

-- name: register_consumer
-- Registers a new consumer at the head of the log, or before the first event that is still kept.
insert into {schema}.consumer (name, position, declared_by, inbox)
select %(name)s, case when %(latest)s then head.position
                      else coalesce((select min(log.position) - 1 from {schema}.log), head.position) end, %(declared_by)s, %(inbox)s
from {schema}.head
on conflict (name) do nothing

-- name: consumers
-- Every consumer with its checkpoint, and whether a worker holds it.
select name, position, paused, declared_by, worker, coalesce(clock_timestamp() < leased_until and clock_timestamp() >= leased_until - make_interval(secs => coalesce(lease_seconds, 3600)), false) as alive
from {schema}.consumer order by name

-- name: take_consumers
-- Takes the leases of consumers that are ours, free or expired, or void because they end later than a new one would (the clock was set
-- back), or whose worker's code does not know an event that ours knows. A worker that is writing holds the row, so we skip it and do
-- not steal the lease.
with asked as materialized (
    select * from unnest(%(consumers)s::text[], %(declared_by)s::text[], %(inbox)s::boolean[]) as asked (name, declared_by, inbox)
),
awaited as materialized (
    select wait.consumer_name, wait.event_type, wait.version
    from {schema}.version_wait wait
    join unnest(%(types)s::text[], %(versions)s::integer[]) as known (event_type, version)
        on known.event_type = wait.event_type and known.version >= wait.version
    where wait.consumer_name = any(%(consumers)s::text[])
),
open as (
    select name, token is not distinct from %(token)s as renewed,
           worker is not null and token is distinct from %(token)s
               and not (leased_until > clock_timestamp() and exists (select from awaited where consumer_name = name)) as died
    from {schema}.consumer
    where name = any(%(consumers)s::text[])
      and (token is null or token = %(token)s or leased_until < clock_timestamp()
           or leased_until > clock_timestamp() + make_interval(secs => greatest(coalesce(lease_seconds, 3600), %(lease)s))
           or exists (select from awaited where consumer_name = name))
    order by name
    for update skip locked
),
over as (
    delete from {schema}.version_wait wait using open, awaited
    where wait.consumer_name = open.name and awaited.consumer_name = open.name
      and wait.event_type = awaited.event_type and wait.version = awaited.version
)
update {schema}.consumer
set worker = %(worker)s, token = %(token)s, declared_by = asked.declared_by, inbox = asked.inbox,
    leased_until = clock_timestamp() + make_interval(secs => %(lease)s), lease_seconds = %(lease)s
from open join asked on asked.name = open.name where consumer.name = open.name
returning consumer.name, consumer.position, consumer.paused, open.died, consumer.suspect_position is not null, open.renewed

-- name: consumer_status
-- What each of a worker's consumers has to do: whether the lease is ours, the checkpoint, whether a dead letter is due, whether any is
-- open, and when the next one is due. And the head of the log, in positions and in events, and the events after the checkpoint. A few
-- index lookups per consumer. Letters without a position belong to a relay: their event is in the outbox and is delivered again from there.
select consumer.name, consumer.token is not distinct from %(token)s, consumer.paused, consumer.position,
       open.found and exists (
           select from {schema}.dead_letter_events
           where consumer_name = consumer.name and status = 'retrying' and next_retry_at <= statement_timestamp() and position is not null
       ),
       open.found,
       case when open.found then (
           select extract(epoch from min(next_retry_at) - clock_timestamp())::float8
           from {schema}.dead_letter_events letter
           where consumer_name = consumer.name and status = 'retrying' and letter.position is not null
             and not (asked.strict and exists (
                 select from {schema}.dead_letter_events earlier
                 where earlier.consumer_name = letter.consumer_name and earlier.aggregate_type = letter.aggregate_type
                   and earlier.aggregate_id = letter.aggregate_id and earlier.seq < letter.seq
                   and earlier.status in ('retrying', 'waiting', 'parked') and earlier.position is not null
             ))
       ) end,
       head.position, {schema}.given(head.gaps, 0, head.position), {schema}.given(head.gaps, consumer.position, head.position)
from unnest(%(consumers)s::text[], %(strict)s::boolean[]) as asked (name, strict)
join {schema}.consumer on consumer.name = asked.name
cross join {schema}.head
cross join lateral (
    select exists (
        select from {schema}.dead_letter_events
        where consumer_name = asked.name and status in ('retrying', 'waiting', 'parked') and position is not null
    ) as found
) open

-- name: renew_consumers
-- Renews the leases, and answers as `consumer_status`. A slice that holds its consumer's row renews it itself, so we do not wait for it.
with mine as (
    select name from {schema}.consumer where name = any(%(consumers)s::text[]) and token = %(token)s
    order by name for no key update skip locked
),
renewed as (
    update {schema}.consumer set leased_until = clock_timestamp() + make_interval(secs => %(lease)s), lease_seconds = %(lease)s
    from mine where consumer.name = mine.name
)
{consumer_status}

-- name: renew_slice
-- Renews the lease at the end of a long slice.
update {schema}.consumer set leased_until = clock_timestamp() + make_interval(secs => %(lease)s), lease_seconds = %(lease)s
where name = %(consumer)s and token = %(token)s

-- name: release_consumers
-- Hands the consumers over to a standby at once.
with freed as (
    -- A worker that can hand over was not killed by an event: clear the suspicion.
    update {schema}.consumer set worker = null, token = null, leased_until = null, lease_seconds = null, suspect_position = null, suspect_attempts = 0
    where name = any(%(consumers)s::text[]) and token = %(token)s
    returning 1
)
select pg_notify(%(channel)s, %(changed)s) from (select count(*) from freed) done

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
    where name = %(consumer)s and token = %(token)s
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

-- name: begin_slice_without_inbox
-- The same for a consumer without an inbox: the checkpoint alone says which events were handled, even if the answer to a COMMIT was
-- lost.
with before as (
    select name, position from {schema}.consumer where name = %(consumer)s and token = %(token)s for no key update
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
    select 1 from {schema}.consumer where name = %(consumer)s and token = %(token)s for key share
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
    select 1 from {schema}.consumer where name = %(consumer)s and token = %(token)s for key share
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
where name = %(consumer)s and token = %(token)s::uuid and %(position)s::bigint is not null

-- name: move_checkpoint
-- Moves the checkpoint past events that need no transaction of their own.
update {schema}.consumer
set position = greatest(position, %(position)s), updated_at = clock_timestamp(), suspect_position = null, suspect_attempts = 0,
        leased_until = clock_timestamp() + make_interval(secs => %(lease)s), lease_seconds = %(lease)s
where name = %(consumer)s and token = %(token)s
returning position

-- name: suspect
-- After a takeover from a worker that died: counts the attempt before the event is handled.
update {schema}.consumer
set suspect_attempts = case when suspect_position = %(position)s then suspect_attempts + 1 else 1 end,
    suspect_position = %(position)s
where name = %(consumer)s and token = %(token)s
returning suspect_attempts

-- name: note_version_wait
-- A consumer has met an event that its code does not know: how many seconds it still waits for newer code, how many it has waited, and
-- until when. The wait starts again if no such event was met for as long as it would wait (at least a minute), or if the clock was set
-- back. Standby workers are notified when it starts. Without a token (behind the bus) the lease is not checked.
insert into {schema}.version_wait as wait (consumer_name, event_type, version, known, since, until, seen_at)
select %(consumer)s::text, %(event_type)s::text, %(version)s::smallint, %(known)s::smallint, now, now + make_interval(secs => %(seconds)s), now
from (select clock_timestamp() as now) clock
where %(token)s::uuid is null or exists (select from {schema}.consumer where name = %(consumer)s::text and token = %(token)s::uuid)
on conflict (consumer_name, event_type, version) do update
set (known, seen_at, since, until) = (
    select excluded.known, excluded.seen_at, began.at, began.at + make_interval(secs => %(seconds)s)
    from (select case when wait.seen_at between excluded.seen_at - make_interval(secs => greatest(60, %(seconds)s)) and excluded.seen_at
                      then wait.since else excluded.seen_at end as at) began
)
returning extract(epoch from until - seen_at)::float8, extract(epoch from seen_at - since)::float8, until,
          case when since = seen_at then pg_notify(%(channel)s, %(changed)s) end

-- name: end_version_waits
-- Behind the bus there is no lease to take: a relay whose code knows the awaited versions ends the waits when it starts.
delete from {schema}.version_wait wait
using unnest(%(types)s::text[], %(versions)s::integer[]) as known (event_type, version)
where wait.event_type = known.event_type and wait.version <= known.version
  and not exists (select from {schema}.consumer where consumer.name = wait.consumer_name)

-- name: pause
-- Pauses or resumes a consumer. An idle worker is woken; one at work notices within a heartbeat.
with changed as (
    update {schema}.consumer set paused = %(paused)s where name = %(name)s returning name
)
select name, pg_notify(%(channel)s, %(changed)s) from changed

-- name: rename_consumer
-- Renames a consumer with its checkpoint, inbox, dead letters and its part in running replays, while no worker holds it.
with renamed as (
    update {schema}.consumer set name = %(new)s
    where name = %(old)s and (leased_until is null or not (clock_timestamp() < leased_until and clock_timestamp() >= leased_until - make_interval(secs => coalesce(lease_seconds, 3600))))
    returning 1
),
inbox as (
    update {schema}.processed_events set consumer_name = %(new)s from renamed where consumer_name = %(old)s
),
letters as (
    update {schema}.dead_letter_events set consumer_name = %(new)s from renamed where consumer_name = %(old)s
),
operations as (
    update {schema}.operation set target = %(new)s from renamed where target = %(old)s and finished_at is null
),
waits as (
    delete from {schema}.version_wait using renamed where consumer_name = %(old)s
),
items as (
    update {schema}.operation_event item set consumer_name = %(new)s
    from renamed, {schema}.operation
    where operation.finished_at is null and item.operation_id = operation.id and item.consumer_name = %(old)s
)
select count(*) from renamed

-- name: forget_consumer
-- Removes an unused consumer with its inbox; discards its open dead letters.
with free as (
    select 1 where not exists (
        select from {schema}.consumer where name = %(name)s and clock_timestamp() < leased_until and clock_timestamp() >= leased_until - make_interval(secs => coalesce(lease_seconds, 3600))
    )
),
forgotten as (
    delete from {schema}.consumer using free where name = %(name)s returning 1
),
inbox as (
    delete from {schema}.processed_events using free where consumer_name = %(name)s returning 1
),
waits as (
    delete from {schema}.version_wait using free where consumer_name = %(name)s
),
letters as (
    update {schema}.dead_letter_events set status = 'discarded', next_retry_at = null, last_seen_at = clock_timestamp() from free
    where consumer_name = %(name)s and status in ('retrying', 'waiting', 'parked')
    returning 1
)
select (select count(*) from forgotten) + (select count(*) from inbox) + (select count(*) from letters)
