-- name: find_outboxes
-- Every schema of this database with an outbox.
select namespace.nspname::text
from pg_namespace namespace
where (
    select count(*) from pg_class class
    where class.relnamespace = namespace.oid and class.relname in ('migration', 'outbox', 'log', 'head', 'lane')
) = 5
order by 1

-- name: overview_outbox
-- Pending events and their age, events that wait for a retry, failed events, and the head of the log. Each count uses an index that has
-- only those rows.
with fresh as (
    select count(*) as events, min(created_at) as oldest,
           count(*) filter (where created_at >= statement_timestamp() - interval '60 seconds') as recent
    from {schema}.outbox where status = 'pending' and next_retry_at is null
),
retries as (
    select count(*) as events, min(created_at) as oldest,
           count(*) filter (where created_at >= statement_timestamp() - interval '60 seconds') as recent
    from {schema}.outbox where status = 'pending' and next_retry_at is not null
),
failed as (
    select count(*) as events from {schema}.outbox where status = 'failed'
)
select fresh.events + retries.events,
       greatest(0, extract(epoch from clock_timestamp() - least(fresh.oldest, retries.oldest)))::float8,
       retries.events, failed.events, head.position, fresh.recent + retries.recent
from fresh, retries, failed, {schema}.head

-- name: fill_head
-- The remedy for a head without its row, for an operator to run: the log continues where it ends.
insert into {schema}.{table} (position, gaps)
select greatest((select coalesce(max(position), 0) from {schema}.log), (select max(base) from {schema}.life)),
       (select coalesce(range_agg(int8range(previous_last + 1, base + 1)), '{{}}') from {schema}.life where number > 1)

-- name: overview_minute
-- Events appended, and events written, in the last minute. The log needs no index by time: ts does not run backwards, so bisection finds
-- the first position of the minute; likewise, nearly, by created_at. Each step looks at the first event from the middle on, because there
-- are gaps between two lives of the log.
with recursive bounds as materialized (
    select coalesce((select min(position) from {schema}.log), head.position + 1) as first, head.position as last, head.gaps from {schema}.head
),
appended as (
    select first as low, last + 1 as high from bounds
    union all
    select case when probe.is_before then probe.position + 1 else low end, case when probe.is_before then high else middle.position end
    from appended
    cross join lateral (select (low + high) / 2 as position) middle
    left join lateral (
        select log.position, log.ts < statement_timestamp() - interval '60 seconds' as is_before
        from {schema}.log where log.position >= middle.position and log.position < high order by log.position limit 1
    ) probe on true
    where low < high
),
written as (
    select first as low, last + 1 as high from bounds
    union all
    select case when probe.is_before then probe.position + 1 else low end, case when probe.is_before then high else middle.position end
    from written
    cross join lateral (select (low + high) / 2 as position) middle
    left join lateral (
        select log.position, log.created_at < statement_timestamp() - interval '60 seconds' as is_before
        from {schema}.log where log.position >= middle.position and log.position < high order by log.position limit 1
    ) probe on true
    where low < high
)
select {schema}.given(bounds.gaps, (select low - 1 from appended where low = high), bounds.last),
       {schema}.given(bounds.gaps, (select low - 1 from written where low = high), bounds.last)
from bounds

-- name: overview_consumers
-- Every consumer: its checkpoint, its lag in events, its worker, the age of its next event, how many of its dead letters are due and since
-- when, how many events it has not read are gone, and whether its checkpoint is at a position that the log has never had.
select consumer.name::text, consumer.position, {schema}.given(head.gaps, consumer.position, head.position), consumer.paused,
       consumer.worker,
       greatest(0, extract(epoch from clock_timestamp() - next.ts))::float8,
       due.letters, greatest(0, extract(epoch from statement_timestamp() - due.since))::float8,
       {schema}.given(head.gaps, consumer.position, coalesce(next.position - 1, head.position)), consumer.position > head.position
from {schema}.head
cross join {whole_consumers} consumer
left join lateral (
    select log.ts, log.position from {schema}.log where log.position > consumer.position order by log.position limit 1
) next on true
cross join lateral (
    select count(*) as letters, min(letter.next_retry_at) as since
    from {schema}.dead_letter_events letter
    where letter.consumer_name = consumer.name and letter.status = 'retrying' and letter.next_retry_at <= statement_timestamp()
      and letter.position is not null
) due
order by consumer.name

-- name: overview_life
-- The current life of the log: its number, when it began, where and why.
select number, extract(epoch from clock_timestamp() - began_at)::float8, base, previous_last, reason
from {schema}.life order by number desc limit 1

-- name: overview_version_waits
-- Consumers that wait for newer code: for which version, which one they know, since and until when, and whether they are behind the bus.
select split_part(wait.consumer_name, '#', 1), wait.event_type::text, wait.version, wait.known, min(wait.since) as since, min(wait.until),
       not bool_or(exists (select from {schema}.consumer where consumer.name = wait.consumer_name))
from {schema}.version_wait wait
where clock_timestamp() between wait.since and wait.until
group by 1, wait.event_type, wait.version, wait.known
order by 1, since, wait.event_type, wait.version

-- name: overview_oldest
-- The age of the oldest event in the outbox, without those that wait for newer code and those behind them.
with {awaiting}
select greatest(0, extract(epoch from clock_timestamp() - min(created_at)))::float8
from {schema}.outbox
where status = 'pending' and (aggregate_type, aggregate_id) not in (select aggregate_type, aggregate_id from awaiting)

-- name: overview_relays
-- Every relay on record: how long it has been silent (below 0: the clock was set back), and the lanes whose lease is valid.
select relay.name, extract(epoch from clock_timestamp() - relay.seen_at)::float8, count(lane.lane)
from {schema}.relay
left join {schema}.lane on lane.relay = relay.id and {lane_is_held}
group by relay.id
order by relay.name, relay.id

-- name: overview_lanes
-- Lanes without a holder.
select count(*) from {schema}.lane where not {lane_is_held}

-- name: overview_dead_letters
-- Open dead letters, by owner and status.
select consumer_name::text, status::text, count(*)
from {schema}.dead_letter_events
where status in ('retrying', 'waiting', 'parked')
group by consumer_name, status
order by consumer_name, status

-- name: overview_operations
-- Running operations, and whether a driver holds them.
select id::text, kind::text, status::text, requested_by, total, done + skipped + failed, failed,
       coalesce(clock_timestamp() < driven_until and clock_timestamp() >= driven_until - make_interval(secs => coalesce(lease_seconds, 3600)), false), greatest(0, extract(epoch from clock_timestamp() - created_at))::float8
from {schema}.operation
where finished_at is null
order by created_at
limit 20

-- name: overview_upkeep
-- What retention keeps and removes, and what had to stay.
select task::text, extract(epoch from keep)::float8, horizon, removed, kept_back, next_page is not null,
       case when ran_at is not null then greatest(0, extract(epoch from clock_timestamp() - ran_at))::float8 end
from {schema}.upkeep
where task <> 'sweep'
order by array_position(array['log', 'inbox', 'keys', 'dead_letters', 'operations'], task::text)

-- name: overview_patience
-- Do not wait behind a session that has locked a table: report it instead.
select set_config('lock_timeout', '2s', true)

-- name: holding_transactions
-- Long transactions, and what each holds up: locks on our tables, sessions that wait for it, and the oldest rows that vacuum must keep.
-- For sessions of other users, an ordinary role sees the locks only.
with ours as (
    select class.oid, class.relname
    from pg_class class join pg_namespace namespace on namespace.oid = class.relnamespace
    where namespace.nspname = %(schema)s and class.relkind in ('r', 'p')
),
held as (
    select lock.pid, bool_or(ours.relname = 'outbox' and lock.mode = 'RowExclusiveLock') as publishes,
           bool_or(ours.relname = 'head' and lock.mode = 'RowExclusiveLock') as appends,
           min(ours.relname::text) filter (where lock.mode in ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')) as locked
    from pg_locks lock join ours on ours.oid = lock.relation
    where lock.locktype = 'relation' and lock.granted
      and lock.database = (select oid from pg_database where datname = current_database())
    group by lock.pid
),
waiting as (
    select blocker, array_agg(format('process %%s (%%s)', pid, coalesce(nullif(application_name, ''), 'unnamed'))) as sessions
    from pg_stat_activity, lateral unnest(pg_blocking_pids(pid)) blocker
    where wait_event_type = 'Lock' and datname = current_database()
    group by blocker
)
select activity.pid::text, activity.usename::text, coalesce(activity.application_name, ''), coalesce(activity.state, 'unknown'),
       extract(epoch from statement_timestamp() - activity.xact_start)::float8,
       coalesce(held.publishes, false), coalesce(held.appends, false), held.locked, held.pid is not null,
       coalesce(waiting.sessions, '{{}}'), coalesce(age(activity.backend_xmin), age(activity.backend_xid))
from pg_stat_activity activity
left join held on held.pid = activity.pid
left join waiting on waiting.blocker = activity.pid
where activity.datname = current_database() and activity.pid <> pg_backend_pid()
  and coalesce(activity.backend_type, 'client backend') = 'client backend'
  and (activity.xact_start <= statement_timestamp() - make_interval(secs => %(seconds)s)
       or (activity.xact_start is null and activity.state is null and held.pid is not null))
  and (held.pid is not null or waiting.blocker is not null or activity.backend_xmin is not null or activity.backend_xid is not null)
order by activity.xact_start nulls last
limit 20

-- name: holding_prepared
-- Prepared transactions, which outlive their session.
select prepared.gid, prepared.owner::text, extract(epoch from statement_timestamp() - prepared.prepared)::float8,
       exists (
           select from pg_locks own
           join pg_locks lock on lock.virtualtransaction = own.virtualtransaction and lock.pid is null
           where own.locktype = 'transactionid' and own.transactionid = prepared.transaction and own.pid is null
             and lock.locktype = 'relation' and lock.relation = %(outbox)s::regclass and lock.mode = 'RowExclusiveLock'
       ),
       age(prepared.transaction)
from pg_prepared_xacts prepared
where prepared.database = current_database()
  and prepared.prepared <= statement_timestamp() - make_interval(secs => %(seconds)s)
order by prepared.prepared

-- name: holding_slots
-- Replication slots that keep vacuum from removing rows, or that keep WAL while nothing reads it.
select slot_name::text, slot_type, active, coalesce(age(xmin), age(catalog_xmin)), xmin is not null,
       case when not pg_is_in_recovery() then pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn) end::float8,
       coalesce(wal_status, 'unknown')
from pg_replication_slots
where (database is null or database = current_database()) and (not active or age(xmin) > 100000)
order by slot_name

-- name: backlog
-- The number and age of pending events, for the gauges, without the age of events that wait for newer code and those behind them. And the
-- lowest seq of an untried event of these lanes, whatever their watermark is.
with {awaiting}
select count(*), greatest(0, extract(epoch from clock_timestamp() - min(created_at)
           filter (where (aggregate_type, aggregate_id) not in (select aggregate_type, aggregate_id from awaiting))))::float8,
       min(seq) filter (where next_retry_at is null and lane = any(%(lanes)s))
from {schema}.outbox
where status = 'pending'
