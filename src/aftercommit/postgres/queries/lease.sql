-- name: heartbeat
-- Records that this relay is alive. Forgets relays that have been silent for three leases, or whose last sign of life is that far in the
-- future, because the clock was set back.
with silent as (
    delete from {schema}.relay
    where id in (
        select id from {schema}.relay
        where seen_at not between clock_timestamp() - 3 * make_interval(secs => %(lease)s)
                              and clock_timestamp() + 3 * make_interval(secs => %(lease)s)
          and id <> %(relay)s
        for update skip locked
    )
)
insert into {schema}.relay (id, name, listening) values (%(relay)s, %(name)s, %(listening)s)
on conflict (id) do update set seen_at = clock_timestamp(), listening = relay.listening and not %(is_new)s

-- name: lane_news
-- Wakes the other relays: a relay has joined, or gives lanes away.
select pg_notify(%(channel)s, %(news)s)

-- name: renew_lanes
-- Renews our leases, by the database's clock. The token tells which lanes another relay has taken.
with mine as (
    select lane from {schema}.lane where relay = %(relay)s and token = %(token)s order by lane for no key update
)
update {schema}.lane
set leased_until = clock_timestamp() + make_interval(secs => %(lease)s), lease_seconds = %(lease)s
from mine where lane.lane = mine.lane
returning lane.lane

-- name: live_relays
-- Live relays that have not let a lane expire, and seconds until the next lease of another relay expires.
select count(*),
       (select extract(epoch from min(leased_until) - clock_timestamp())::float8
        from {schema}.lane
        where token is distinct from %(token)s and leased_until > clock_timestamp())
from {schema}.relay
where seen_at between clock_timestamp() - make_interval(secs => %(lease)s) and clock_timestamp() + make_interval(secs => %(lease)s)
  and not exists (select from {schema}.lane where lane.relay = relay.id and lane.leased_until < clock_timestamp())

-- name: take_lanes
-- Takes free and expired lanes, up to our share, and lanes whose lease ends further ahead than its length, or ours if that is longer: it
-- is from before the clock was set back. Older code writes no length; such a lease is void if it ends more than an hour ahead. Skips lanes
-- that another relay is taking or writing under. A relay whose lanes are taken does not count any more, until it gives a new sign of life.
with open as (
    select lane, relay
    from {schema}.lane
    where (relay is null or leased_until < clock_timestamp()
           or leased_until > clock_timestamp() + make_interval(secs => greatest(coalesce(lease_seconds, 3600), %(lease)s)))
      and token is distinct from %(token)s
    order by lane
    limit %(wanted)s
    for update skip locked
),
buried as (
    delete from {schema}.relay
    where id in (select id from {schema}.relay where id in (select relay from open) for update skip locked)
)
update {schema}.lane
set relay = %(relay)s, token = %(token)s, leased_until = clock_timestamp() + make_interval(secs => %(lease)s), lease_seconds = %(lease)s
from open where lane.lane = open.lane
returning lane.lane, open.relay is not null as died

-- name: release_lanes
-- Hands lanes over at once: at a graceful stop, or when another relay needs its share. A lane that is suspect stays so, so that the next
-- relay is as careful.
with mine as (
    select lane, lane = any(%(suspects)s) as suspect
    from {schema}.lane
    where relay = %(relay)s and token = %(token)s and lane = any(%(lanes)s)
    order by lane for update
)
update {schema}.lane
set relay = case when suspect then gen_random_uuid() end,
    token = case when suspect then gen_random_uuid() end,
    leased_until = case when suspect then '-infinity'::timestamptz end, lease_seconds = null
from mine where lane.lane = mine.lane

-- name: leave
-- Removes a relay that stops.
delete from {schema}.relay where id = %(relay)s

-- name: listen_flag
-- Whether publishers should notify this relay. It does no harm if a crash loses this write.
update {schema}.relay set listening = %(listening)s where id = %(relay)s
