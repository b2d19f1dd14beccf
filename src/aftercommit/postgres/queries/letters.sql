-- name: failed_letters
-- Dead letters for the failures of a fenced statement. A part of the next two.
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
        attempts = letter.attempts + excluded.attempts,
        -- A closed letter is opened again: its event was sent again, with all its attempts.
        attempts_before = case when letter.status in ('resolved', 'discarded') then letter.attempts else letter.attempts_before end,
        next_retry_at = excluded.next_retry_at, last_seen_at = clock_timestamp(),
        -- A letter from the time when this consumer was behind the bus has no position, so no consumer would take it.
        position = coalesce(letter.position, excluded.position),
        history = (case when jsonb_array_length(letter.history) >= 50 then letter.history - 0 else letter.history end) || excluded.history
    -- An event that just waits, read again after a crash, may have a letter that is further on already.
    where excluded.attempts > 0 or letter.status in ('resolved', 'discarded')
    returning 1
)

-- name: record_failures
-- Writes dead letters for events that no slice has handled, and moves the checkpoint past them, in one fenced statement.
with fence as (
    update {schema}.consumer
    set position = greatest(position, %(position)s), updated_at = clock_timestamp(), suspect_position = null, suspect_attempts = 0,
        leased_until = clock_timestamp() + make_interval(secs => %(lease)s), lease_seconds = %(lease)s
    where name = %(checkpoint)s and token = %(token)s
    returning 1
),
failure as (
    select *
    from unnest(%(positions)s::bigint[], %(statuses)s::text[], %(errors)s::text[], %(classes)s::text[], %(delays)s::float8[], %(attempts)s::integer[])
        as f (position, status, error, error_class, delay, attempt)
    -- An event that is handled, and read again because the checkpoint is before it, waits for nothing.
    where attempt > 0 or not exists (
        select from {schema}.log join {schema}.processed_events inbox on inbox.event_id = log.id
        where log.position = f.position and inbox.consumer_name = %(consumer)s
    )
),
{failed_letters}
select (select count(*) from fence), (select count(*) from letters)

-- name: fail_in_slice
-- The same in the slice in which the events have failed, which is fenced itself: their inbox rows go.
with fence as (
    select 1
),
inbox as (
    delete from {schema}.processed_events where consumer_name = %(consumer)s and event_id = any(%(ids)s::uuid[])
),
failure as (
    select *
    from unnest(%(positions)s::bigint[], %(statuses)s::text[], %(errors)s::text[], %(classes)s::text[], %(delays)s::float8[], %(attempts)s::integer[])
        as f (position, status, error, error_class, delay, attempt)
),
{failed_letters}
select count(*) from letters

-- name: within_bytes
-- The first letters of a list that fit into memory, at least one. Counts the bytes that are sent to the client, not compressed.
select next_retry_at, event_id as id, event_type, schema_version, aggregate_type, aggregate_id, occurred_at, correlation_id, causation_id, payload,
       created_at, seq, position, greatest(0, attempts - attempts_before) as retry_count, last_seen_at as ts {scope_names}
from (
    select due.*, coalesce(sum(case when pg_column_compression(payload) is null then pg_column_size(payload)
                                    else octet_length(payload::text) end {audience_bytes})
                               over (order by _turn, seq rows between unbounded preceding and 1 preceding), 0) as _bytes_before
    from (
        {due}
    ) due
) sized
where _bytes_before < %(max_bytes)s
order by _turn, seq

-- name: lane_of_letter
-- The lane of a dead letter's aggregate, as the outbox computes it. The lanes of a divided consumer are these modulo their number.
(hashtextextended(letter.aggregate_type || '/' || letter.aggregate_id, 0) & 63)

-- name: due_letters
-- Dead letters of this consumer that are due, in order of their due time. If it is divided: those of one lane.
select *, next_retry_at as _turn
from {schema}.dead_letter_events letter
where consumer_name = %(consumer)s and status = 'retrying' and next_retry_at <= statement_timestamp() and position is not null
  and (%(lanes)s::integer = 1 or mod({lane_of_letter}, %(lanes)s::integer) = %(lane)s::integer)
order by next_retry_at
limit %(limit)s

-- name: due_letters_strict
-- Under strict ordering, an aggregate continues from its first open letter, if that is due: the letters that wait behind it go with it, up
-- to one that is parked or not due yet.
with head as materialized (
    select aggregate_type, aggregate_id, row_number() over (order by next_retry_at) as _turn
    from {schema}.dead_letter_events letter
    where consumer_name = %(consumer)s and status = 'retrying' and next_retry_at <= statement_timestamp() and position is not null
      and (%(lanes)s::integer = 1 or mod({lane_of_letter}, %(lanes)s::integer) = %(lane)s::integer)
      and not exists (
          select from {schema}.dead_letter_events earlier
          where earlier.consumer_name = letter.consumer_name and earlier.aggregate_type = letter.aggregate_type
            and earlier.aggregate_id = letter.aggregate_id and earlier.seq < letter.seq
            and earlier.status in ('retrying', 'waiting', 'parked') and earlier.position is not null
      )
    order by next_retry_at
    limit %(limit)s
)
select line.*, head._turn
from head cross join lateral (
    select open.*, bool_and(coalesce(status = 'waiting' or next_retry_at <= statement_timestamp(), false)) over (order by seq) as _is_free
    from (
        select * from {schema}.dead_letter_events letter
        where letter.consumer_name = %(consumer)s and letter.aggregate_type = head.aggregate_type
          and letter.aggregate_id = head.aggregate_id and letter.status in ('retrying', 'waiting', 'parked') and letter.position is not null
        order by letter.seq
        limit %(in_a_row)s
    ) open
) line
where line._is_free
order by head._turn, line.seq
limit %(limit)s

-- name: resolve_handled
-- Resolves the letters of a slice, in the handlers' transaction; the next waiting letter of an aggregate (strict ordering) becomes due.
with resolved as (
    update {schema}.dead_letter_events letter
    set status = 'resolved', next_retry_at = null, last_seen_at = clock_timestamp()
    where letter.event_id = any(%(ids)s::uuid[]) and letter.consumer_name = %(consumer)s
    returning aggregate_type, aggregate_id
),
cleared as (
    -- Ends the attempt that was counted after a takeover.
    update {schema}.consumer set suspect_position = null, suspect_attempts = 0
    where name = %(checkpoint)s and suspect_position is not null
),
next as (
    select waiting.event_id
    from (select distinct aggregate_type, aggregate_id from resolved) done
    cross join lateral (
        select letter.event_id
        from {schema}.dead_letter_events letter
        where letter.consumer_name = %(consumer)s and letter.aggregate_type = done.aggregate_type
          and letter.aggregate_id = done.aggregate_id and letter.status in ('retrying', 'waiting', 'parked') and letter.position is not null
          and letter.event_id <> all(%(ids)s::uuid[])
        -- The first open letter: one that waits behind a parked letter goes on waiting.
        order by letter.seq
        limit 1
    ) waiting
),
free as (
    -- Skips a letter that another session has locked: `free_waiting` handles it later.
    select letter.event_id
    from next
    join {schema}.dead_letter_events letter on letter.event_id = next.event_id and letter.consumer_name = %(consumer)s
    for update of letter skip locked
)
update {schema}.dead_letter_events letter
set status = 'retrying', next_retry_at = clock_timestamp()
from free
where letter.event_id = free.event_id and letter.consumer_name = %(consumer)s and letter.status = 'waiting'

-- name: fail_letter
-- Another attempt failed: waits longer, or parks. Leaves alone a letter that an operator has changed meanwhile.
with fence as (
    update {schema}.consumer set suspect_position = null, suspect_attempts = 0
    where name = %(checkpoint)s and token = %(token)s
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
      and last_seen_at = %(seen)s and (%(turn)s::timestamptz is null or next_retry_at = %(turn)s::timestamptz)
    returning 1
)
select (select count(*) from fence), (select count(*) from failed)

-- name: put_back_letters
-- Letters of events that this code does not know yet: tried again later, without spending an attempt.
update {schema}.dead_letter_events letter
set next_retry_at = clock_timestamp() + make_interval(secs => %(delay)s::float8), error = known.error, error_class = 'NewerVersion',
    last_seen_at = clock_timestamp()
from unnest(%(ids)s::uuid[], %(seen)s::timestamptz[], %(errors)s::text[]) as known (event_id, seen_at, error), {schema}.consumer
where letter.event_id = known.event_id and letter.consumer_name = %(consumer)s and letter.status = 'retrying'
  and letter.last_seen_at = known.seen_at and consumer.name = %(checkpoint)s and consumer.token = %(token)s

-- name: hold_back
-- Strict ordering: these letters were due behind one that has failed now, and wait behind it again.
update {schema}.dead_letter_events
set status = 'waiting', next_retry_at = null
where event_id = any(%(ids)s::uuid[]) and consumer_name = %(consumer)s and status = 'retrying'

-- name: hold_back_blocked
-- Strict ordering: a letter that is due behind a parked one cannot go, and waits until that one is closed.
update {schema}.dead_letter_events letter
set status = 'waiting', next_retry_at = null
where letter.consumer_name = %(consumer)s and letter.status = 'retrying' and letter.next_retry_at <= statement_timestamp() and letter.position is not null
  and (%(lanes)s::integer = 1 or mod({lane_of_letter}, %(lanes)s::integer) = %(lane)s::integer)
  and exists (
      select from {schema}.dead_letter_events earlier
      where earlier.consumer_name = letter.consumer_name and earlier.aggregate_type = letter.aggregate_type
        and earlier.aggregate_id = letter.aggregate_id and earlier.seq < letter.seq
        and earlier.status = 'parked' and earlier.position is not null
  )

-- name: open_letters_of_page
-- Events of this page that have an open letter: the letter handles them, in its order and with its payload. A letter with an earlier
-- position was sent again; if it is parked, it is tried at once. A letter with this very position is from a worker that has read the page
-- before and has not finished it.
with open as (
    select letter.event_id, letter.position < page.position as sent_again
    from {schema}.dead_letter_events letter
    join unnest(%(ids)s::uuid[], %(positions)s::bigint[]) as page (event_id, position) on page.event_id = letter.event_id
    where letter.consumer_name = %(consumer)s and letter.status in ('retrying', 'waiting', 'parked') and letter.position <= page.position
),
due as (
    update {schema}.dead_letter_events letter
    set status = 'retrying', next_retry_at = clock_timestamp(), attempts_before = letter.attempts
    from open
    where letter.event_id = open.event_id and letter.consumer_name = %(consumer)s and letter.status = 'parked' and open.sent_again
)
select event_id from open

-- name: blocked_aggregates
-- Strict ordering: aggregates of this page with an open dead letter of this consumer.
select distinct letter.aggregate_type, letter.aggregate_id
from {schema}.dead_letter_events letter
join unnest(%(types)s::text[], %(ids)s::text[]) as page (aggregate_type, aggregate_id) using (aggregate_type, aggregate_id)
where letter.consumer_name = %(consumer)s and letter.status in ('retrying', 'waiting', 'parked') and letter.position is not null

-- name: free_waiting
-- Strict ordering: the first open letter of an aggregate need not wait. Usually `resolve_handled` has seen to it; this is for letters that
-- operators have resolved or discarded, and for crashes. One index step per aggregate, however many letters it has.
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
  and letter.status = 'waiting' and (%(lanes)s::integer = 1 or mod({lane_of_letter}, %(lanes)s::integer) = %(lane)s::integer)

-- name: take_up_newer
-- Events that older code parked or put back because it did not know their version: this code does, so they are tried again.
update {schema}.dead_letter_events letter
set status = 'retrying', next_retry_at = clock_timestamp()
from unnest(%(types)s::text[], %(versions)s::integer[]) as known (event_type, version)
where letter.consumer_name = any(%(consumers)s::text[]) and letter.status in ('parked', 'retrying') and letter.position is not null
  and letter.error_class in ('NewerSchemaVersion', 'NewerVersion')
  and letter.event_type = known.event_type and letter.schema_version <= known.version

-- name: take_up_newer_deliveries
-- The same behind the bus: the event is a failed row of the outbox, and is delivered again to the consumers that have not handled it.
with sent as (
    update {schema}.outbox
    set status = 'pending', retry_count = 0, next_retry_at = clock_timestamp()
    where status = 'failed' and id in (
        select letter.event_id
        from {schema}.dead_letter_events letter
        join unnest(%(types)s::text[], %(versions)s::integer[]) as known (event_type, version) on known.event_type = letter.event_type
        where letter.status = 'parked' and letter.position is null
          and letter.error_class in ('NewerSchemaVersion', 'NewerVersion') and letter.schema_version <= known.version
    )
    returning id, next_retry_at
)
update {schema}.dead_letter_events letter
set status = 'retrying', next_retry_at = sent.next_retry_at
from sent
where letter.event_id = sent.id and letter.status = 'parked' and letter.position is null

-- name: corrected_payloads
-- Behind the bus: payloads that an operator has corrected for this consumer only. They stay valid after the letter is closed, in case the
-- event is handled again.
select letter.event_id, letter.payload::text
from {schema}.dead_letter_events letter
join {schema}.outbox on outbox.id = letter.event_id
where letter.event_id = any(%(ids)s::uuid[]) and letter.consumer_name = %(consumer)s and letter.payload::text <> outbox.payload::text
