-- name: record_operation
-- Records an operation: what, by whom and why.
insert into {schema}.operation (id, kind, status, requested_by, reason, target, selection, detail, per_second, finished_at)
values (%(id)s, %(kind)s, %(status)s::text, %(requested_by)s, %(reason)s, %(target)s, %(selection)s, %(detail)s, %(per_second)s,
        case when %(status)s::text = 'done' then clock_timestamp() end)

-- name: record_items
-- The letters that an action has changed, and those that it left alone, with the reason.
with items as (
    insert into {schema}.operation_event (operation_id, ordinal, event_id, consumer_name, position, state, note)
    select %(id)s, ordinal, event_id, consumer_name, position, state, note
    from unnest(%(ids)s::uuid[], %(consumers)s::text[], %(positions)s::bigint[], %(states)s::text[], %(notes)s::text[])
        with ordinality as item (event_id, consumer_name, position, state, note, ordinal)
    returning state
)
update {schema}.operation
set total = (select count(*) from items), done = (select count(*) from items where state = 'done'),
    skipped = (select count(*) from items where state = 'skipped')
where id = %(id)s

-- name: operations
-- Operations, newest first, without an edited payload, which only its letter shows.
select id, kind, status, requested_by, reason, target, selection, detail - 'former_payload', per_second, total, done, skipped, failed, created_at, finished_at,
       coalesce(clock_timestamp() < driven_until and clock_timestamp() >= driven_until - make_interval(secs => coalesce(lease_seconds, 3600)), false)
from {schema}.operation
where (%(id)s::uuid is null or id = %(id)s::uuid) and (%(kinds)s::text[] is null or kind = any(%(kinds)s::text[]))
order by created_at desc, id
limit %(limit)s

-- name: failed_items
-- Items of an operation that did not succeed, with the reason; in order.
select event_id, consumer_name, state, coalesce(note, 'no reason given')
from {schema}.operation_event
where operation_id = %(id)s and state in ('failed', 'skipped')
order by ordinal
limit %(limit)s

-- name: consumer_of
-- Whether a consumer follows the log, its checkpoint, its event types, and whether it has an inbox.
select position, string_to_array(declared_by, ' '), inbox from {whole_consumers} whole where name = %(consumer)s

-- name: known_owners
-- Every consumer with a checkpoint or dead letters.
with recursive owner as (
    (select consumer_name from {schema}.dead_letter_events order by consumer_name limit 1)
    union all
    select following.consumer_name
    from owner cross join lateral (
        select letter.consumer_name from {schema}.dead_letter_events letter
        where letter.consumer_name > owner.consumer_name order by letter.consumer_name limit 1
    ) following
)
select split_part(name, '#', 1) from {schema}.consumer
union
select consumer_name from owner where consumer_name <> '@relay'
order by 1

-- name: item_details
-- The letter of an item, and its inbox row.
left join {schema}.dead_letter_events letter on letter.event_id = chosen.event_id and letter.consumer_name = chosen.consumer_name
left join {schema}.processed_events inbox on inbox.event_id = chosen.event_id and inbox.consumer_name = chosen.consumer_name

-- name: item_event
-- The event of an item (its first time in the log), and its row of the outbox.
left join lateral (
    select found.event_type, found.created_at, found.since, found.in_log
    from (
        select log.event_type, log.created_at, least(log.created_at, log.occurred_at) as since, true as in_log, log.seq
        from {schema}.log where log.id = chosen.event_id
        union all
        select known.event_type, known.created_at, least(known.created_at, known.occurred_at), false, known.seq
        from {schema}.dead_letter_events known where known.event_id = chosen.event_id
    ) found
    order by found.in_log desc, found.seq
    limit 1
) event on true
left join {schema}.outbox queued on queued.id = chosen.event_id

-- name: is_past_horizon
-- Whether an item was handled. The inbox does not know events from before its horizon. An open letter means that it was not handled, and
-- inbox rows are kept for events that were never in the log. A letter reaches its consumer only. A delivery reaches all consumers; those
-- that are not meant are protected by their inbox only, even if the one that is meant is to handle it again.
event.since < horizon.moment and event.in_log and coalesce(letter.status, 'resolved') in ('resolved', 'discarded')
    and case when chosen.position is null then inbox.event_id is null or %(again)s else inbox.event_id is null and not %(again)s end

-- name: is_wanted_again
-- A discarded letter that was selected as such: the inbox row that has spared its consumer the event does not count.
(%(to_owner)s and coalesce(letter.spared and letter.status = 'discarded', false))

-- name: freeze
-- Stores the selection as it is now, in the order of publishing; later changes do not affect it.
with frozen as (
    insert into {schema}.operation_event (operation_id, ordinal, event_id, consumer_name, position, former_letter)
    select %(id)s, row_number() over (order by chosen.seq, chosen.event_id, chosen.consumer_name), chosen.event_id, chosen.consumer_name,
           chosen.position, letter.status
    from (
        {chosen}
    ) chosen
    left join {schema}.dead_letter_events letter
        on letter.event_id = chosen.event_id and letter.consumer_name = coalesce(chosen.consumer_name, '@relay')
    returning 1
)
-- An operation without items is finished.
update {schema}.operation
set total = (select count(*) from frozen),
    status = case when exists (select from frozen) then status else 'done' end,
    finished_at = case when not exists (select from frozen) then clock_timestamp() end
where id = %(id)s
returning total

-- name: take_operation
-- Takes the lease of an operation if it is free, expired, void because the clock was set back, or ours.
update {schema}.operation
set driver = %(driver)s, driven_by = %(driven_by)s, driven_until = clock_timestamp() + make_interval(secs => %(lease)s), lease_seconds = %(lease)s
where id = %(id)s and finished_at is null
  and (driver is null or driver = %(driver)s or driven_until < clock_timestamp()
       or driven_until > clock_timestamp() + make_interval(secs => greatest(coalesce(lease_seconds, 3600), %(lease)s)))
returning status

-- name: who_drives
-- The driver of an operation, and when its lease expires.
select driven_by, driven_until, extract(epoch from driven_until - clock_timestamp())::float8
from {schema}.operation where id = %(id)s and driver is not null

-- name: lock_operations
-- Renaming a consumer waits for the current step of a driver, which may feed that consumer; the next step comes after it.
select id from {schema}.operation where finished_at is null order by id for update

-- name: wait_briefly
-- Limits the waits for locks in this transaction.
select set_config('lock_timeout', %(patience)s, true)

-- name: operations_under_way
-- Operations that have begun and not ended.
select id from {schema}.operation where finished_at is null order by created_at

-- name: hold_operation
-- The beginning of every step: the row lock and the driver's token keep a second driver out, and an abort shows.
update {schema}.operation set driven_until = clock_timestamp() + make_interval(secs => %(lease)s), lease_seconds = %(lease)s
where id = %(id)s and driver = %(driver)s and finished_at is null
returning status

-- name: release_operation
-- Releases the lease, so that another driver can go on at once.
update {schema}.operation set driver = null, driven_until = null, lease_seconds = null where id = %(id)s and driver = %(driver)s

-- name: ask_to_abort
-- Requests an abort; the driver sees it at its next step.
update {schema}.operation set status = 'aborting' where id = %(id)s and status = 'running'

-- name: end_operation
-- The last step.
update {schema}.operation
set status = %(status)s::text, finished_at = clock_timestamp(), driver = null, driven_until = null
where id = %(id)s and driver = %(driver)s

-- name: hold_horizon
-- Keeps retention from removing inbox rows while we decide by them.
select horizon from {schema}.upkeep where task = 'inbox' for share

-- name: next_items
-- The next waiting items, with everything that decides about each.
select chosen.ordinal, chosen.event_id, chosen.consumer_name, chosen.position, letter.status, queued.status, inbox.event_id is not null,
       -- A delivery needs the event itself, not just a letter, unless its delivery was discarded.
       case when chosen.position is null then coalesce(event.in_log, false) or queued.id is not null or coalesce(delivery.status <> 'resolved', false)
            else event.created_at is not null or queued.id is not null end,
       coalesce({is_past_horizon}, false),
       exists (select from {schema}.consumer where consumer.name = chosen.consumer_name),
       case when chosen.position is not null then letter.attempts_before else queued.retry_count end,
       coalesce(letter.status, case when chosen.consumer_name is null then delivery.status end), chosen.former_letter,
       exists (
           select from {schema}.dead_letter_events other
           where other.event_id = chosen.event_id and other.position is null and other.status in ('retrying', 'waiting', 'parked')
       ),
       {is_wanted_again}
from (
    select * from {schema}.operation_event
    where operation_id = %(id)s and state = 'waiting'
    order by ordinal
    limit %(limit)s
) chosen
cross join (select coalesce((select horizon from {schema}.upkeep where task = 'inbox'), '-infinity') as moment) horizon
{details}
{event}
left join {schema}.dead_letter_events delivery
    on chosen.position is null and delivery.event_id = chosen.event_id and delivery.consumer_name = '@relay'
order by chosen.ordinal

-- name: mark_items
-- Records the outcome of items in this step, and their former state.
with marked as (
    update {schema}.operation_event item
    set state = outcome.state, former_status = outcome.former, former_letter = outcome.letter, former_attempts = outcome.attempts,
        was_handled = outcome.handled, note = outcome.note
    from unnest(%(ordinals)s::bigint[], %(states)s::text[], %(formers)s::text[], %(letters)s::text[], %(attempts)s::integer[],
                %(handled)s::boolean[], %(notes)s::text[])
        as outcome (ordinal, state, former, letter, attempts, handled, note)
    where item.operation_id = %(id)s and item.ordinal = any(%(ordinals)s::bigint[]) and item.ordinal = outcome.ordinal
    returning item.state
)
update {schema}.operation
set skipped = skipped + (select count(*) from marked where state = 'skipped'),
    failed = failed + (select count(*) from marked where state = 'failed')
where id = %(id)s

-- name: forget_handled
-- Removes inbox rows of events to be handled again, which the operator has confirmed.
delete from {schema}.processed_events inbox
using unnest(%(ids)s::uuid[], %(consumers)s::text[]) as chosen (event_id, consumer_name)
where inbox.event_id = chosen.event_id and inbox.consumer_name = chosen.consumer_name

-- name: lock_known_letters
-- Letters that no session has locked. The others are skipped: a handler may take long.
select letter.event_id, letter.consumer_name
from {schema}.dead_letter_events letter
join unnest(%(ids)s::uuid[], %(consumers)s::text[]) as chosen (event_id, consumer_name)
    on letter.event_id = chosen.event_id and letter.consumer_name = chosen.consumer_name
where letter.event_id = any(%(ids)s::uuid[])
order by letter.event_id, letter.consumer_name
for update of letter skip locked

-- name: reopen_deliveries
-- Reopens a discarded delivery that is replayed, and the letter of its consumer behind the bus.
update {schema}.dead_letter_events letter
set status = 'parked'
from unnest(%(ids)s::uuid[], %(consumers)s::text[]) as chosen (event_id, consumer_name)
where letter.event_id = chosen.event_id and letter.consumer_name = coalesce(chosen.consumer_name, '@relay')
  and letter.position is null and letter.status = 'discarded'

-- name: feed_known_letters
-- Makes existing letters due, in the given order. One that waits behind another (strict ordering) goes on waiting. One from the time when
-- its consumer was behind the bus has no position yet.
update {schema}.dead_letter_events letter
set status = 'retrying', attempts_before = letter.attempts, next_retry_at = statement_timestamp() + chosen.ordinal * interval '1 microsecond',
    position = coalesce(letter.position, chosen.position)
from unnest(%(ids)s::uuid[], %(consumers)s::text[], %(ordinals)s::bigint[], %(positions)s::bigint[])
    as chosen (event_id, consumer_name, ordinal, position)
where letter.event_id = chosen.event_id and letter.consumer_name = chosen.consumer_name and letter.status <> 'waiting'

-- name: feed_new_letters
-- Gives an event of the log to its consumer as a letter that is due: handled in its own transaction, without moving the checkpoint.
insert into {schema}.dead_letter_events (
    event_id, consumer_name, status, event_type, schema_version, aggregate_type, aggregate_id, occurred_at,
    correlation_id, causation_id, payload, seq, position, created_at, error, error_class, attempts, next_retry_at {scope_names}
)
select log.id, chosen.consumer_name, 'retrying', log.event_type, log.schema_version, log.aggregate_type, log.aggregate_id, log.occurred_at,
       log.correlation_id, log.causation_id, log.payload, log.seq, log.position, log.created_at,
       'replayed by an operator', 'Replayed', 0, statement_timestamp() + chosen.ordinal * interval '1 microsecond' {log_scope}
from unnest(%(ids)s::uuid[], %(consumers)s::text[], %(ordinals)s::bigint[], %(positions)s::bigint[])
    as chosen (event_id, consumer_name, ordinal, position)
join {schema}.log on log.position = chosen.position and log.id = chosen.event_id
on conflict (event_id, consumer_name) do nothing

-- name: item_outcomes
-- The state of the running items: by their letter, or (behind a relay) by their row of the outbox.
outcome as (
    select item.ordinal, item.event_id, item.consumer_name, item.former_status, item.former_letter,
           item.former_attempts, item.was_handled, item.position is not null as by_letter,
           case
               when item.position is null and queued.id is null and discarded.event_id is not null then 'skipped'
               when item.position is null and queued.id is null then 'done'
               when item.position is null and queued.status = 'failed' then 'failed'
               when item.position is null then case when %(strict)s::boolean and behind.event_id is not null then 'failed' end
               when letter.event_id is null then 'failed'
               when letter.status = 'waiting' and exists (
                   select from {schema}.dead_letter_events earlier
                   where earlier.consumer_name = letter.consumer_name and earlier.aggregate_type = letter.aggregate_type
                     and earlier.aggregate_id = letter.aggregate_id and earlier.seq < letter.seq
                     and earlier.status = 'parked' and earlier.position is not null
               ) then 'failed'
               else case letter.status when 'resolved' then 'done' when 'discarded' then 'skipped' when 'parked' then 'failed' end
           end as state,
           case
               when item.position is null and queued.status = 'failed' then queued.last_error
               when item.position is null then 'waits behind a failed delivery of ' || queued.aggregate_type || ' ' || queued.aggregate_id
               when letter.event_id is null then 'the letter was removed meanwhile'
               when letter.status = 'waiting' then 'waits behind a parked letter of ' || letter.aggregate_type || ' ' || letter.aggregate_id
               else letter.error_class || ': ' || left(letter.error, 500)
           end as note,
           case when item.position is null then queued.retry_count = 0 else letter.attempts = letter.attempts_before end as untried
    from {schema}.operation_event item
    left join {schema}.dead_letter_events letter
        on item.position is not null and letter.event_id = item.event_id and letter.consumer_name = item.consumer_name
    left join {schema}.outbox queued on item.position is null and queued.id = item.event_id
    left join lateral (
        -- In a strict outbox, an event behind a failed row does not go.
        select held.id as event_id from {schema}.outbox held
        where held.aggregate_type = queued.aggregate_type and held.aggregate_id = queued.aggregate_id and held.seq < queued.seq
          and held.status = 'failed'
        limit 1
    ) behind on true
    left join {schema}.dead_letter_events discarded
        on item.position is null and discarded.event_id = item.event_id and discarded.consumer_name = '@relay' and discarded.status = 'discarded'
    where item.operation_id = %(id)s and item.state = 'started'
)

-- name: settle_items
-- Counts finished items; returns the totals, and how many running items were not tried yet.
with {outcomes},
settled as (
    update {schema}.operation_event item
    set state = outcome.state, note = case when outcome.state <> 'done' then outcome.note end
    from outcome
    where item.operation_id = %(id)s and item.ordinal = outcome.ordinal and outcome.state is not null
    returning item.state
),
counted as (
    update {schema}.operation
    set done = done + (select count(*) from settled where state = 'done'),
        skipped = skipped + (select count(*) from settled where state = 'skipped'),
        failed = failed + (select count(*) from settled where state = 'failed')
    where id = %(id)s
    returning total, done, skipped, failed
)
select counted.total, counted.done, counted.skipped, counted.failed,
       (select count(*) from outcome where state is null), (select count(*) from outcome where state is null and untried)
from counted

-- name: who_is_missing
-- What items in this state wait for: consumers without a worker, paused, or without a checkpoint (paused: null); and (as null) any relay.
select distinct item.consumer_name::text, consumer.paused
from {schema}.operation_event item
left join {whole_consumers} consumer on consumer.name = item.consumer_name
where item.operation_id = %(id)s and item.state = %(state)s and item.position is not null
  and (consumer.paused or consumer.is_held is not true)
union all
select null, false
where exists (select from {schema}.operation_event where operation_id = %(id)s and state = %(state)s and position is null)
  and not exists (select from {schema}.lane where {lane_is_held})

-- name: held_up
-- Aggregates with an item behind a row that has failed: in a strict outbox, it waits.
select distinct queued.aggregate_type, queued.aggregate_id
from {schema}.operation_event item
join {schema}.outbox queued on queued.id = item.event_id and queued.status = 'pending'
where item.operation_id = %(id)s and item.state = 'started' and item.position is null
  and exists (
      select from {schema}.outbox held
      where held.aggregate_type = queued.aggregate_type and held.aggregate_id = queued.aggregate_id and held.seq < queued.seq
        and held.status = 'failed'
  )
order by 1, 2
limit 3
