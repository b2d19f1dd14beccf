-- name: server_is_known
-- Whether the current life of the log belongs to this server and these tables, and the end of the log.
select head.server_started = pg_catalog.pg_postmaster_start_time()
           and exists (
               select from {schema}.life
               where life.number = (select max(number) from {schema}.life) and life.head_oid = head.tableoid
                 and life.database_oid = (select oid from pg_catalog.pg_database where datname = current_database())
           ),
       head.position
from {schema}.head

-- name: lock_head
-- Locks the head: no append and no new life meanwhile.
select position from {schema}.head for update

-- name: present_life
-- The current life with its server, and the tables as they are now.
select life.number, life.system_identifier, life.timeline, life.database_oid, life.head_oid,
       (select oid from pg_catalog.pg_database where datname = current_database()), head.tableoid
from {schema}.head, {schema}.life
order by life.number desc
limit 1

-- name: server_identifier
-- The server's identifier, which initdb chooses.
select system_identifier from pg_catalog.pg_control_system()

-- name: server_timeline
-- The server's timeline, which changes with each promotion and each recovery from an archive. The name of the current WAL file tells it at
-- once; pg_control_checkpoint() lags until the next checkpoint.
select ('x' || left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 8))::bit(32)::integer
where not pg_catalog.pg_is_in_recovery()

-- name: in_recovery
-- Whether this server is a standby.
select pg_catalog.pg_is_in_recovery()

-- name: go_on_with_server
-- Continues the current life on this server, which has restarted or is seen for the first time.
with known as (
    update {schema}.head set server_started = pg_catalog.pg_postmaster_start_time()
)
update {schema}.life
set system_identifier = coalesce(%(system_identifier)s::bigint, system_identifier), timeline = coalesce(%(timeline)s::integer, timeline),
    database_oid = %(database_oid)s, head_oid = %(head_oid)s
where number = %(number)s

-- name: begin_life
-- Begins a new life above every position of any earlier one, whichever backup was restored: at the number of microseconds since 1970. A
-- log gives fewer than one position per microsecond, so no earlier life can have come so far. A counter would not do, because a backup
-- does not know the lives after it.
with life as (
    insert into {schema}.life (number, base, previous_last, epoch, reason, system_identifier, timeline, database_oid, head_oid)
    select (select max(number) + 1 from {schema}.life),
           greatest(head.position + 1, %(seen)s::bigint + 1, (extract(epoch from pg_catalog.clock_timestamp()) * 1000000)::bigint),
           head.position, gen_random_uuid(), %(reason)s, %(system_identifier)s, %(timeline)s, %(database_oid)s, %(head_oid)s
    from {schema}.head
    returning *
)
update {schema}.head
set position = life.base, epoch = life.epoch, server_started = pg_catalog.pg_postmaster_start_time(),
    gaps = head.gaps + int8multirange(int8range(life.previous_last + 1, life.base + 1))
from life
returning life.number, life.base, life.previous_last, life.began_at, life.reason, pg_notify(%(channel)s, head.position::text)
