-- name: heartbeat
-- This relay is alive; relays that have been silent for three leases are forgotten, and those whose last word is that far in the
-- future: the clock was set back since.
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
-- Relays look around at once: somebody came, or has lanes to give away.
select pg_notify(%(channel)s, %(news)s)

-- name: renew_lanes
-- Our leases run on, on the database's clock. Those that somebody took are not ours to renew: the token says.
with mine as (
    select lane from {schema}.lane where relay = %(relay)s and token = %(token)s order by lane for no key update
)
update {schema}.lane
set leased_until = clock_timestamp() + make_interval(secs => %(lease)s), lease_seconds = %(lease)s
from mine where lane.lane = mine.lane
returning lane.lane

-- name: live_relays
-- Relays seen within the last lease that have not let a lane of theirs run out, and seconds until the next lease of
-- another one runs out if it is not renewed.
select count(*),
       (select extract(epoch from min(leased_until) - clock_timestamp())::float8
        from {schema}.lane
        where token is distinct from %(token)s and leased_until > clock_timestamp())
from {schema}.relay
where seen_at between clock_timestamp() - make_interval(secs => %(lease)s) and clock_timestamp() + make_interval(secs => %(lease)s)
  and not exists (select from {schema}.lane where lane.relay = relay.id and lane.leased_until < clock_timestamp())

-- name: take_lanes
-- Free and expired lanes, as many as our share allows, and those whose lease ends further ahead than it is long: it was taken before
-- the clock was set back. (Somebody may have been told a longer lease than we were. Older code writes no length: whoever releases a
-- lease clears it, and one without a length is void when it ends more than an hour ahead.) A lane somebody is just taking or writing
-- under is skipped, not waited for. A relay whose lanes are taken is counted no more, until it says that it lives after all.
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
-- Hand lanes over at once: on a graceful stop, or when another relay needs its share. A lane that is still suspect is
-- left as if somebody had died on it, so that whoever takes it is as careful as we would have been.
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
-- A relay that stops is no longer counted.
delete from {schema}.relay where id = %(relay)s

-- name: listen_flag
-- Whether publishers should ring for us. Losing this write in a crash does no harm.
update {schema}.relay set listening = %(listening)s where id = %(relay)s
