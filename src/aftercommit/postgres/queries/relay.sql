-- name: plan_by_index
-- The statements of a carrier are planned once, maybe while the outbox is empty. With an index they stay right however full it gets.
-- Left to itself, PostgreSQL would plan the append again for every batch.
select set_config('enable_seqscan', 'off', false), set_config('enable_bitmapscan', 'off', false),
       set_config('plan_cache_mode', 'force_generic_plan', false)

-- name: fence
-- Locks the leases of the lanes that a write depends on, in lane order, so that it does not deadlock with a takeover; counts ours.
fence as (
    select count(*) as held
    from (
        select from {schema}.lane
        where lane = any(%(lanes)s) and token = %(token)s
        order by lane
        for share
    ) mine
)

-- name: fence_chosen
-- The same for a sweep, which depends on the lanes of the events that it has found. Mostly they are few, and each lock is written to the
-- write-ahead log.
fence as (
    select %(lane_count)s - (select count(distinct lane) from chosen) + count(*) as held
    from (
        select from {schema}.lane
        where lane = any(array(select lane from chosen)) and token = %(token)s
        order by lane
        for share
    ) mine
)

-- name: append
-- The main statement: moves delivered events from the outbox to the log, if and only if this relay still holds their lanes.
-- fence   counts the lanes that are still ours, or need not be
-- known   whether the current life of the log belongs to this server, and the log is where we have seen it
-- chosen  the rows to move
-- moved   removes them from the outbox
-- total   their number and their seqs, in order: a single pass, because moved holds whole rows
-- tip     takes as many positions as rows were moved; its row lock makes the order of positions the order of commits
-- appended in the order of seq, by the place of a seq in the array: a window function would sort and copy whole rows. Seqs are unique;
--         where somebody has written one twice, places are counted
-- heard   (if an audience is declared) the rows by which readers find their events
-- latency (if they may be many) counts the moved rows by type and by the time since they were written, for the metrics
with {chosen}
{fenced},
known as (
    select count(*) as yes from {schema}.head
    where server_started = pg_catalog.pg_postmaster_start_time() and position >= %(seen)s
),
moved as (
    delete from {schema}.outbox using fence
    where {which} and fence.held = %(lane_count)s and (select yes from known) = 1
    returning outbox.*
),
total as materialized (
    select count(*) as moved, max(seq) as last_seq, array_agg(distinct seq order by seq) as seqs {bytes} from moved
),
tip as (
    update {schema}.head
    set position = position + (select moved from total), ts = greatest(ts, clock_timestamp())
    where (select moved from total) > 0
    returning position, ts, coalesce(upper(gaps) - 1, 0) as base
), {streams} {latency}
appended as (
    insert into {schema}.log (
        position, ts, stream_seq, id, seq, lane, aggregate_type, aggregate_id, event_type, schema_version, occurred_at,
        correlation_id, causation_id, payload, retry_count, created_at {scope_names}
    )
    select {place}, (select ts from tip), {stream_seq},
           moved.id, moved.seq, moved.lane, moved.aggregate_type, moved.aggregate_id, moved.event_type,
           moved.schema_version, moved.occurred_at, moved.correlation_id, moved.causation_id, moved.payload,
           moved.retry_count, moved.created_at {moved_scope}
    from moved {join_streams}
    returning {returned}
) {heard}
select fence.held, (select moved from total) as appended, tip.position, tip.ts,
       (select last_seq from total) as last_seq, {latency_column} as latency,
       case when %(named)s then (select array_agg(id) from (select id from moved order by seq limit 20) first) end as ids,
       {chosen_count} as chosen, (select yes from known) = 1 as known,
       case when tip.position is not null then pg_notify(%(channel)s, tip.position::text) end {handed_columns}
from fence left join tip on true {handed}

-- name: latency
-- How long the events have waited in the outbox. extract() would calculate in numeric.
latency as (
    select event_type, width_bucket(ms, %(bounds)s::float8[]) as bucket, count(*) as events, sum(ms) as total
    from (
        select event_type, greatest(0, date_part('epoch', tip.ts - created_at) * 1000) as ms from moved, tip
    ) written
    group by event_type, bucket
),

-- name: latency_column
coalesce((select jsonb_agg(jsonb_build_array(event_type, bucket, events, total)) from latency), '[]')

-- name: place
-- The position of an event that is moved.
(select position - (select moved from total) from tip)
+ case when (select cardinality(seqs) = moved from total)
       then width_bucket(moved.seq, (select seqs from total))
       else (select count(*) from moved before where (before.seq, before.id) <= (moved.seq, moved.id)) end

-- name: which_given
-- The events that a transport has accepted.
outbox.id = any(%(ids)s::uuid[])

-- name: chosen_due
-- All due events: for the log transport, reading, delivering and appending are one statement.
chosen as materialized (
    select due.place, due.lane from ({due}) due
),

-- name: which_due
-- Skips a row that another session is changing, so the counts differ.
outbox.ctid = any(array(select place from chosen))

-- name: streams
-- Aggregates of the declared types get a gapless number per stream (stream_seq). In a new life of the log, a stream continues at the base
-- of that life, so that no number is given twice.
streams as (
    insert into {schema}.stream as stream (aggregate_type, aggregate_id, seq, ts, gaps)
    select moved.aggregate_type, moved.aggregate_id, tip.base + count(*), tip.ts, int8multirange(int8range(1, tip.base + 1))
    from moved, tip
    where moved.aggregate_type = any(%(numbered)s)
    group by moved.aggregate_type, moved.aggregate_id, tip.ts, tip.base
    on conflict (aggregate_type, aggregate_id) do update
    set seq = excluded.seq + greatest(0, stream.seq - (select base from tip)), ts = excluded.ts,
        gaps = stream.gaps + excluded.gaps * int8multirange(int8range(stream.seq + 1, greatest(stream.seq, (select base from tip)) + 1))
    returning aggregate_type, aggregate_id, seq
),

-- name: stream_seq
-- The number within the stream: the stream's new head, counted back.
streams.seq - count(*) over (partition by moved.aggregate_type, moved.aggregate_id)
    + row_number() over (partition by moved.aggregate_type, moved.aggregate_id order by moved.seq)

-- name: join_streams
-- Events of other types have no number.
left join streams on streams.aggregate_type = moved.aggregate_type and streams.aggregate_id = moved.aggregate_id

-- name: count_attempts
-- After a takeover from a relay that died: counts the attempt before delivery, so that an event that kills the process is parked at last.
with {fence}
update {schema}.outbox o
set retry_count = o.retry_count + 1
from fence
where o.id = %(id)s and o.status = 'pending' and fence.held = %(lane_count)s
returning o.retry_count

-- name: give_back_attempt
-- Uncounts an attempt that was not made, because the destination is down.
with {fence}
update {schema}.outbox o
set retry_count = o.retry_count - 1
from fence
where o.id = %(id)s and o.status = 'pending' and o.retry_count > 0 and fence.held = %(lane_count)s

-- name: settle_failures
-- Failed deliveries wait for their retry, or end as failed; each writes or updates its dead letter, with its history.
with {fence},
failure as (
    select *
    from unnest(%(ids)s::uuid[], %(consumers)s::text[], %(errors)s::text[], %(classes)s::text[], %(delays)s::float8[], %(counts)s::integer[],
                %(attempts)s::integer[])
        as f (id, consumer_name, error, error_class, delay, counted, attempts)
),
spared as (
    -- A discarded letter stays discarded: if its consumer is asked again because its inbox has forgotten the event, the event goes on
    -- without it.
    update {schema}.dead_letter_events letter set spared = true
    from failure, fence
    where letter.event_id = failure.id and letter.consumer_name = failure.consumer_name and letter.status = 'discarded'
      and letter.consumer_name <> '@relay' and fence.held = %(lane_count)s
    returning letter.event_id, letter.consumer_name::text
),
inbox as (
    insert into {schema}.processed_events (event_id, consumer_name)
    select event_id, consumer_name from spared order by event_id, consumer_name
    on conflict do nothing
),
blamed as (
    select * from failure where (id, consumer_name) not in (select event_id, consumer_name from spared)
),
decided as (
    select distinct on (id) id, error, delay, counted
    from (
        select id, error, delay, counted, 1 as turn from blamed
        union all
        select id, error, 0, 0, 2 from failure
    ) verdict
    order by id, turn, delay nulls first
),
settled as (
    update {schema}.outbox o
    set retry_count = o.retry_count + decided.counted,
        status = case when decided.delay is null then 'failed' else 'pending' end,
        next_retry_at = clock_timestamp() + make_interval(secs => decided.delay),
        last_error = decided.error
    from decided, fence
    where o.id = decided.id and o.status = 'pending' and fence.held = %(lane_count)s
    returning o.*
),
letters as (
    insert into {schema}.dead_letter_events as letter (
        event_id, consumer_name, status, event_type, schema_version, aggregate_type, aggregate_id, occurred_at,
        correlation_id, causation_id, payload, seq, created_at, error, error_class, attempts, next_retry_at, history {scope_names}
    )
    select settled.id, failure.consumer_name, case when settled.status = 'failed' then 'parked' else 'retrying' end,
           settled.event_type, settled.schema_version, settled.aggregate_type, settled.aggregate_id, settled.occurred_at,
           settled.correlation_id, settled.causation_id, settled.payload, settled.seq, settled.created_at,
           failure.error, failure.error_class, case when failure.consumer_name = '@relay' then settled.retry_count else failure.attempts end,
           settled.next_retry_at,
           -- An event that was put back was not tried.
           case when failure.attempts = 0 then '[]'::jsonb else
               jsonb_build_array(jsonb_build_object('at', clock_timestamp(), 'error', left(failure.error, 500), 'error_class', failure.error_class,
                                                    'attempts', failure.attempts)) end {settled_scope}
    from settled join blamed failure on failure.id = settled.id
    order by settled.id, failure.consumer_name
    on conflict (event_id, consumer_name) do update
    set status = excluded.status, error = excluded.error, error_class = excluded.error_class,
        -- For a consumer behind the bus, each handler call counts; for a delivery, the attempts of its row.
        attempts = case when letter.consumer_name = '@relay' then greatest(letter.attempts + 1, excluded.attempts)
                        else letter.attempts + excluded.attempts end,
        next_retry_at = excluded.next_retry_at,
        last_seen_at = clock_timestamp(),
        history = (case when jsonb_array_length(letter.history) >= 50 then letter.history - 0 else letter.history end) || excluded.history
    returning 1
),
others as (
    -- A consumer that had failed and has not failed now has handled the event, unless no consumer was asked.
    select letter.event_id, letter.consumer_name
    from settled
    join {schema}.dead_letter_events letter on letter.event_id = settled.id
    where letter.status in ('retrying', 'parked') and letter.position is null
      and not exists (select from failure where failure.id = letter.event_id and failure.consumer_name in (letter.consumer_name, '@relay'))
    order by letter.event_id, letter.consumer_name
    for update of letter
),
recovered as (
    update {schema}.dead_letter_events letter
    set status = 'resolved', next_retry_at = null, last_seen_at = clock_timestamp()
    from others
    where letter.event_id = others.event_id and letter.consumer_name = others.consumer_name
)
select fence.held, (select count(*) from settled) as settled, (select count(*) from letters) as letters,
       (select coalesce(array_agg(id), '{{}}') from settled) as ids
from fence

-- name: record_withdrawn
-- A replay was aborted during the delivery of its event: the row is gone, or has failed again, but the failure is recorded. A consumer
-- with its inbox row back has given the event up; a letter says so, and can be retried.
with {fence},
failure as (
    select f.*, (select true from {schema}.processed_events inbox where inbox.event_id = f.id and inbox.consumer_name = f.consumer_name) as spared
    from fence, unnest(%(ids)s::uuid[], %(consumers)s::text[], %(errors)s::text[], %(classes)s::text[], %(attempts)s::integer[])
        as f (id, consumer_name, error, error_class, attempts)
    where fence.held = %(lane_count)s
),
source as (
    select failure.*, event.*
    from failure
    cross join lateral (
        select log.event_type, log.schema_version, log.aggregate_type, log.aggregate_id, log.occurred_at, log.correlation_id, log.causation_id,
               log.payload, log.seq, log.created_at {log_scope}
        from {schema}.log where log.id = failure.id
        union all
        select settled.event_type, settled.schema_version, settled.aggregate_type, settled.aggregate_id, settled.occurred_at,
               settled.correlation_id, settled.causation_id, settled.payload, settled.seq, settled.created_at {settled_scope}
        from {schema}.outbox settled where settled.id = failure.id
        limit 1
    ) event
)
insert into {schema}.dead_letter_events as letter (
    event_id, consumer_name, status, spared, event_type, schema_version, aggregate_type, aggregate_id, occurred_at,
    correlation_id, causation_id, payload, seq, created_at, error, error_class, attempts, history {scope_names}
)
select id, consumer_name, case when spared then 'discarded' else 'parked' end, coalesce(spared, false), event_type, schema_version,
       aggregate_type, aggregate_id, occurred_at, correlation_id, causation_id, payload, seq, created_at, error, error_class, attempts,
       jsonb_build_array(jsonb_build_object('at', clock_timestamp(), 'error', left(error, 500), 'error_class', error_class, 'attempts', attempts))
       {scope_names}
from source
order by id, consumer_name
on conflict (event_id, consumer_name) do update
set status = case when letter.status = 'resolved' then excluded.status else letter.status end,
    spared = case when letter.status = 'resolved' then excluded.spared else letter.spared end,
    error = excluded.error, error_class = excluded.error_class, attempts = letter.attempts + excluded.attempts, last_seen_at = clock_timestamp(),
    history = (case when jsonb_array_length(letter.history) >= 50 then letter.history - 0 else letter.history end) || excluded.history

-- name: resolve_letters
-- Resolves the dead letters of events that failed before and are published now. Locks them in the common order.
with mine as (
    select event_id, consumer_name
    from {schema}.dead_letter_events
    where event_id = any(%(ids)b) and status in ('retrying', 'parked') and position is null
    order by event_id, consumer_name
    for update
)
update {schema}.dead_letter_events letter
set status = 'resolved', next_retry_at = null, last_seen_at = clock_timestamp()
from mine
where letter.event_id = mine.event_id and letter.consumer_name = mine.consumer_name

-- name: lowest_fresh
-- Strict ordering: the lowest event that was never tried, blocked or not.
select min(seq) from {schema}.outbox
where status = 'pending' and next_retry_at is null and seq > %(watermark)s and lane = any(%(lanes)s)

-- name: last_seq
-- The highest seq so far, of committed and open transactions, and the start time of the server: behind a pooler it may be another server
-- than before. An unused sequence shows its first value as if it were drawn.
select case when is_called then last_value else 0 end, pg_postmaster_start_time() from {schema}.outbox_seq_seq

-- name: open_writers
-- Open transactions that have written to the outbox. They take this lock before they draw seq and hold it to the end.
select coalesce(array_agg(distinct virtualtransaction), '{{}}')
from pg_locks
where locktype = 'relation' and mode = 'RowExclusiveLock' and granted
  and database = (select oid from pg_database where datname = current_database())
  and relation = %(outbox)s::regclass and pid is distinct from pg_backend_pid()

-- name: awaiting
-- Aggregates with a delivery that waits for newer code. Usually there is none, and nothing is searched.
awaiting as materialized (
    select distinct letter.aggregate_type::text, letter.aggregate_id::text
    from {schema}.dead_letter_events letter
    where exists (select from {schema}.version_wait where until > clock_timestamp())
      and letter.status = 'retrying' and letter.error_class = 'NewerVersion' and letter.position is null
)
