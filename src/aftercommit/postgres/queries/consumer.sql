-- name: head
-- The tip of the log.
select position, ts, epoch from {schema}.head

-- name: read_log
-- A page of the log by position. The log is gapless, so a page is a range; types narrow it, bytes bound its memory. They are
-- counted as they will arrive: a compressed payload unfolds. The last column counts the events of the range, so that a
-- reader knows whether the page was cut. (An underscore in front: no scope column has such a name.)
select position, ts, stream_seq, id, seq, lane, event_type, schema_version, aggregate_type, aggregate_id, occurred_at,
       correlation_id, causation_id, payload, retry_count, created_at {scope_names}, _found
from (
    select *, count(*) over () as _found,
           sum(_bytes) over (order by position rows between unbounded preceding and 1 preceding) as _bytes_before
    from (
        select position, ts, stream_seq, id, seq, lane, event_type, schema_version, aggregate_type, aggregate_id, occurred_at,
               correlation_id, causation_id, payload, retry_count, created_at,
               case when pg_column_compression(payload) is null then pg_column_size(payload)
                    else octet_length(payload::text) end as _bytes {scope_names}
        from {schema}.log
        where position > %(after)s and position <= %(upto)s
          and (%(types)s::text[] is null or event_type = any(%(types)s::text[]))
    ) sized
) page
where coalesce(_bytes_before, 0) < %(max_bytes)s
order by position

-- name: register_consumer
-- A consumer seen for the first time starts at the tip, or before the first event that is still kept.
insert into {schema}.consumer (name, position, declared_by)
select %(name)s, case when %(latest)s then head.position
                      else coalesce((select min(log.position) - 1 from {schema}.log), head.position) end, %(declared_by)s
from {schema}.head
on conflict (name) do nothing

-- name: consumers
-- Every consumer with its checkpoint and whether somebody holds it.
select name, position, paused, declared_by, worker, coalesce(leased_until > clock_timestamp(), false) as alive, updated_at
from {schema}.consumer order by name

-- name: take_consumer
-- The lease of a consumer: ours, free, or run out. Whoever works under it right now holds the row, so it is skipped, not stolen.
with open as (
    select name, worker is not null and token is distinct from %(token)s as died
    from {schema}.consumer
    where name = %(consumer)s and (token is null or token = %(token)s or leased_until < clock_timestamp())
    for update skip locked
)
update {schema}.consumer
set worker = %(worker)s, token = %(token)s, declared_by = %(declared_by)s,
    leased_until = clock_timestamp() + make_interval(secs => %(lease)s)
from open where consumer.name = open.name
returning consumer.position, consumer.paused, open.died, consumer.suspect_position is not null

-- name: renew_consumer
-- The same lease runs on while slices are at work under it. One that holds the row renews it itself, and is not waited for.
with mine as (
    select name from {schema}.consumer where name = %(consumer)s and token = %(token)s for no key update skip locked
),
renewed as (
    update {schema}.consumer set leased_until = clock_timestamp() + make_interval(secs => %(lease)s)
    from mine where consumer.name = mine.name
)
select paused from {schema}.consumer where name = %(consumer)s

-- name: renew_slice
-- A slice that took long leaves a lease behind that has just begun.
update {schema}.consumer set leased_until = clock_timestamp() + make_interval(secs => %(lease)s)
where name = %(consumer)s and token = %(token)s

-- name: release_consumer
-- Hand the consumer over to a standby at once.
with freed as (
    update {schema}.consumer set worker = null, token = null, leased_until = null
    where name = %(consumer)s and token = %(token)s
    returning 1
)
select pg_notify(%(channel)s, %(changed)s) from (select count(*) from freed) done

-- name: begin_slice
-- Opens a slice in the handler's transaction: the fence and the checkpoint in one row, then the inbox.
-- An event whose inbox row exists is not returned and so not handled; a concurrent duplicate waits here and then skips.
-- The server ends the transaction when the handlers have been silent for too long: their machine may be gone.
with fence as (
    update {schema}.consumer
    set position = greatest(position, %(position)s), updated_at = clock_timestamp(), suspect_position = null, suspect_attempts = 0,
        leased_until = clock_timestamp() + make_interval(secs => %(lease)s)
    where name = %(consumer)s and token = %(token)s
    returning 1
),
inbox as (
    insert into {schema}.processed_events (event_id, consumer_name)
    select event_id, %(consumer)s from unnest(%(ids)b::uuid[]) as event_id, fence
    order by event_id
    on conflict do nothing
    returning event_id
)
select (select count(*) from fence), (select coalesce(array_agg(event_id), '{{}}') from inbox),
       set_config('idle_in_transaction_session_timeout', %(patience)s, true)

-- name: begin_slice_without_inbox
-- The same where the checkpoint alone says what was handled.
with fence as (
    update {schema}.consumer
    set position = greatest(position, %(position)s), updated_at = clock_timestamp(), suspect_position = null, suspect_attempts = 0,
        leased_until = clock_timestamp() + make_interval(secs => %(lease)s)
    where name = %(consumer)s and token = %(token)s
    returning 1
)
select (select count(*) from fence), null, set_config('idle_in_transaction_session_timeout', %(patience)s, true)

-- name: begin_shared_slice
-- One of several slices at work at once: the fence is shared, the checkpoint moves when all of them have committed.
with fence as (
    select 1 from {schema}.consumer where name = %(consumer)s and token = %(token)s for key share
),
inbox as (
    insert into {schema}.processed_events (event_id, consumer_name)
    select event_id, %(consumer)s from unnest(%(ids)b::uuid[]) as event_id, fence
    order by event_id
    on conflict do nothing
    returning event_id
)
select (select count(*) from fence), (select coalesce(array_agg(event_id), '{{}}') from inbox),
       set_config('idle_in_transaction_session_timeout', %(patience)s, true)

-- name: begin_shared_slice_without_inbox
-- The same for a dead letter where no inbox is kept: the letter itself says whether it was handled.
with fence as (
    select 1 from {schema}.consumer where name = %(consumer)s and token = %(token)s for key share
)
select (select count(*) from fence), null, set_config('idle_in_transaction_session_timeout', %(patience)s, true)

-- name: begin_unfenced_slice
-- For the bus: the relay's lane leases are the fence, the inbox alone says what was handled.
with inbox as (
    insert into {schema}.processed_events (event_id, consumer_name)
    select event_id, %(consumer)s from unnest(%(ids)b::uuid[]) as event_id
    order by event_id
    on conflict do nothing
    returning event_id
)
select 1, (select coalesce(array_agg(event_id), '{{}}') from inbox),
       set_config('idle_in_transaction_session_timeout', %(patience)s, true)

-- name: return_unhandled
-- A handler committed the slice too early: inbox and checkpoint must not cover the events behind it, which nobody handled.
with inbox as (
    delete from {schema}.processed_events where consumer_name = %(consumer)s and event_id = any(%(ids)s::uuid[])
)
update {schema}.consumer set position = least(position, %(position)s::bigint)
where name = %(consumer)s and token = %(token)s::uuid and %(position)s::bigint is not null

-- name: move_checkpoint
-- Past events that need no transaction of their own.
update {schema}.consumer
set position = greatest(position, %(position)s), updated_at = clock_timestamp(), suspect_position = null, suspect_attempts = 0,
        leased_until = clock_timestamp() + make_interval(secs => %(lease)s)
where name = %(consumer)s and token = %(token)s
returning position

-- name: suspect
-- After a takeover from a worker that died: the attempt is counted before the event is handled.
update {schema}.consumer
set suspect_attempts = case when suspect_position = %(position)s then suspect_attempts + 1 else 1 end,
    suspect_position = %(position)s
where name = %(consumer)s and token = %(token)s
returning suspect_attempts

-- name: record_failures
-- Events this consumer could not take: a dead letter each, and the checkpoint moves past them, in one fenced statement.
with fence as (
    update {schema}.consumer
    set position = greatest(position, %(position)s), updated_at = clock_timestamp(), suspect_position = null, suspect_attempts = 0,
        leased_until = clock_timestamp() + make_interval(secs => %(lease)s)
    where name = %(consumer)s and token = %(token)s
    returning 1
),
failure as (
    select *
    from unnest(%(positions)s::bigint[], %(statuses)s::text[], %(errors)s::text[], %(classes)s::text[], %(delays)s::float8[], %(attempts)s::integer[])
        as f (position, status, error, error_class, delay, attempt)
),
letters as (
    insert into {schema}.dead_letter_events as letter (
        event_id, consumer_name, status, event_type, schema_version, aggregate_type, aggregate_id, occurred_at,
        correlation_id, causation_id, payload, seq, position, created_at, error, error_class, attempts, next_retry_at, history {scope_names}
    )
    select log.id, %(consumer)s, failure.status, log.event_type, log.schema_version, log.aggregate_type, log.aggregate_id,
           log.occurred_at, log.correlation_id, log.causation_id, log.payload, log.seq, log.position, log.created_at,
           failure.error, failure.error_class, failure.attempt, clock_timestamp() + make_interval(secs => failure.delay),
           case when failure.attempt = 0 then '[]'::jsonb else
               jsonb_build_array(jsonb_build_object('at', clock_timestamp(), 'error', left(failure.error, 500), 'error_class', failure.error_class)) end
           {log_scope}
    from failure join {schema}.log on log.position = failure.position, fence
    on conflict (event_id, consumer_name) do update
    set status = excluded.status, error = excluded.error, error_class = excluded.error_class,
        attempts = letter.attempts + excluded.attempts, next_retry_at = excluded.next_retry_at, last_seen_at = clock_timestamp(),
        history = (case when jsonb_array_length(letter.history) >= 50 then letter.history - 0 else letter.history end) || excluded.history
    -- An event that is only to wait, read again after a crash, may have a letter that is further on already.
    where excluded.attempts > 0 or letter.status in ('resolved', 'discarded')
    returning 1
)
select (select count(*) from fence), (select count(*) from letters)

-- name: due_letters
-- Dead letters of this consumer whose wait is over; under strict ordering only the first open one of an aggregate.
-- Letters without a position belong to a relay: their event is in the outbox, and is delivered again from there.
select position, last_seen_at as ts, null::bigint as stream_seq, event_id as id, seq, 0::smallint as lane, event_type, schema_version,
       aggregate_type, aggregate_id, occurred_at, correlation_id, causation_id, payload, attempts as retry_count, created_at {scope_names}
from {schema}.dead_letter_events letter
where consumer_name = %(consumer)s and status = 'retrying' and next_retry_at <= statement_timestamp() and position is not null
  and not (%(strict)s and exists (
      select from {schema}.dead_letter_events earlier
      where earlier.consumer_name = letter.consumer_name and earlier.aggregate_type = letter.aggregate_type
        and earlier.aggregate_id = letter.aggregate_id and earlier.seq < letter.seq
        and earlier.status in ('retrying', 'waiting', 'parked') and earlier.position is not null
  ))
order by next_retry_at
limit %(limit)s

-- name: take_up_newer
-- Events parked by older code that did not know their version yet: this code does, so they are tried again.
update {schema}.dead_letter_events letter
set status = 'retrying', next_retry_at = clock_timestamp()
from unnest(%(types)s::text[], %(versions)s::integer[]) as known (event_type, version)
where letter.consumer_name = %(consumer)s and letter.status = 'parked' and letter.position is not null
  and letter.error_class = 'NewerSchemaVersion'
  and letter.event_type = known.event_type and letter.schema_version <= known.version

-- name: next_letter
-- Seconds until the next dead letter of this consumer falls due.
select extract(epoch from min(next_retry_at) - clock_timestamp())::float8
from {schema}.dead_letter_events letter
where consumer_name = %(consumer)s and status = 'retrying' and position is not null
  and not (%(strict)s and exists (
      select from {schema}.dead_letter_events earlier
      where earlier.consumer_name = letter.consumer_name and earlier.aggregate_type = letter.aggregate_type
        and earlier.aggregate_id = letter.aggregate_id and earlier.seq < letter.seq
        and earlier.status in ('retrying', 'waiting', 'parked') and earlier.position is not null
  ))

-- name: free_waiting
-- Strict ordering: the first open letter of an aggregate waits for nobody. Usually `resolve_letter` has seen to it; this is for
-- letters resolved or discarded by hand, and for crashes. Steps from aggregate to aggregate, however many letters each has.
with recursive first as (
    (
        select aggregate_type, aggregate_id, event_id, status
        from {schema}.dead_letter_events
        where consumer_name = %(consumer)s and status in ('retrying', 'waiting', 'parked') and position is not null
        order by aggregate_type, aggregate_id, seq
        limit 1
    )
    union all
    select following.aggregate_type, following.aggregate_id, following.event_id, following.status
    from first, lateral (
        select letter.aggregate_type, letter.aggregate_id, letter.event_id, letter.status
        from {schema}.dead_letter_events letter
        where letter.consumer_name = %(consumer)s and letter.status in ('retrying', 'waiting', 'parked') and letter.position is not null
          and (letter.aggregate_type, letter.aggregate_id) > (first.aggregate_type, first.aggregate_id)
        order by letter.aggregate_type, letter.aggregate_id, letter.seq
        limit 1
    ) following
)
update {schema}.dead_letter_events letter
set status = 'retrying', next_retry_at = clock_timestamp()
from first
where first.status = 'waiting' and letter.event_id = first.event_id and letter.consumer_name = %(consumer)s
  and letter.status = 'waiting'

-- name: resolve_letter
-- The retry succeeded, in the handler's transaction; the next one waiting behind it (strict ordering) falls due now.
with resolved as (
    update {schema}.dead_letter_events
    set status = 'resolved', next_retry_at = null, last_seen_at = clock_timestamp()
    where event_id = %(event_id)s and consumer_name = %(consumer)s
    returning consumer_name, aggregate_type, aggregate_id
),
next as (
    select waiting.event_id
    from {schema}.dead_letter_events waiting join resolved using (consumer_name, aggregate_type, aggregate_id)
    where waiting.status = 'waiting'
    order by waiting.seq
    limit 1
)
update {schema}.dead_letter_events letter
set status = 'retrying', next_retry_at = clock_timestamp()
from next
where letter.event_id = next.event_id and letter.consumer_name = %(consumer)s

-- name: fail_letter
-- Another attempt failed: wait longer, or park. A letter that was dealt with by hand meanwhile is left alone.
with fence as (
    update {schema}.consumer set suspect_position = null, suspect_attempts = 0
    where name = %(consumer)s and token = %(token)s
    returning 1
),
failed as (
    update {schema}.dead_letter_events
    set status = case when %(delay)s::float8 is null then 'parked' else 'retrying' end,
        next_retry_at = clock_timestamp() + make_interval(secs => %(delay)s::float8),
        attempts = attempts + 1, error = %(error)s, error_class = %(error_class)s, last_seen_at = clock_timestamp(),
        history = (case when jsonb_array_length(history) >= 50 then history - 0 else history end)
            || jsonb_build_array(jsonb_build_object('at', clock_timestamp(), 'error', left(%(error)s, 500), 'error_class', %(error_class)s::text))
    from fence
    where event_id = %(event_id)s and consumer_name = %(consumer)s and status = 'retrying'
    returning 1
)
select (select count(*) from fence), (select count(*) from failed)

-- name: blocked_aggregates
-- Strict ordering: aggregates of this page that have an open dead letter with this consumer.
select distinct letter.aggregate_type, letter.aggregate_id
from {schema}.dead_letter_events letter
join unnest(%(types)s::text[], %(ids)s::text[]) as page (aggregate_type, aggregate_id) using (aggregate_type, aggregate_id)
where letter.consumer_name = %(consumer)s and letter.status in ('retrying', 'waiting', 'parked') and letter.position is not null

-- name: pause
-- Pause or resume a consumer. A worker that rests is woken; one at work notices within a heartbeat.
with changed as (
    update {schema}.consumer set paused = %(paused)s where name = %(name)s returning name
)
select name, pg_notify(%(channel)s, %(changed)s) from changed

-- name: rename_consumer
-- Give a checkpoint, its inbox and its dead letters a new name, while nobody works under the old one.
with renamed as (
    update {schema}.consumer set name = %(new)s
    where name = %(old)s and (leased_until is null or leased_until < clock_timestamp())
    returning 1
),
inbox as (
    update {schema}.processed_events set consumer_name = %(new)s from renamed where consumer_name = %(old)s
),
letters as (
    update {schema}.dead_letter_events set consumer_name = %(new)s from renamed where consumer_name = %(old)s
)
select count(*) from renamed

-- name: forget_consumer
-- Remove a checkpoint that no program uses any more, with its inbox; what is open of its dead letters is discarded.
with free as (
    select 1 where not exists (
        select from {schema}.consumer where name = %(name)s and leased_until >= clock_timestamp()
    )
),
forgotten as (
    delete from {schema}.consumer using free where name = %(name)s returning 1
),
inbox as (
    delete from {schema}.processed_events using free where consumer_name = %(name)s returning 1
),
letters as (
    update {schema}.dead_letter_events set status = 'discarded', next_retry_at = null from free
    where consumer_name = %(name)s and status in ('retrying', 'waiting', 'parked')
    returning 1
)
select (select count(*) from forgotten) + (select count(*) from inbox) + (select count(*) from letters)
