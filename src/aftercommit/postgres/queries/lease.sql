-- name: heartbeat
-- Renews the lease of this relay, which is one row, and looks around. Forgets relays without lanes that have been silent for three leases,
-- or whose last sign of life is that far in the future, because the clock was set back.
-- before    our lease until now. If it had not run out, nobody can have taken a lane
-- other     the other relays, and whether each is alive. Older code writes no lease: its relays must have been seen, and keep their lanes
-- continued whether `held` is certain. If not, another relay may have taken lanes a moment ago: `renew_lanes` tells
with silent as (
    delete from {schema}.relay
    where id in (
        select id from {schema}.relay
        where seen_at not between clock_timestamp() - 3 * make_interval(secs => greatest(lease_seconds, %(lease)s))
                              and clock_timestamp() + 3 * make_interval(secs => greatest(lease_seconds, %(lease)s))
          and id <> %(relay)s and not exists (select from {schema}.lane where lane.relay = relay.id)
        for update skip locked
    )
),
before as materialized (
    select leased_until, lease_seconds from {schema}.relay where id = %(relay)s
),
mine as (
    insert into {schema}.relay (id, name, listening, leased_until, lease_seconds)
    values (%(relay)s, %(name)s, %(listening)s, clock_timestamp() + make_interval(secs => %(lease)s), %(lease)s)
    on conflict (id) do update
    set seen_at = clock_timestamp(), leased_until = clock_timestamp() + make_interval(secs => %(lease)s), lease_seconds = excluded.lease_seconds,
        listening = relay.listening and not %(is_new)s
    returning clock_timestamp() as at
),
other as (
    select leased_until is null as older,
           case when leased_until is not null
                then leased_until between clock_timestamp() and clock_timestamp() + make_interval(secs => greatest(lease_seconds, %(lease)s))
                else seen_at between clock_timestamp() - make_interval(secs => %(lease)s) and clock_timestamp() + make_interval(secs => %(lease)s)
                     and not exists (select from {schema}.lane where lane.relay = relay.id and lane.leased_until < clock_timestamp())
           end as alive
    from {schema}.relay
    where id <> %(relay)s
),
lease as (
    select least(lane.leased_until, relay.leased_until) as ends
    from {schema}.lane left join {schema}.relay on relay.id = lane.relay
    where lane.token <> %(token)s
)
select array(select lane from {schema}.lane where relay = %(relay)s and token = %(token)s) as held,
       coalesce((select leased_until between mine.at and mine.at + make_interval(secs => greatest(lease_seconds, %(lease)s)) from before), false)
           as continued,
       1 + (select count(*) from other where alive) as live,
       exists (select from other where older and alive) as beside_older,
       (select extract(epoch from min(ends) - mine.at)::float8 from lease where ends > mine.at) as expiry
from mine

-- name: lane_news
-- Wakes the other relays: a relay has joined, or gives lanes away.
select pg_notify(%(channel)s, %(news)s)

-- name: renew_lanes
-- Renews the leases of our lanes, by the database's clock. The token tells which lanes another relay has taken.
with mine as (
    select lane from {schema}.lane where relay = %(relay)s and token = %(token)s order by lane for no key update
)
update {schema}.lane
set leased_until = clock_timestamp() + make_interval(secs => %(lane_lease)s), lease_seconds = %(lane_lease)s
from mine where lane.lane = mine.lane
returning lane.lane

-- name: take_lanes
-- Takes lanes, up to our share: free ones, and those whose own lease or whose relay's lease is void. A lease is void when it has run out, or
-- when it ends further ahead than its length, or ours if that is longer: it is from before the clock was set back. Older code writes no
-- length; such a lease is void if it ends more than an hour ahead. Skips lanes that another relay is taking or writing under.
-- lapsed  relays whose lease is void, locked: one that renews at this moment keeps its lanes, or waits and sees which ones are gone
-- buried  a relay that loses its last lane does not count any more, until it gives a new sign of life
with lapsed as materialized (
    select id from {schema}.relay
    where id <> %(relay)s
      and leased_until not between clock_timestamp() and clock_timestamp() + make_interval(secs => greatest(lease_seconds, %(lease)s))
    order by id
    for update skip locked
),
open as (
    select lane, relay
    from {schema}.lane
    where (relay is null or leased_until < clock_timestamp() or relay in (select id from lapsed)
           or leased_until > clock_timestamp() + make_interval(secs => greatest(coalesce(lease_seconds, 3600), %(lease)s)))
      and token is distinct from %(token)s
    order by lane
    limit %(wanted)s
    for update skip locked
),
buried as (
    delete from {schema}.relay
    where id in (
        select id from {schema}.relay
        where id in (select relay from open)
          and not exists (select from {schema}.lane where lane.relay = relay.id and lane.lane not in (select lane from open))
        for update skip locked
    )
)
update {schema}.lane
set relay = %(relay)s, token = %(token)s, leased_until = clock_timestamp() + make_interval(secs => %(lane_lease)s), lease_seconds = %(lane_lease)s
from open where lane.lane = open.lane
returning lane.lane, open.relay is not null as died

-- name: lane_is_held
-- Whether a lane has a holder whose lease is valid.
(lane.relay is not null
 and clock_timestamp() < lane.leased_until and clock_timestamp() >= lane.leased_until - make_interval(secs => coalesce(lane.lease_seconds, 3600))
 and not exists (
     select from {schema}.relay holder
     where holder.id = lane.relay
       and not (clock_timestamp() < holder.leased_until and clock_timestamp() >= holder.leased_until - make_interval(secs => holder.lease_seconds))
 ))

-- name: release_lanes
-- Hands lanes over at once: at a graceful stop, or when another relay needs its share. A lane that is suspect stays so, so that the next
-- relay is as careful. A relay that stops leaves the list in the same statement: a lane without its relay would be held by its own lease,
-- which is long.
with gone as (
    delete from {schema}.relay where id = %(relay)s and %(leaves)s
),
mine as (
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

-- name: listen_flag
-- Whether publishers should notify this relay. It does no harm if a crash loses this write.
update {schema}.relay set listening = %(listening)s where id = %(relay)s
