-- name: doctor_server
-- The server, our role on it, and whether it accepts writes.
select current_setting('server_version_num')::integer, current_setting('server_version'), pg_is_in_recovery(),
       current_user::text, current_database()::text

-- name: doctor_clock
-- The time of the database.
select clock_timestamp()

-- name: doctor_settings
-- Settings of this user in this database.
select name, setting from pg_settings where name = any(%(names)s)

-- name: doctor_privileges
-- Those of these privileges that this user lacks.
select wanted.relation, wanted.privilege
from unnest(%(relations)s::text[], %(privileges)s::text[]) as wanted (relation, privilege)
where not has_table_privilege(quote_ident(%(schema)s) || '.' || quote_ident(wanted.relation), wanted.privilege)

-- name: doctor_rights
-- Whether this user may call the function that makes partitions, drop partitions, and see the sessions of other users.
select has_function_privilege(quote_ident(%(schema)s) || '.make_partitions()', 'execute'),
       (select pg_has_role(relowner, 'usage') from pg_class where oid = (quote_ident(%(schema)s) || '.log')::regclass),
       pg_has_role('pg_read_all_stats', 'usage')

-- name: doctor_connections
-- Connections in use and allowed: of the server, of this database, of this user. -1 means no limit.
select 'the server', count(*),
       current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint
           - coalesce(current_setting('reserved_connections', true)::bigint, 0)
from pg_stat_activity where usesysid is not null and coalesce(backend_type, 'client backend') = 'client backend'
union all
select 'database ' || datname, (select count(*) from pg_stat_activity where datid = pg_database.oid), datconnlimit
from pg_database where datname = current_database() and datconnlimit >= 0
union all
select 'user ' || rolname, (select count(*) from pg_stat_activity where usesysid = pg_roles.oid), rolconnlimit
from pg_roles where rolname = current_user and rolconnlimit >= 0

-- name: doctor_vacuum
-- Tables of the outbox: dead rows against the threshold of autovacuum, its last run, and whether it is switched off.
select class.relname::text, stat.n_dead_tup,
       (coalesce(own.threshold, current_setting('autovacuum_vacuum_threshold'))::float8
           + coalesce(own.scale, current_setting('autovacuum_vacuum_scale_factor'))::float8 * greatest(class.reltuples, 0))::float8,
       extract(epoch from clock_timestamp() - greatest(stat.last_autovacuum, stat.last_vacuum))::float8,
       coalesce(own.enabled, 'true')::boolean
from pg_class class
join pg_namespace namespace on namespace.oid = class.relnamespace
join pg_stat_all_tables stat on stat.relid = class.oid
left join lateral (
    select max(option_value) filter (where option_name = 'autovacuum_vacuum_threshold') as threshold,
           max(option_value) filter (where option_name = 'autovacuum_vacuum_scale_factor') as scale,
           max(option_value) filter (where option_name = 'autovacuum_enabled') as enabled
    from pg_options_to_table(class.reloptions)
) own on true
where namespace.nspname = %(schema)s and class.relkind = 'r'
order by class.relname

-- name: doctor_indexes
-- Invalid indexes, which PostgreSQL does not use: a build or a concurrent change was interrupted.
select index_class.relname::text, table_class.relname::text
from pg_index index
join pg_class index_class on index_class.oid = index.indexrelid
join pg_class table_class on table_class.oid = index.indrelid
join pg_namespace namespace on namespace.oid = table_class.relnamespace
where namespace.nspname = %(schema)s and not (index.indisvalid and index.indisready)
order by 1

-- name: doctor_default_partition
-- The default partition.
select child.relname::text
from pg_inherits link join pg_class child on child.oid = link.inhrelid
where link.inhparent = %(log)s::regclass and pg_get_expr(child.relpartbound, child.oid) = 'DEFAULT'

-- name: doctor_log
-- The head of the log, and what the log has: how many events lie between the last one and the head (there should be none), and the ends
-- of each gap between two lives.
select head.position, last.position, (select min(position) from {schema}.log),
       {schema}.given(head.gaps, last.position, head.position),
       array(select array[lower(gap), upper(gap) - 1] from unnest(head.gaps) gap order by 1)
from {schema}.head
cross join (select max(position) as position from {schema}.log) last

-- name: doctor_samples
-- Stretches of the log: how many events each has and should have, and how often time runs backwards in it.
select sample.first, count(event.position), {schema}.given(head.gaps, sample.first - 1, least(sample.first + %(size)s - 1, %(last)s)),
       count(*) filter (where event.ts < event.ts_before)
from {schema}.head
cross join unnest(%(firsts)s::bigint[]) as sample (first)
left join lateral (
    select position, ts, lag(ts) over (order by position) as ts_before
    from {schema}.log
    where position >= sample.first and position < sample.first + %(size)s
) event on true
group by sample.first, head.gaps
order by sample.first
