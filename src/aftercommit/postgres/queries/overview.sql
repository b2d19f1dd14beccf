-- name: find_outboxes
-- Every schema of this database that holds an outbox.
select namespace.nspname::text
from pg_namespace namespace
where (
    select count(*) from pg_class class
    where class.relnamespace = namespace.oid and class.relname in ('migration', 'outbox', 'log', 'head', 'lane')
) = 5
order by 1

-- name: overview_outbox
-- What waits and since when, what waits for a retry, what failed for good, and the head of the log.
select count(*) filter (where outbox.status = 'pending'),
       coalesce(extract(epoch from clock_timestamp() - min(outbox.created_at) filter (where outbox.status = 'pending')), 0)::float8,
       count(*) filter (where outbox.status = 'pending' and outbox.next_retry_at is not null),
       count(*) filter (where outbox.status = 'failed'),
       (select position from {schema}.head)
from {schema}.outbox

-- name: overview_consumers
-- Every consumer: its checkpoint, how far it is behind, who works for it.
select consumer.name::text, consumer.position, head.position - consumer.position, consumer.paused,
       case when consumer.leased_until > clock_timestamp() then consumer.worker end
from {schema}.consumer, {schema}.head
order by consumer.name

-- name: overview_relays
-- Every relay on record: when it was last heard of, and the lanes whose lease has not run out.
select relay.name, extract(epoch from clock_timestamp() - relay.seen_at)::float8, count(lane.lane)
from {schema}.relay
left join {schema}.lane on lane.relay = relay.id and lane.leased_until > clock_timestamp()
group by relay.id
order by relay.name, relay.id

-- name: overview_dead_letters
-- Dead letters that somebody or something still has to deal with, by owner and status.
select consumer_name::text, status::text, count(*)
from {schema}.dead_letter_events
where status in ('retrying', 'waiting', 'parked')
group by consumer_name, status
order by consumer_name, status
