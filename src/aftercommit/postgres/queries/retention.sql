-- name: claim_sweep
-- Takes the right to do a round, for one program at a time; the lease expires if that program dies.
insert into {schema}.upkeep as upkeep (task, ran_at, leased_until, lease_seconds)
values ('sweep', clock_timestamp(), clock_timestamp() + make_interval(secs => %(lease)s), %(lease)s)
on conflict (task) do update set ran_at = excluded.ran_at, leased_until = excluded.leased_until, lease_seconds = excluded.lease_seconds
where (upkeep.leased_until is null or upkeep.leased_until < clock_timestamp()
       or upkeep.leased_until > clock_timestamp() + make_interval(secs => greatest(coalesce(upkeep.lease_seconds, 3600), %(lease)s)))
  -- A round in the future means that the clock was set back.
  and (upkeep.ran_at is null or upkeep.ran_at <= clock_timestamp() - make_interval(secs => %(interval)s) or upkeep.ran_at > clock_timestamp())
returning leased_until

-- name: renew_sweep
-- Renews the lease of a round; no row if another program has taken it over.
update {schema}.upkeep set leased_until = clock_timestamp() + make_interval(secs => %(lease)s), lease_seconds = %(lease)s
where task = 'sweep' and leased_until = %(until)s
returning leased_until

-- name: release_sweep
-- Ends the round, unless another program has it.
update {schema}.upkeep set leased_until = null, lease_seconds = null where task = 'sweep' and leased_until = %(until)s

-- name: brief_locks
-- Skips rows that others have locked; the next pass finds them.
select set_config('lock_timeout', '1s', true)

-- name: lock_upkeep
-- The state of a task, locked: who relies on its horizon holds the row FOR SHARE, and we wait for it. A pass runs up to the time at which
-- it began, and not beyond the horizon on record. A new pass is due after a twentieth of the retention time.
insert into {schema}.upkeep as upkeep (task) values (%(task)s)
on conflict (task) do update set task = excluded.task
returning next_page, least(began_at - %(keep)s::interval, horizon), keep is not distinct from %(keep)s::interval,
          began_at is null or clock_timestamp() >= began_at + %(keep)s::interval / 20 or began_at > clock_timestamp(), kept_back

-- name: begin_pass
-- Writes the horizon before the first row is removed. It does not move backwards.
update {schema}.upkeep
set keep = %(keep)s::interval, began_at = statement_timestamp(), next_page = 0, ran_at = statement_timestamp(), kept_back = '{{}}',
    horizon = greatest(horizon, statement_timestamp() - %(keep)s::interval)
where task = %(task)s
returning began_at - keep

-- name: note_progress
-- Where the pass continues (null: it is complete), what it has removed, and what had to stay.
update {schema}.upkeep
set next_page = %(next_page)s, removed = removed + %(removed)s, ran_at = clock_timestamp(), kept_back = %(kept_back)s
where task = %(task)s

-- name: note_kept
-- Records a task that goes through no pages: how long rows are kept, what was removed up to when, and what had to stay. A running pass is
-- given up, because it belongs to another retention time; the next one begins at the first page.
insert into {schema}.upkeep as upkeep (task, keep, removed, horizon, kept_back, ran_at)
values (%(task)s, %(keep)s::interval, %(removed)s, %(horizon)s, %(kept_back)s, clock_timestamp())
on conflict (task) do update
set keep = excluded.keep, removed = upkeep.removed + excluded.removed, horizon = greatest(upkeep.horizon, excluded.horizon),
    kept_back = excluded.kept_back, ran_at = excluded.ran_at, next_page = null, began_at = null

-- name: kept_since
-- The time before which nothing has to be kept, by the database's clock.
select clock_timestamp() - %(keep)s::interval

-- name: pages_of
-- How many pages a table has.
select pg_relation_size(%(table)s::regclass) / current_setting('block_size')::bigint

-- name: sweep_pages
-- Removes old rows from some pages of a table, except those still needed; returns the counts of both.
with old as materialized (
    {old}
),
gone as (
    delete from {schema}.{table} where ctid = any(array(select place from old where holder is null)) returning 1
)
select (select count(*) from gone),
       (select coalesce(jsonb_object_agg(holder, held), '{{}}')
        from (select holder, count(*) as held from old where holder is not null group by holder) holders)

-- name: count_pages
-- The same without removing anything.
with old as materialized (
    {old}
)
select (select count(*) from old where holder is null),
       (select coalesce(jsonb_object_agg(holder, held), '{{}}')
        from (select holder, count(*) as held from old where holder is not null group by holder) holders)

-- name: old_inbox
-- Inbox rows of these pages. A row stays while its event may come again: from the outbox, by a dead letter, or from the log to a consumer
-- with several concurrent slices whose checkpoint is before it. If consumers are near the head, the log is not read. Otherwise each
-- partition behind their checkpoints is asked once for all events of these pages: to ask it for each row is what makes a sweep slow.
with aged as materialized (
    select inbox.ctid as place, inbox.event_id, inbox.consumer_name
    from {schema}.processed_events inbox
    where inbox.ctid >= %(first)s::tid and inbox.ctid < %(last)s::tid and inbox.processed_at < %(before)s
),
unread as materialized (
    select aged.event_id, consumer.position
    from aged
    join {whole_consumers} consumer on consumer.name = aged.consumer_name and consumer.position < (select head.position from {schema}.head)
),
ahead as materialized (
    -- An event that was sent again is in the log several times.
    select log.id, max(log.position) as position
    from {schema}.log
    where log.id = any(array(select unread.event_id from unread)) and log.position > (select min(unread.position) from unread)
    group by log.id
)
select aged.place,
       case when waiting.id is not null then 'events that are still in the outbox'
            when letter.consumer_name is not null then 'dead letters of ' || quote_literal(letter.consumer_name)
            when behind.name is not null then 'the checkpoint of ' || quote_literal(behind.name) || ', which is before them' end as holder
from aged
left join lateral (select outbox.id from {schema}.outbox where outbox.id = aged.event_id limit 1) waiting on true
left join lateral (
    select dead.consumer_name from {schema}.dead_letter_events dead
    where dead.event_id = aged.event_id and dead.status <> 'resolved' limit 1
) letter on true
left join ahead on ahead.id = aged.event_id
left join {whole_consumers} behind on behind.name = aged.consumer_name and behind.position < ahead.position

-- name: old_keys
-- Idempotency keys of these pages; a key stays while an event of its publish is in the outbox.
select published.ctid as place, case when waiting.id is not null then 'events that are still in the outbox' end as holder
from {schema}.published_key published
left join lateral (select outbox.id from {schema}.outbox where outbox.id = any(published.event_ids) limit 1) waiting on true
where published.ctid >= %(first)s::tid and published.ctid < %(last)s::tid and published.created_at < %(before)s

-- name: old_dead_letters
-- Closed dead letters of these pages.
select ctid as place, null::text as holder
from {schema}.dead_letter_events
where ctid >= %(first)s::tid and ctid < %(last)s::tid and status in ('resolved', 'discarded') and last_seen_at < %(before)s

-- name: running_operations
-- Running operations need inbox and dead letters as they were when their events were selected.
select id, kind::text, requested_by from {schema}.operation where finished_at is null order by created_at limit 5

-- name: old_operations
-- Operations that ended before a time; an operation starts before it ends, so the index by start finds them.
select id, kind::text from {schema}.operation
where created_at < %(before)s and finished_at < %(before)s
order by created_at
limit %(limit)s

-- name: count_old_operations
-- How many of them there are.
select count(*) from {schema}.operation where created_at < %(before)s and finished_at < %(before)s

-- name: sweep_operation_events
-- Some events of an operation, in order; returns how many, and the last.
with gone as (
    delete from {schema}.operation_event
    where operation_id = %(operation)s and ordinal in (
        select ordinal from {schema}.operation_event
        where operation_id = %(operation)s and ordinal > %(after)s
        order by ordinal
        limit %(limit)s
    )
    returning ordinal
)
select count(*), max(ordinal) from gone

-- name: sweep_operation
-- Removes an operation whose events are gone.
delete from {schema}.operation where id = %(operation)s and finished_at < %(before)s returning 1

-- name: log_holders
-- What still needs positions up to here: consumers that have not read them, open dead letters, running operations. An operation through
-- the transport has only the ids of its events, and takes them from the log. For an event that is in the outbox again, only its place in
-- the log tells that it was published before.
select 'consumer', name, position from {whole_consumers} consumer where position < %(position)s
union all
select 'dead letter', consumer_name::text, min(position)
from {schema}.dead_letter_events
where status in ('retrying', 'waiting', 'parked') and position <= %(position)s
group by consumer_name
union all
select 'operation', operation.id::text, min(event.position)
from {schema}.operation
join {schema}.operation_event event on event.operation_id = operation.id and event.state in ('waiting', 'started')
where operation.finished_at is null and event.position <= %(position)s
group by operation.id
union all
select 'operation', operation.id::text, needed.position
from {schema}.operation
cross join lateral (
    select log.position
    from {schema}.operation_event event
    join {schema}.log on log.id = event.event_id and log.position <= %(position)s
    where event.operation_id = operation.id and event.state in ('waiting', 'started') and event.position is null
    limit 1
) needed
where operation.finished_at is null
union all
select 'outbox', sent_again.id::text, sent_again.position
from (
    select log.id, log.position
    from {schema}.outbox
    join {schema}.log on log.id = outbox.id and log.position <= %(position)s
    where outbox.status = 'failed' or outbox.next_retry_at is not null
    limit 1
) sent_again
order by 3
limit 5
