-- name: rows_under_way
-- Locks outbox rows before letters, in the relay's order, and skips rows that the relay is settling now.
select queued.id from {schema}.outbox queued
join {schema}.operation_event item on item.event_id = queued.id
where item.operation_id = %(id)s and item.state = 'started' and item.position is null
order by queued.id
for update of queued skip locked

-- name: leave_to_others
-- An item that another operation has under way, too, is left to that one, with the state to restore should it be aborted as well. A
-- consumer that was to handle the item again for this operation only does not have to any more.
with shared as (
    select item.*, other.operation_id as other_id, other.ordinal as other_ordinal, other.consumer_name as other_consumer
    from {schema}.operation_event item
    join {schema}.operation_event other
        on other.event_id = item.event_id and other.operation_id <> item.operation_id and other.state = 'started'
        and (other.position is null) = (item.position is null)
        and (item.position is null or other.consumer_name = item.consumer_name)
    join {schema}.operation on operation.id = other.operation_id and operation.finished_at is null
    where item.operation_id = %(id)s and item.state = 'started'
      and case when item.position is null then item.event_id = any(%(ids)s::uuid[]) else item.ordinal = any(%(ordinals)s::bigint[]) end
),
inherited as (
    update {schema}.operation_event other
    set former_status = shared.former_status, former_letter = shared.former_letter, former_attempts = shared.former_attempts,
        was_handled = other.was_handled or (shared.was_handled and shared.consumer_name is not distinct from shared.other_consumer)
    from shared
    where other.operation_id = shared.other_id and other.ordinal = shared.other_ordinal
      and other.former_status in ('retrying', 'waiting', 'pending')
      and coalesce(shared.former_status not in ('retrying', 'waiting', 'pending'), true)
),
inbox as (
    insert into {schema}.processed_events (event_id, consumer_name)
    select distinct event_id, consumer_name from shared where was_handled and consumer_name is distinct from other_consumer
    order by event_id
    on conflict do nothing
)
select distinct ordinal, case when position is null then event_id end from shared

-- name: put_back_handled
-- For items to be handled again that were not tried yet: puts the inbox rows back before the delivery is withdrawn. Waits for the row
-- of a handler at work behind the bus; returns the items that it has handled.
with {outcomes},
untried as (
    select event_id, consumer_name from outcome
    where not by_letter and state is null and untried and was_handled and consumer_name is not null and event_id = any(%(ids)s::uuid[])
),
inbox as (
    insert into {schema}.processed_events (event_id, consumer_name)
    select event_id, consumer_name from untried order by event_id
    on conflict do nothing
    returning event_id
)
select event_id from untried except select event_id from inbox

-- name: letters_under_way
-- Letters that were not tried yet and that no worker holds.
with {outcomes}
select outcome.ordinal
from outcome
join {schema}.dead_letter_events letter on letter.event_id = outcome.event_id and letter.consumer_name = outcome.consumer_name
where outcome.by_letter and outcome.state is null and letter.status in ('retrying', 'waiting') and letter.attempts = letter.attempts_before
order by letter.event_id, letter.consumer_name
for update of letter skip locked

-- name: withdraw_letters
-- On abort: letters that were not tried yet get their former status; those that the operation made are removed. A letter that was
-- being retried anyway goes on, with all its attempts.
with {outcomes},
untried as (
    select * from outcome where by_letter and state is null and untried and ordinal = any(%(ordinals)s::bigint[])
),
removed as (
    delete from {schema}.dead_letter_events letter using untried
    where letter.event_id = untried.event_id and letter.consumer_name = untried.consumer_name
      and untried.former_status is null and letter.status = 'retrying' and letter.attempts = letter.attempts_before
),
restored as (
    update {schema}.dead_letter_events letter
    set status = untried.former_status, next_retry_at = null
    from untried
    where letter.event_id = untried.event_id and letter.consumer_name = untried.consumer_name
      and untried.former_status in ('parked', 'resolved', 'discarded') and letter.status = 'retrying' and letter.attempts = letter.attempts_before
)
insert into {schema}.processed_events (event_id, consumer_name)
select event_id, consumer_name from untried where was_handled
order by event_id
on conflict do nothing

-- name: withdraw_rows
-- The same for rows of the outbox: a row that had failed is failed again, a row inserted from log or letter is removed (`former_status`).
with {outcomes},
untried as (
    select * from outcome where not by_letter and state is null and untried and event_id = any(%(ids)s::uuid[])
),
removed as (
    delete from {schema}.outbox queued using untried
    where queued.id = untried.event_id and untried.former_status is null and queued.status = 'pending' and queued.retry_count = 0
    returning queued.id
),
restored as (
    update {schema}.outbox queued
    set status = 'failed', next_retry_at = null, retry_count = coalesce(untried.former_attempts, 1), last_error = coalesce(queued.last_error, 'a replay was aborted')
    from untried
    where queued.id = untried.event_id and untried.former_status = 'failed' and queued.status = 'pending' and queued.retry_count = 0
    returning queued.id
),
letters as (
    update {schema}.dead_letter_events letter
    set status = case when untried.former_letter = 'discarded' and letter.consumer_name = coalesce(untried.consumer_name, '@relay')
                      then 'discarded' else 'parked' end,
        next_retry_at = null
    from (select id from removed union all select id from restored) back
    join untried on untried.event_id = back.id
    where letter.event_id = back.id and letter.position is null and letter.status = 'retrying'
)
select id from removed union all select id from restored

-- name: end_items
-- On abort: no item waits any more. One that was tried and failed is retried by its own policy, and counts as failed. Items that are
-- in hand (a letter: its worker; a row: the relay that settles it) are left to the next step; returns how many.
with {outcomes},
ended as (
    update {schema}.operation_event item
    set state = verdict.state, note = case when verdict.state in ('failed', 'skipped') then outcome.note end
    from outcome
    cross join lateral (
        select case
            when outcome.by_letter and outcome.ordinal = any(%(ordinals)s::bigint[]) then 'aborted'
            when not outcome.by_letter and outcome.event_id = any(%(withdrawn)s::uuid[]) then 'aborted'
            when not outcome.by_letter and outcome.event_id = any(%(handled)s::uuid[]) then 'done'
            when outcome.state is not null then outcome.state
            when outcome.untried is false then 'failed'
            when outcome.ordinal = any(%(shared)s::bigint[]) then 'aborted'
            when not outcome.by_letter and outcome.event_id = any(%(held)s::uuid[]) then 'aborted'
        end as state
    ) verdict
    where item.operation_id = %(id)s and item.ordinal = outcome.ordinal and verdict.state is not null
    returning item.state
),
waiting as (
    update {schema}.operation_event set state = 'aborted' where operation_id = %(id)s and state = 'waiting'
),
counted as (
    update {schema}.operation
    set done = done + (select count(*) from ended where state = 'done'),
        skipped = skipped + (select count(*) from ended where state = 'skipped'),
        failed = failed + (select count(*) from ended where state = 'failed')
    where id = %(id)s
)
select (select count(*) from outcome) - (select count(*) from ended)

-- name: restore_attempts
-- On abort: restores the number of attempts of items that were taken back. The last step, because it marks them as untried.
update {schema}.dead_letter_events letter
set attempts_before = item.former_attempts
from {schema}.operation_event item
where item.operation_id = %(id)s and item.ordinal = any(%(ordinals)s::bigint[]) and item.state = 'aborted' and item.former_attempts is not null
  and letter.event_id = item.event_id and letter.consumer_name = item.consumer_name
  and letter.status = item.former_status and letter.status <> 'retrying' and letter.attempts = letter.attempts_before
