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
  and (%(lanes)s::integer = 1 or mod(lane, %(lanes)s::integer) = %(lane)s::integer)

-- name: next_in_log
-- The first position after this one that is still in the log, and how many events before it were dropped.
select next.position, {schema}.given(head.gaps, %(after)s, coalesce(next.position - 1, %(head)s))
from {schema}.head
cross join (select min(position) as position from {schema}.log where position > %(after)s) next

-- name: read_log
-- A page of the log by position. A life of the log has no gaps, so a page is a range; types and the lane of a divided consumer narrow it.
select id, event_type, schema_version, aggregate_type, aggregate_id, occurred_at, correlation_id, causation_id, payload,
       created_at, seq, position {scope_names}
from {schema}.log
where position > %(after)s and position <= %(upto)s
  and (%(types)s::text[] is null or event_type = any(%(types)s::text[]))
  and (%(lanes)s::integer = 1 or mod(lane, %(lanes)s::integer) = %(lane)s::integer)
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
          and (%(lanes)s::integer = 1 or mod(lane, %(lanes)s::integer) = %(lane)s::integer)
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

-- name: whole_consumers
-- Every consumer as a whole. One that is divided has a row for each lane, named consumer#lane. Its checkpoint is the lowest of them, its
-- worker names who holds which lanes, and it is held if all of them are.
(
    select part.name, max(part.lanes) as lanes, min(part.position) as position, bool_or(part.paused) as paused, bool_and(part.inbox) as inbox,
           max(part.declared_by) as declared_by, bool_and(part.worker is not null) as is_held,
           string_agg(part.worker || case when part.lanes > 1 then ' (lanes ' || part.held || ')' else '' end, ', ' order by part.worker) as worker
    from (
        select split_part(name, '#', 1) as name, lanes, min(position) as position, bool_or(paused) as paused, bool_and(inbox) as inbox,
               max(declared_by) as declared_by, lease.worker, string_agg(split_part(name, '#', 2), ' ' order by length(name), name) as held
        from {schema}.consumer
        cross join lateral (
            select case when clock_timestamp() < leased_until and clock_timestamp() >= leased_until - make_interval(secs => coalesce(lease_seconds, 3600))
                        then consumer.worker end as worker
        ) lease
        where lanes = 1 or strpos(name, '#') > 0
        group by 1, lanes, lease.worker
    ) part
    group by part.name
)

-- name: consumers
-- Every consumer with its checkpoint, and whether a worker holds it.
select name, position, paused, declared_by, worker, worker is not null as alive, lanes from {whole_consumers} whole order by name

-- name: lanes_of_consumer
-- The rows of a consumer, each with its lane and number of lanes, and whether a worker holds it. Locks those that no slice uses.
select case when strpos(name, '#') > 0 then split_part(name, '#', 2)::integer end, lanes, position, inbox,
       coalesce(clock_timestamp() < leased_until and clock_timestamp() >= leased_until - make_interval(secs => coalesce(lease_seconds, 3600)), false)
from {schema}.consumer
where name = %(consumer)s or left(name, length(%(consumer)s) + 1) = %(consumer)s || '#'
order by name
for update skip locked

-- name: divide_consumer
-- Gives a consumer other lanes, each with its checkpoint. The row of a divided consumer is held for good: older code, which does not know
-- lanes, finds it taken and stands by. Workers that held a lane until now are fenced.
with whole as (
    update {schema}.consumer
    set lanes = %(lanes)s::smallint, position = (select min(each) from unnest(%(positions)s::bigint[]) as each), suspect_position = null, suspect_attempts = 0,
        worker = case when %(lanes)s::smallint > 1 then 'divided into ' || %(lanes)s::smallint || ' lanes' end, token = case when %(lanes)s::smallint > 1 then gen_random_uuid() end,
        -- Within its length even if the clock is set back.
        leased_until = case when %(lanes)s::smallint > 1 then clock_timestamp() + interval '100 years' end, lease_seconds = case when %(lanes)s::smallint > 1 then 7e9 end
    where name = %(consumer)s
    returning name, declared_by, paused, inbox
),
dropped as (
    delete from {schema}.consumer where left(name, length(%(consumer)s) + 1) = %(consumer)s || '#'
),
waits as (
    delete from {schema}.version_wait where left(consumer_name, length(%(consumer)s) + 1) = %(consumer)s || '#'
),
workers as (
    delete from {schema}.consumer_worker where consumer_name = %(consumer)s
)
select pg_notify(%(channel)s, %(changed)s)

-- name: add_lanes
-- The rows of the lanes, after those of another division are gone.
insert into {schema}.consumer (name, position, declared_by, paused, inbox, lanes)
select whole.name || '#' || lane.number - 1, lane.position, whole.declared_by, whole.paused, whole.inbox, whole.lanes
from {schema}.consumer whole, unnest(%(positions)s::bigint[]) with ordinality as lane (position, number)
where whole.name = %(consumer)s and whole.lanes > 1

-- name: share_lanes
-- Says that this worker is alive, for each of its divided consumers, and returns its share of the lanes: all workers have the same, and the
-- first few one more. Forgets workers that are silent. Wakes the others when it is new. A consumer with another number of lanes is left out.
with asked as materialized (
    select asked.name, asked.lanes
    from unnest(%(consumers)s::text[], %(lanes)s::integer[]) as asked (name, lanes)
    join {schema}.consumer on consumer.name = asked.name and consumer.lanes = asked.lanes
),
mine as (
    insert into {schema}.consumer_worker (consumer_name, token, worker, leased_until, lease_seconds)
    select name, %(token)s, %(worker)s, clock_timestamp() + make_interval(secs => %(lease)s), %(lease)s from asked
    on conflict (consumer_name, token) do update set leased_until = excluded.leased_until, lease_seconds = excluded.lease_seconds
),
other as materialized (
    select consumer_name, token,
           clock_timestamp() < leased_until and clock_timestamp() >= leased_until - make_interval(secs => lease_seconds) as alive
    from {schema}.consumer_worker where consumer_name = any(%(consumers)s::text[])
),
silent as (
    select worker.consumer_name, worker.token
    from {schema}.consumer_worker worker join other on other.consumer_name = worker.consumer_name and other.token = worker.token
    where not other.alive and worker.token <> %(token)s
    for update of worker skip locked
),
gone as (
    delete from {schema}.consumer_worker worker using silent
    where worker.consumer_name = silent.consumer_name and worker.token = silent.token
)
select asked.name, asked.lanes / (1 + others.alive) + case when others.first < asked.lanes %% (1 + others.alive) then 1 else 0 end,
       case when not others.known then pg_notify(%(channel)s, %(changed)s) end
from asked
cross join lateral (
    select count(*) filter (where other.alive and other.token <> %(token)s) as alive,
           count(*) filter (where other.alive and other.token < %(token)s) as first,
           coalesce(bool_or(other.token = %(token)s), false) as known
    from other where other.consumer_name = asked.name
) others

-- name: hand_over_lanes
-- Gives lanes to other workers. A lane that is suspect stays so.
with freed as (
    update {schema}.consumer set worker = null, token = null, leased_until = null, lease_seconds = null
    where name = any(%(checkpoints)s::text[]) and token = %(token)s
    returning 1
)
select pg_notify(%(channel)s, %(changed)s) from (select count(*) from freed) done

-- name: take_consumers
-- Takes the leases of consumers that are ours, free or expired, or void because they end later than a new one would (the clock was set
-- back), or whose worker's code does not know an event that ours knows. A worker that is writing holds the row, so we skip it and do
-- not steal the lease. Of the lanes of a divided consumer, only as many as there is room for; none if they are divided in another way.
with asked as materialized (
    select *
    from unnest(%(checkpoints)s::text[], %(declared_by)s::text[], %(inbox)s::boolean[], %(lanes)s::integer[], %(room)s::integer[])
        as asked (name, declared_by, inbox, lanes, room)
),
awaited as materialized (
    select wait.consumer_name, wait.event_type, wait.version
    from {schema}.version_wait wait
    join unnest(%(types)s::text[], %(versions)s::integer[]) as known (event_type, version)
        on known.event_type = wait.event_type and known.version >= wait.version
    where wait.consumer_name = any(%(checkpoints)s::text[])
),
free as (
    select consumer.name, token is not distinct from %(token)s as renewed,
           worker is not null and token is distinct from %(token)s
               and not (leased_until > clock_timestamp() and exists (select from awaited where consumer_name = consumer.name)) as died,
           asked.room, token = %(token)s or exists (select from awaited where consumer_name = consumer.name) as is_ours
    from {schema}.consumer join asked on asked.name = consumer.name and asked.lanes = consumer.lanes
    where (token is null or token = %(token)s or leased_until < clock_timestamp()
           or leased_until > clock_timestamp() + make_interval(secs => greatest(coalesce(lease_seconds, 3600), %(lease)s))
           or exists (select from awaited where consumer_name = consumer.name))
    order by consumer.name
    for update of consumer skip locked
),
open as materialized (
    select name, renewed, died
    from (select *, row_number() over (partition by split_part(name, '#', 1) order by is_ours desc nulls last, name) as place from free) counted
    where place <= room or is_ours
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
returning consumer.name, consumer.position, consumer.paused, open.died, consumer.suspect_position is not null, open.renewed,
          pg_catalog.pg_postmaster_start_time()

-- name: consumer_status
-- What each of a worker's consumers has to do: whether the lease is ours, the checkpoint, whether a dead letter is due, whether any is
-- open, and when the next one is due. And the head of the log, in positions and in events, and the events after the checkpoint. A few
-- index lookups per consumer. Letters without a position belong to a relay: their event is in the outbox and is delivered again from there.
select consumer.name, consumer.token is not distinct from %(token)s, consumer.paused, consumer.position,
       open.found and exists (
           select from {schema}.dead_letter_events letter
           where consumer_name = asked.consumer and status = 'retrying' and next_retry_at <= statement_timestamp() and letter.position is not null
             and (asked.lanes = 1 or mod({lane_of_letter}, asked.lanes) = asked.lane)
       ),
       open.found,
       case when open.found then (
           select extract(epoch from min(next_retry_at) - clock_timestamp())::float8
           from {schema}.dead_letter_events letter
           where consumer_name = asked.consumer and status = 'retrying' and letter.position is not null
             and (asked.lanes = 1 or mod({lane_of_letter}, asked.lanes) = asked.lane)
             and not (asked.strict and exists (
                 select from {schema}.dead_letter_events earlier
                 where earlier.consumer_name = letter.consumer_name and earlier.aggregate_type = letter.aggregate_type
                   and earlier.aggregate_id = letter.aggregate_id and earlier.seq < letter.seq
                   and earlier.status in ('retrying', 'waiting', 'parked') and earlier.position is not null
             ))
       ) end,
       head.position, {schema}.given(head.gaps, 0, head.position), {schema}.given(head.gaps, consumer.position, head.position)
from unnest(%(checkpoints)s::text[], %(consumers)s::text[], %(strict)s::boolean[], %(lane)s::integer[], %(lanes)s::integer[])
    as asked (name, consumer, strict, lane, lanes)
join {schema}.consumer on consumer.name = asked.name
cross join {schema}.head
cross join lateral (
    select exists (
        select from {schema}.dead_letter_events letter
        where consumer_name = asked.consumer and status in ('retrying', 'waiting', 'parked') and letter.position is not null
          and (asked.lanes = 1 or mod({lane_of_letter}, asked.lanes) = asked.lane)
    ) as found
) open

-- name: renew_consumers
-- Renews the leases, and answers as `consumer_status`. A slice that holds its consumer's row renews it itself, so we do not wait for it.
with mine as (
    select name from {schema}.consumer where name = any(%(checkpoints)s::text[]) and token = %(token)s
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
where name = %(checkpoint)s and token = %(token)s

-- name: release_consumers
-- Hands the consumers over to other workers at once.
with freed as (
    -- A worker that can hand over was not killed by an event: clear the suspicion.
    update {schema}.consumer set worker = null, token = null, leased_until = null, lease_seconds = null, suspect_position = null, suspect_attempts = 0
    where name = any(%(checkpoints)s::text[]) and token = %(token)s
    returning 1
),
gone as (
    delete from {schema}.consumer_worker where consumer_name = any(%(consumers)s::text[]) and token = %(token)s
)
select pg_notify(%(channel)s, %(changed)s) from (select count(*) from freed) done

-- name: move_checkpoint
-- Moves the checkpoint past events that need no transaction of their own.
update {schema}.consumer
set position = greatest(position, %(position)s), updated_at = clock_timestamp(), suspect_position = null, suspect_attempts = 0,
        leased_until = clock_timestamp() + make_interval(secs => %(lease)s), lease_seconds = %(lease)s
where name = %(checkpoint)s and token = %(token)s
returning position

-- name: suspect
-- After a takeover from a worker that died: counts the attempt before the event is handled.
update {schema}.consumer
set suspect_attempts = case when suspect_position = %(position)s then suspect_attempts + 1 else 1 end,
    suspect_position = %(position)s
where name = %(checkpoint)s and token = %(token)s
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
    update {schema}.consumer set paused = %(paused)s where split_part(name, '#', 1) = %(name)s returning name
)
select count(*), pg_notify(%(channel)s, %(changed)s) from changed having count(*) > 0

-- name: rename_consumer
-- Renames a consumer with its checkpoint, inbox, dead letters and its part in running replays, while no worker holds it.
with renamed as (
    update {schema}.consumer set name = %(new)s || substr(consumer.name, length(%(old)s) + 1)
    from {whole_consumers} whole
    where whole.name = %(old)s and whole.worker is null and split_part(consumer.name, '#', 1) = whole.name
    returning 1
),
inbox as (
    update {schema}.processed_events set consumer_name = %(new)s where consumer_name = %(old)s and exists (select from renamed)
),
letters as (
    update {schema}.dead_letter_events set consumer_name = %(new)s where consumer_name = %(old)s and exists (select from renamed)
),
operations as (
    update {schema}.operation set target = %(new)s where target = %(old)s and finished_at is null and exists (select from renamed)
),
waits as (
    delete from {schema}.version_wait where split_part(consumer_name, '#', 1) = %(old)s and exists (select from renamed)
),
items as (
    update {schema}.operation_event item set consumer_name = %(new)s
    from {schema}.operation
    where exists (select from renamed) and operation.finished_at is null and item.operation_id = operation.id and item.consumer_name = %(old)s
)
select count(*) from renamed

-- name: forget_consumer
-- Removes an unused consumer with its inbox; discards its open dead letters.
with free as (
    select 1 where not exists (
        select from {whole_consumers} whole where whole.name = %(name)s and whole.worker is not null
    )
),
forgotten as (
    delete from {schema}.consumer using free where split_part(name, '#', 1) = %(name)s returning 1
),
inbox as (
    delete from {schema}.processed_events using free where consumer_name = %(name)s returning 1
),
waits as (
    delete from {schema}.version_wait using free where split_part(consumer_name, '#', 1) = %(name)s
),
letters as (
    update {schema}.dead_letter_events set status = 'discarded', next_retry_at = null, last_seen_at = clock_timestamp() from free
    where consumer_name = %(name)s and status in ('retrying', 'waiting', 'parked')
    returning 1
)
select (select count(*) from forgotten) + (select count(*) from inbox) + (select count(*) from letters)
