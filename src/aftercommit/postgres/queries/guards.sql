-- name: changed_service_tokens
-- Service tokens that were created or changed since the last read, and where the next read begins. Both from one snapshot.
select pg_snapshot_xmin(pg_current_snapshot())::text::bigint, id, secret_hash, permissions, extract(epoch from expires_at)::float8, revoked_at is not null
from (select) always
left join {schema}.service_token on changed >= %(since)s

-- name: create_service_token
-- Creates a token and notifies the servers.
insert into {schema}.service_token (id, name, secret_hash, permissions, created_by, expires_at)
values (%(id)s, %(name)s, %(secret_hash)s, %(permissions)s, %(created_by)s, clock_timestamp() + make_interval(secs => %(lifetime)s))
returning expires_at, (select pg_notify(%(channel)s, ''))::text

-- name: service_tokens
-- All service tokens, newest first, without their hashes.
select id, name, permissions, created_at, created_by, expires_at, revoked_at, last_used_at,
       case when revoked_at is not null then 'revoked' when expires_at <= clock_timestamp() then 'expired' else 'valid' end
from {schema}.service_token
order by created_at desc, id

-- name: revoke_service_token
-- Revokes a token and notifies the servers. Returns whether it was valid before.
update {schema}.service_token token
set revoked_at = coalesce(token.revoked_at, clock_timestamp()), changed = pg_current_xact_id()::text::bigint
from (select id, revoked_at from {schema}.service_token where id = %(id)s for update) former
where token.id = former.id
returning former.revoked_at is null, (select pg_notify(%(channel)s, ''))::text

-- name: note_token_use
-- Records when tokens were last used, to the minute. Skips rows that others write at the moment.
with stale as (
    select id from {schema}.service_token
    where id = any(%(ids)s) and (last_used_at is null or last_used_at < statement_timestamp() - interval '1 minute')
    order by id for no key update skip locked
)
update {schema}.service_token token set last_used_at = statement_timestamp() from stale where token.id = stale.id

-- name: changed_revocations
-- Revocations since the last read, and where the next read begins. Both from one snapshot.
select pg_snapshot_xmin(pg_current_snapshot())::text::bigint, kind, value, extract(epoch from revoked_at)::float8,
       case when isfinite(until) then extract(epoch from until)::float8 end
from (select) always
left join {schema}.revoked_token on changed >= %(since)s and until > statement_timestamp()

-- name: revoke_token
-- Revokes a token, or all tokens of a user so far. A repetition counts from now on and lasts at least as long as before.
insert into {schema}.revoked_token as revoked (kind, value, revoked_by, reason, until)
values (%(kind)s, %(value)s, %(revoked_by)s, %(reason)s, coalesce(to_timestamp(%(until)s), 'infinity'))
on conflict (kind, value) do update
set revoked_at = clock_timestamp(), revoked_by = excluded.revoked_by, reason = excluded.reason,
    until = greatest(revoked.until, excluded.until), changed = pg_current_xact_id()::text::bigint
returning revoked_at, (select pg_notify(%(channel)s, ''))::text

-- name: revocations
-- Revocations that are still kept, newest first.
select kind::text, value, revoked_at, revoked_by, reason, case when isfinite(until) then until end
from {schema}.revoked_token
where until > clock_timestamp()
order by revoked_at desc, kind, value
limit %(limit)s

-- name: forget_revocations
-- Removes revocations of tokens that have expired.
delete from {schema}.revoked_token
where (kind, value) in (
    select kind, value from {schema}.revoked_token where until < statement_timestamp() order by kind, value limit 1000 for update skip locked
)

-- name: exchange_rates
-- Adds what this process has let through, and grants as many of the requests that wait as the limit has room for. Returns the log of each
-- key, how many were granted, whether the log is new, and the database's time. All processes write rows in the same order, so that they
-- do not deadlock. The clock is read after the row is locked.
with mine as (
    select place, name, key, seconds, most, asked, case when most > 1000 then seconds * 1000 else 1 end as tick,
           (extract(epoch from clock_timestamp()) * 1000000)::bigint as now
    from unnest(%(names)s::text[], %(keys)s::text[], %(seconds)s::int[], %(most)s::bigint[], %(asked)s::bigint[])
        with ordinality as mine (name, key, seconds, most, asked, place)
),
told as (
    select mine.place, coalesce(array_agg(moment order by moment) filter (where moment is not null), '{{}}') as moments,
           coalesce(array_agg(taken order by moment) filter (where moment is not null), '{{}}') as taken, coalesce(sum(taken), 0) as total
    from mine
    left join unnest(%(places)s::bigint[], %(moments)s::bigint[], %(taken)s::bigint[]) as entry (place, moment, taken) on entry.place = mine.place
    group by mine.place
),
wanted as (
    select mine.*, told.moments, told.taken, greatest(0, least(asked, most - told.total))::bigint as granted
    from mine join told using (place)
),
written as (
    insert into {schema}.rate_log as log (name, key, seconds, granted, moments, taken)
    select name, key, seconds, granted, case when granted > 0 then moments || now else moments end, case when granted > 0 then taken || granted else taken end
    from wanted order by name, key, seconds
    on conflict (name, key, seconds) do update set (moments, taken, granted) = (
        with clock as materialized (
            select (extract(epoch from clock_timestamp()) * 1000000)::bigint as now, wanted.*
            from (select most, tick, granted as asked, moments as told_moments, taken as told_taken from wanted
                  where wanted.name = excluded.name and wanted.key = excluded.key and wanted.seconds = excluded.seconds) wanted
        ),
        -- Entries in the future are from before the clock was set back: count them from now on.
        live as materialized (
            select moment, sum(taken)::bigint as taken
            from (
                select case when moment > now + excluded.seconds * 10000::bigint + 1000000 then now else moment end as moment, taken
                from clock, unnest(log.moments, log.taken) as entry (moment, taken)
                union all
                select moment, taken from clock, unnest(told_moments, told_taken) as entry (moment, taken)
            ) entry
            where moment > (select now from clock) - excluded.seconds * 1000000::bigint
            group by moment having sum(taken) > 0
        ),
        allowed as materialized (
            select greatest(0, least(asked, most - coalesce((select sum(taken) from live), 0)))::bigint as granted,
                   ceil(now::numeric / tick)::bigint * tick as moment
            from clock
        )
        select coalesce(array_agg(moment order by moment), '{{}}'), coalesce(array_agg(taken order by moment), '{{}}'), (select granted from allowed)
        from (
            select moment, sum(taken)::bigint as taken
            from (select moment, taken from live union all select moment, granted from allowed where granted > 0) both_kinds
            group by moment
        ) entry
    )
    returning name, key, seconds, moments, taken, granted, xmax = 0 as is_new
)
select name::text, key::text, seconds, moments, taken, granted, is_new, extract(epoch from clock_timestamp())::float8
from written

-- name: guard_clock
-- The database's time.
select extract(epoch from clock_timestamp())::float8

-- name: forget_rates
-- Removes logs whose window is over.
delete from {schema}.rate_log
where (name, key, seconds) in (
    select name, key, seconds from {schema}.rate_log
    where coalesce(moments[cardinality(moments)], 0) + seconds * 1000000::bigint < extract(epoch from statement_timestamp()) * 1000000
    order by name, key, seconds limit 10000 for update skip locked
)
