-- name: changed_service_tokens
-- Service tokens that were made or changed since a look, and the place where the next one begins. Both come from one snapshot.
select pg_snapshot_xmin(pg_current_snapshot())::text::bigint, id, secret_hash, permissions, extract(epoch from expires_at)::float8, revoked_at is not null
from (select) always
left join {schema}.service_token on changed >= %(since)s

-- name: create_service_token
-- A new token, and word to the servers.
insert into {schema}.service_token (id, name, secret_hash, permissions, created_by, expires_at)
values (%(id)s, %(name)s, %(secret_hash)s, %(permissions)s, %(created_by)s, clock_timestamp() + make_interval(secs => %(lifetime)s))
returning expires_at, (select pg_notify(%(channel)s, ''))::text

-- name: service_tokens
-- All service tokens, newest first; never their hashes.
select id, name, permissions, created_at, created_by, expires_at, revoked_at, last_used_at,
       case when revoked_at is not null then 'revoked' when expires_at <= clock_timestamp() then 'expired' else 'valid' end
from {schema}.service_token
order by created_at desc, id

-- name: revoke_service_token
-- From now on it counts no more, and the servers hear of it at once. Whether it was valid until now.
update {schema}.service_token token
set revoked_at = coalesce(token.revoked_at, clock_timestamp()), changed = pg_current_xact_id()::text::bigint
from (select id, revoked_at from {schema}.service_token where id = %(id)s for update) former
where token.id = former.id
returning former.revoked_at is null, (select pg_notify(%(channel)s, ''))::text

-- name: note_token_use
-- When tokens were last used, to the minute. Whoever writes the same row meanwhile is not waited for.
with stale as (
    select id from {schema}.service_token
    where id = any(%(ids)s) and (last_used_at is null or last_used_at < statement_timestamp() - interval '1 minute')
    order by id for no key update skip locked
)
update {schema}.service_token token set last_used_at = statement_timestamp() from stale where token.id = stale.id

-- name: changed_revocations
-- Revocations since a look, and the place where the next one begins. Both come from one snapshot.
select pg_snapshot_xmin(pg_current_snapshot())::text::bigint, kind, value, extract(epoch from revoked_at)::float8,
       case when isfinite(until) then extract(epoch from until)::float8 end
from (select) always
left join {schema}.revoked_token on changed >= %(since)s and until > statement_timestamp()

-- name: revoke_token
-- A token, or all of a user so far, counts no more. Said again, it holds from now on and at least as long as before.
insert into {schema}.revoked_token as revoked (kind, value, revoked_by, reason, until)
values (%(kind)s, %(value)s, %(revoked_by)s, %(reason)s, coalesce(to_timestamp(%(until)s), 'infinity'))
on conflict (kind, value) do update
set revoked_at = clock_timestamp(), revoked_by = excluded.revoked_by, reason = excluded.reason,
    until = greatest(revoked.until, excluded.until), changed = pg_current_xact_id()::text::bigint
returning revoked_at, (select pg_notify(%(channel)s, ''))::text

-- name: revocations
-- What was revoked and may still matter, newest first.
select kind::text, value, revoked_at, revoked_by, reason, case when isfinite(until) then until end
from {schema}.revoked_token
where until > clock_timestamp()
order by revoked_at desc, kind, value
limit %(limit)s

-- name: forget_revocations
-- Those whose tokens have expired by themselves.
delete from {schema}.revoked_token
where (kind, value) in (
    select kind, value from {schema}.revoked_token where until < statement_timestamp() order by kind, value limit 1000 for update skip locked
)

-- name: exchange_rates
-- What this process has let through is added to what all have, and comes back as the sum, with that of the window before
-- and the time by which windows are counted.
-- Rows are written in one order by everybody, so that nobody waits in a circle.
with taken as (
    select name, key, seconds, number, taken
    from unnest(%(names)s::text[], %(keys)s::text[], %(seconds)s::int[], %(numbers)s::bigint[], %(taken)s::bigint[])
        as mine (name, key, seconds, number, taken)
),
summed as (
    insert into {schema}.rate_window as total (name, key, seconds, number, taken)
    select name, key, seconds, number, taken from taken order by name, key, seconds, number
    on conflict (name, key, seconds, number) do update set taken = total.taken + excluded.taken
    returning name, key, seconds, number, taken
)
select summed.name::text, summed.key::text, summed.seconds, summed.number, summed.taken, coalesce(former.taken, 0),
       extract(epoch from clock_timestamp())::float8
from summed
left join {schema}.rate_window former
    on former.name = summed.name and former.key = summed.key and former.seconds = summed.seconds and former.number = summed.number - 1

-- name: guard_clock
-- The time by which windows are counted, before anything was.
select extract(epoch from clock_timestamp())::float8

-- name: forget_windows
-- Windows that no limit looks at any more.
delete from {schema}.rate_window
where (name, key, seconds, number) in (
    select name, key, seconds, number from {schema}.rate_window
    where (number + 3) * seconds < extract(epoch from statement_timestamp())
    order by name, key, seconds, number limit 10000 for update skip locked
)
