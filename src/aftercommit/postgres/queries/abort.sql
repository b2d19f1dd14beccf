-- name: rows_under_way
-- Before letters, rows: an operation that is taken back locks in the order of the relay, and leaves to it what it settles now.
select queued.id from {schema}.outbox queued
join {schema}.operation_event item on item.event_id = queued.id
where item.operation_id = %(id)s and item.state = 'started' and item.position is null
order by queued.id
for update of queued skip locked

-- name: withdraw_letters
-- Aborted: letters that were not tried yet have the status that they had; those that the operation made are removed. One that was
-- being retried anyway goes on, with all its attempts.
with {outcomes},
untried as (
    select * from outcome where by_letter and state is null and untried
),
removed as (
    delete from {schema}.dead_letter_events letter using untried
    where letter.event_id = untried.event_id and letter.consumer_name = untried.consumer_name
      and untried.former_status is null and letter.status = 'retrying' and letter.attempts = 0
),
restored as (
    update {schema}.dead_letter_events letter
    set status = untried.former_status, next_retry_at = null
    from untried
    where letter.event_id = untried.event_id and letter.consumer_name = untried.consumer_name
      and untried.former_status in ('parked', 'resolved', 'discarded') and letter.status = 'retrying' and letter.attempts = 0
)
insert into {schema}.processed_events (event_id, consumer_name)
select event_id, consumer_name from untried where was_handled
order by event_id
on conflict do nothing

-- name: withdraw_rows
-- The same behind a relay: what had failed has failed again, what was inserted from log or letter leaves. `former_status` says which.
with {outcomes},
untried as (
    select * from outcome where not by_letter and state is null and untried and event_id = any(%(ids)s::uuid[])
),
removed as (
    delete from {schema}.outbox queued using untried
    where queued.id = untried.event_id and untried.former_status is null and queued.status = 'pending' and queued.retry_count <= 1
    returning queued.id
),
restored as (
    update {schema}.outbox queued
    set status = 'failed', next_retry_at = null, last_error = coalesce(queued.last_error, 'a replay was aborted')
    from untried
    where queued.id = untried.event_id and untried.former_status = 'failed' and queued.status = 'pending' and queued.retry_count = 1
    returning queued.id
),
letters as (
    update {schema}.dead_letter_events letter
    set status = 'parked', next_retry_at = null
    from (select id from removed union all select id from restored) back
    where letter.event_id = back.id and letter.position is null and letter.status = 'retrying'
),
inbox as (
    insert into {schema}.processed_events (event_id, consumer_name)
    select event_id, consumer_name from untried where was_handled and consumer_name is not null
    order by event_id
    on conflict do nothing
)
select (select count(*) from removed) + (select count(*) from restored)

-- name: end_items
-- Aborted: nothing waits any more. What was tried and failed goes on being retried by its own policy, and counts as failed.
with {outcomes},
ended as (
    update {schema}.operation_event item
    set state = case when outcome.untried is not false then 'aborted' else 'failed' end,
        note = case when outcome.untried is not false then null else outcome.note end
    from outcome
    where item.operation_id = %(id)s and item.ordinal = outcome.ordinal
    returning item.state
),
waiting as (
    update {schema}.operation_event set state = 'aborted' where operation_id = %(id)s and state = 'waiting'
)
update {schema}.operation set failed = failed + (select count(*) from ended where state = 'failed') where id = %(id)s

-- name: restore_attempts
-- Aborted: what was taken back shows the attempts that are on record. The last of all, for by their zero it was known as untried.
update {schema}.dead_letter_events letter
set attempts = jsonb_array_length(letter.history)
from {schema}.operation_event item
where item.operation_id = %(id)s and item.state = 'aborted' and item.position is not null
  and letter.event_id = item.event_id and letter.consumer_name = item.consumer_name
  and letter.status = item.former_status and letter.status <> 'retrying' and letter.attempts = 0
