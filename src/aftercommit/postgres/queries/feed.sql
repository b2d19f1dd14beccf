-- name: feed_plan
-- The statements of a feed are planned once, maybe while the log is empty, with unknown keys. Each has an index in its own order, which
-- stays right however full the log gets. To plan the statement of a page takes longer than to run it.
select set_config('enable_seqscan', 'off', false), set_config('enable_bitmapscan', 'off', false),
       set_config('enable_sort', 'off', false), set_config('enable_incremental_sort', 'off', false),
       set_config('plan_cache_mode', 'force_generic_plan', false)

-- name: feed_columns
-- An event as feeds read it, in the order of `feed_rows` in records.py.
id, event_type, schema_version, aggregate_type, aggregate_id, occurred_at, correlation_id, causation_id, payload, created_at, seq,
position, ts, stream_seq {scope_names}

-- name: feed_bytes
-- The bytes of a payload as they are sent to the client, not compressed.
case when pg_column_compression(payload) is null then pg_column_size(payload) else octet_length(payload::text) end {audience_bytes}

-- name: feed_cut
-- As many of these events as fit into memory, at least one; `_more` of the last one says whether some were left out.
select {columns}, _more
from (
    select *, lead(position) over (order by {number} {direction}) is not null as _more,
           sum(_bytes) over (order by {number} {direction} rows between unbounded preceding and 1 preceding) as _bytes_before
    from (
        {candidates}
    ) candidate
) page
where coalesce(_bytes_before, 0) < %(max_bytes)s

-- name: feed_tail
-- The events after a position, for all feeds of a process; and the state of the log, in at least one row.
-- before   the time of the event at that position, which is different after a restore
-- follows  whether the next event is still kept, so that retention has not overtaken the reader
select head.position, head.ts, head.epoch,
       (select log.ts from {schema}.log where log.position = %(after)s) as before,
       exists (select from {schema}.log where log.position = %(after)s::bigint + 1) as follows,
       page.*
from {schema}.head
left join lateral (
    {page}
) page on true
order by page.position

-- name: feed_tail_candidates
-- The next positions of the log; a range, because a life of the log has no gaps.
select {columns}, {bytes} as _bytes
from {schema}.log
where position > %(after)s and position <= %(after)s::bigint + %(size)s
  and (%(types)s::text[] is null or event_type = any(%(types)s::text[]))
order by position

-- name: feed_page
-- A page of a strand between two numbers, and what tells whether a cursor is still valid.
-- place  the time of the event that the cursor names
-- kept   the first event that is still kept, of this stream or (by position) of the log
-- known  the highest number so far, and its time
-- Then the base of the current life, how many events after the cursor are no longer kept, and the page.
-- The first row has the state and no event, the others have an event and no state, which is so computed and sent once.
select state.*, page.*
from (
    select place.ts as place_ts, kept.first, kept.ts as first_ts, ({known})::bigint as known, head.epoch, ({known_ts})::timestamptz as known_ts,
           coalesce(upper(head.gaps) - 1, 0) as base,
           {schema}.given({gaps}, least(%(place)s::bigint, 9223372036854775806), coalesce(kept.first - 1, ({known})::bigint)) as dropped
    from {schema}.head
    left join (
        {place}
    ) place on true
    left join (
        {kept}
    ) kept on true
) state
full join (
    {page}
) page on false
order by page.{number} nulls first

-- name: feed_load
-- The present state of a strand: the newest events, what is kept, how many there are, and the gaps. A stream without an event in the
-- current life of the log continues above its base. The first row has the state and no event, the others have an event and no state.
select state.*, page.*
from (
    select ({total})::bigint as total, kept.first, kept.ts as first_ts, ({known})::bigint as known, head.epoch, ({known_ts})::timestamptz as known_ts,
           array(
               select array[lower(gap), upper(gap) - 1]
               from unnest(coalesce({gaps}, '{{}}') + int8multirange(int8range(
                   coalesce(({known})::bigint, 0) + 1, greatest(coalesce(({known})::bigint, 0) + 1, upper(head.gaps))
               ))) gap
               order by 1
           ) as gaps
    from {schema}.head
    left join (
        {kept}
    ) kept on true
) state
full join (
    {page}
) page on false
order by page.{number} nulls first

-- name: feed_moment
-- The last event of a strand before a time, by bisection: times do not run backwards along the numbers, so each step looks up one event
-- and halves the range. Without a time: no kept event is earlier.
with recursive search (low, high, ts) as (
    select coalesce(kept.first, 1) - 1, coalesce(({known})::bigint, 0) + 1, null::timestamptz
    from {schema}.head
    left join (
        {kept}
    ) kept on true
    union all
    select case when probe.ts < %(moment)s then probe.number else search.low end,
           case when probe.ts < %(moment)s then search.high else middle.number end,
           case when probe.ts < %(moment)s then probe.ts else search.ts end
    from search
    cross join lateral (select search.low + (search.high - search.low) / 2 as number) middle
    left join lateral (
        {probe}
    ) probe on true
    where search.high - search.low > 1
)
select search.low, search.ts, head.epoch
from search
cross join {schema}.head
where search.high - search.low <= 1

-- name: feed_probe
-- The first event of a strand from the middle on.
select log.{number} as number, log.ts
from {schema}.log
where {constant} and ({place}) > ({low}) and ({place}) <= ({high})
order by {order}
limit 1

-- name: feed_probe_heard
-- The first event of a reader from the middle on, so that the position of another reader's event does not show.
select log.position as number, log.ts
from {schema}.log
where log.position = (
    select heard.position
    from {schema}.audience heard
    where heard.reader = %(key)s and heard.position > ({low}) and heard.position <= ({high})
    order by heard.position
    limit 1
)

-- name: feed_candidates
-- Events of a strand in order. The comparison and the sort use whole rows, an order that only the right index has, so the planner cannot
-- mistake a rare key or value for a frequent one and use another index.
select {columns}, {bytes} as _bytes
from {schema}.log
where {constant} and ({place}) > ({low}) and ({place}) <= ({high}) {types} {rest}
order by {order}
limit %(limit)s

-- name: feed_candidates_by_facet
-- The same for events with certain payload values: one index scan for each value, merged.
select found.*
from unnest(%(values)s::text[]) allowed (_value)
cross join lateral (
    select {columns}, {bytes} as _bytes
    from {schema}.log
    where {constant} and ({place}) > ({low}) and ({place}) <= ({high}) {types} {rest}
    order by {order}
    limit %(limit)s
) found
order by {number} {direction}
limit %(limit)s

-- name: feed_reach
-- How far the next so many events with certain values reach. No row: to the end.
select found.number, found.ts
from unnest(%(values)s::text[]) allowed (_value)
cross join lateral (
    select {number} as number, ts
    from {schema}.log
    where {constant} and ({place}) > ({low}) and ({place}) <= ({high})
    order by {order}
    limit %(window)s
) found
order by found.number {direction}
offset %(window)s - 1
limit 1

-- name: feed_types
-- For a feed of some event types only.
and event_type = any(%(types)s::text[])

-- name: feed_rest
-- A further filter, after the one that chooses the index.
and {value} = any({allowed}::text[])

-- name: feed_constant_stream
-- The condition of all strands of a feed. The type is a literal, so that partial indexes can be used.
aggregate_type = {aggregate_type} and stream_seq is not null

-- name: feed_constant_position
-- No condition.
true

-- name: feed_strand_stream
-- One aggregate.
{constant} and aggregate_id = %(key)s

-- name: feed_place_stream
-- The event of a stream with this number, of any type.
select log.ts from {schema}.log where {strand} and stream_seq = %(place)s limit 1

-- name: feed_place_position
-- The event at this position, of any strand.
select log.ts from {schema}.log where position = %(place)s

-- name: feed_kept_stream
-- The first event of a stream that is still kept.
select stream_seq as first, log.ts from {schema}.log where {strand} order by stream_seq limit 1

-- name: feed_kept_position
-- The first event of the log that is still kept.
select position as first, log.ts from {schema}.log order by position limit 1

-- name: feed_known_stream
-- The last number of a stream, which outlives its events.
select stream.seq from {schema}.stream where stream.aggregate_type = {aggregate_type} and stream.aggregate_id = %(key)s

-- name: feed_known_ts_stream
-- The time of that number.
select stream.ts from {schema}.stream where stream.aggregate_type = {aggregate_type} and stream.aggregate_id = %(key)s

-- name: feed_gaps_stream
-- The gaps in the numbers of a stream.
(select stream.gaps from {schema}.stream where stream.aggregate_type = {aggregate_type} and stream.aggregate_id = %(key)s)

-- name: feed_gaps_position
-- The gaps in the positions.
head.gaps

-- name: feed_known_position
-- The last position.
head.position

-- name: feed_known_ts_position
-- The time of that position.
head.ts

-- name: feed_total
-- The number of events from the first that is kept to the last: the only gaps are those between two lives.
{schema}.given({gaps}, coalesce(kept.first, 1) - 1, ({known})::bigint)

-- name: feed_count
-- The number of events of certain types in a stream. The index has the types, so no event is read.
select count(*) from {schema}.log where {strand} {types}
