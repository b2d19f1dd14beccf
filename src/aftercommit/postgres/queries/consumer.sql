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

-- name: read_news
-- The next events for consumers that have all come to this position. Nothing if one of them was taken over, paused or moved: then
-- `consumer_status` says what there is to do.
select page.* from ({read_log_cut}) page
where not exists (
          select from {schema}.consumer
          where name = any(%(consumers)s::text[]) and (token is distinct from %(token)s or paused or position <> %(after)s)
      )
order by page.position

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
