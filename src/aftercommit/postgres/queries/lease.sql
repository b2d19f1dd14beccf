-- name: heartbeat
-- This relay is alive; relays that have been silent for three leases are forgotten.
with silent as (
    delete from {schema}.relay
    where seen_at < clock_timestamp() - 3 * make_interval(secs => %(lease)s) and id <> %(relay)s
)
insert into {schema}.relay (id, name, listening) values (%(relay)s, %(name)s, %(listening)s)
on conflict (id) do update set seen_at = clock_timestamp(), listening = excluded.listening

-- name: renew_lanes
-- Our leases run on, on the database's clock. Those that somebody took are not ours to renew: the token says.
with mine as (
    select lane from {schema}.lane where relay = %(relay)s and token = %(token)s order by lane for no key update
)
update {schema}.lane
set leased_until = clock_timestamp() + make_interval(secs => %(lease)s)
from mine where lane.lane = mine.lane
returning lane.lane

-- name: live_relays
-- Relays seen within the last lease.
select count(*) from {schema}.relay where seen_at > clock_timestamp() - make_interval(secs => %(lease)s)

-- name: take_lanes
-- Free and expired lanes, as many as our share allows. A lane somebody is just taking or writing under is skipped, not waited for.
with open as (
    select lane, relay is not null as died
    from {schema}.lane
    where (relay is null or leased_until < clock_timestamp()) and relay is distinct from %(relay)s
    order by lane
    limit %(wanted)s
    for update skip locked
)
update {schema}.lane
set relay = %(relay)s, token = %(token)s, leased_until = clock_timestamp() + make_interval(secs => %(lease)s)
from open where lane.lane = open.lane
returning lane.lane, open.died

-- name: release_lanes
-- Hand lanes over at once: on a graceful stop, or when another relay needs its share. The NOTIFY wakes the others.
with mine as (
    select lane from {schema}.lane
    where relay = %(relay)s and token = %(token)s and lane = any(%(lanes)s)
    order by lane for update
),
freed as (
    update {schema}.lane set relay = null, token = null, leased_until = null
    from mine where lane.lane = mine.lane
    returning 1
)
select pg_notify(%(channel)s, 'lanes') from (select count(*) from freed) done

-- name: leave
-- A relay that stops is no longer counted.
delete from {schema}.relay where id = %(relay)s

-- name: listen_flag
-- Whether publishers should ring for us. Losing this write in a crash does no harm.
update {schema}.relay set listening = %(listening)s, seen_at = clock_timestamp() where id = %(relay)s
