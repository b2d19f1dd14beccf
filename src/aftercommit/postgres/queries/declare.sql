-- name: catalog_columns
-- The columns of some tables of the schema: type as SQL writes it, whether null is refused, and whether it fills itself.
select class.relname::text, attribute.attname::text, format_type(attribute.atttypid, attribute.atttypmod), attribute.attnotnull,
       attribute.atthasdef or attribute.attidentity <> ''
from pg_attribute attribute
join pg_class class on class.oid = attribute.attrelid
join pg_namespace namespace on namespace.oid = class.relnamespace
where namespace.nspname = %(schema)s and class.relname::text = any(%(tables)s)
  and attribute.attnum > 0 and not attribute.attisdropped

-- name: catalog_relations
-- Everything in the schema that has a name of its own there: tables, views, sequences, and indexes, with whether they can be
-- used and of which table they are.
select class.relname::text, class.relkind::text, obj_description(class.oid, 'pg_class'), coalesce(index.indisvalid, true),
       (select indexed.relname::text from pg_class indexed where indexed.oid = index.indrelid)
from pg_class class
join pg_namespace namespace on namespace.oid = class.relnamespace
left join pg_index index on index.indexrelid = class.oid
where namespace.nspname = %(schema)s

-- name: catalog_functions
-- The functions of the schema.
select routine.proname::text, obj_description(routine.oid, 'pg_proc')
from pg_proc routine
join pg_namespace namespace on namespace.oid = routine.pronamespace
where namespace.nspname = %(schema)s

-- name: applied_migrations
-- Which migrations this schema has had, what they were, and which code can work with each. The first release did not
-- write the latter down, and its table has no column for it.
select version, name, checksum, coalesce((to_jsonb(migration) ->> 'needs_code')::integer, version)
from {schema}.migration
order by version

-- name: schema_version
-- The newest migration, and the one that code has to know to work with this schema.
select max(version), max(coalesce((to_jsonb(migration) ->> 'needs_code')::integer, version)) from {schema}.migration

-- name: has_rows
-- Whether a table holds anything.
select exists (select from {schema}.{table})

-- name: who_am_i
-- The current role, and who owns the schema if it exists.
select current_user::text,
       (select pg_get_userbyid(nspowner)::text from pg_namespace where nspname = %(schema)s)

-- name: lock_holders
-- Sessions that hold locks on anything of the schema, longest transaction first.
select activity.pid, activity.usename::text, coalesce(activity.application_name, ''), coalesce(activity.state, 'unknown state'),
       extract(epoch from clock_timestamp() - activity.xact_start)::float8, coalesce(activity.query, '')
from pg_stat_activity activity
where activity.pid <> pg_backend_pid()
  and activity.pid in (
      select lock.pid
      from pg_locks lock
      where lock.granted and lock.database = (select oid from pg_database where datname = current_database())
        and (
            lock.relation in (select class.oid from pg_class class join pg_namespace namespace on namespace.oid = class.relnamespace
                              where namespace.nspname = %(schema)s)
            or (lock.locktype = 'advisory' and lock.classid::bigint = {lock_class}
                and lock.objid::bigint = hashtext(%(schema)s)::bigint & 4294967295)
        )
  )
order by activity.xact_start nulls last
limit 3

-- name: take_migration_lock
-- One migrator per schema at a time. The wait for it blocks nobody, so it may be long; waits for tables may not.
select set_config('lock_timeout', %(patience)s, true), pg_advisory_xact_lock({lock_class}, hashtext(%(schema)s)),
       set_config('lock_timeout', %(lock_timeout)s, true)

-- name: prepare_schema
-- The schema and the list of its migrations. Refuses to go on where newer code was, or where a step would be left out.
-- Writers queue up behind a wait for a table, so it is a short one, unless whoever runs this has decided otherwise.
begin
    perform pg_advisory_xact_lock({lock_class}, hashtext({schema_name}));
    if current_setting('lock_timeout') = '0' then
        perform set_config('lock_timeout', '1s', true), set_config('aftercommit.lock_timeout', 'ours', true);
    end if;
    if not exists (select from pg_namespace where nspname = {schema_name}) then
        create schema {schema};
    end if;
    if to_regclass({migration_table}) is null then
        create table {schema}.migration (
            version integer not null,
            name text not null,
            checksum text not null,
            applied_at timestamptz not null default clock_timestamp(),
            constraint migration_pkey primary key (version)
        );
        comment on table {schema}.migration is 'Which migrations this schema has had, and the checksum of each.';
    end if;
    if not exists (select from pg_attribute where attrelid = {migration_table}::regclass and attname = 'needs_code') then
        alter table {schema}.migration add column needs_code integer;
        comment on column {schema}.migration.needs_code is 'Code that knows the migrations up to this one can work with the schema.';
    end if;
    if exists (select from {schema}.migration where version > {newest}) then
        raise exception using errcode = 'object_not_in_prerequisite_state',
            message = 'this schema was migrated by a newer aftercommit than the one that wrote these statements';
    end if;
    if {after} > 0 and not exists (select from {schema}.migration where version = {after}) then
        raise exception using errcode = 'object_not_in_prerequisite_state',
            message = 'these statements go on from migration {after}, which this schema has not had';
    end if;
end

-- name: apply_migration
-- A numbered file and its record, unless the schema has had it.
begin
    if not exists (select from {schema}.migration where version = {version}) then
        {text}
        insert into {schema}.migration (version, name, checksum, needs_code)
        values ({version}, {migration_name}, {checksum}, {needs_code});
    elsif exists (select from {schema}.migration where version = {version} and checksum <> {checksum}) then
        raise exception using errcode = 'object_not_in_prerequisite_state',
            message = 'migration {version} was applied with another checksum than ' || {checksum} || ': one of the two files is not ours';
    end if;
end

-- name: finish_schema
-- The end of a list of statements: the waits of whoever goes on in this transaction are their own again.
begin
    if current_setting('aftercommit.lock_timeout', true) = 'ours' then
        perform set_config('lock_timeout', '0', true), set_config('aftercommit.lock_timeout', '', true);
    end if;
end

-- name: unless
-- Does something only where it is not done yet, so that the same text can run again and takes no lock then.
begin
    if not ({condition}) then
        {action};
    end if;
end

-- name: has_column
-- Whether a table has a column.
exists (select from pg_attribute where attrelid = {table_name}::regclass and attname = {column_name} and not attisdropped)

-- name: has_relation
-- Whether a table, view or index exists.
to_regclass({relation}) is not null

-- name: has_function
-- Whether a function exists as it was declared.
obj_description(to_regprocedure({function_name}), 'pg_proc') is not distinct from {stamp}

-- name: add_scope_column
-- A declared scope value is a typed column that cannot be null: the database itself refuses an event without it.
alter table {schema}.{table} add column {column} {type} not null {check}

-- name: fill_scope_column
-- The same where there are events already: they get a value once, later ones must bring their own.
alter table {schema}.{table} add column {column} {type} not null default {value} {check};
alter table {schema}.{table} alter column {column} drop default;

-- name: view_event_outbox
-- Every event with its status, under the canonical names.
select id, aggregate_type, aggregate_id {scope_names}, event_type, schema_version, occurred_at, correlation_id, causation_id,
       payload::jsonb as payload, status, retry_count, next_retry_at, created_at,
       null::timestamptz as published_at, last_error, seq, null::bigint as position
from {schema}.outbox
union all
select id, aggregate_type, aggregate_id {scope_names}, event_type, schema_version, occurred_at, correlation_id, causation_id,
       payload::jsonb, 'published'::varchar(20), retry_count, null::timestamptz, created_at,
       ts, null::text, seq, position
from {schema}.log

-- name: view_event_log
-- What was published, in order.
select position, ts, id as event_id, aggregate_type, aggregate_id, stream_seq {scope_names}, event_type, schema_version, occurred_at,
       correlation_id, causation_id, payload::jsonb as payload, retry_count, created_at, ts as published_at
from {schema}.log

-- name: view_declared
-- Every event with its status, under your own names.
select {columns}
from (select *, null::bigint as position, null::timestamptz as published_at from {schema}.outbox) event
union all
select {columns}
from (select *, 'published'::varchar(20) as status, null::timestamptz as next_retry_at, ts as published_at, null::text as last_error from {schema}.log) event

-- name: replace_view
-- A view of ours is made anew when its definition changed, and keeps its privileges. Anything else of that name is left alone.
declare
    relation oid := to_regclass({view_name});
    stamp text := obj_description(relation, 'pg_class');
    privileges aclitem[] := (select relacl from pg_class where oid = relation);
    granted record;
begin
    if stamp = {stamp} then
        return;
    end if;
    if relation is not null and left(coalesce(stamp, ''), 12) <> 'aftercommit:' then
        raise exception using errcode = 'duplicate_table', message = 'relation ' || {view_name} || ' already exists';
    end if;
    drop view if exists {schema}.{view};
    drop function if exists {schema}.{function}();
    create view {schema}.{view} as
    {definition};
    {writing}
    comment on view {schema}.{view} is {stamp};
    for granted in select * from aclexplode(privileges) loop
        execute 'grant ' || granted.privilege_type || ' on ' || {view_name} || ' to '
            || case when granted.grantee = 0 then 'public' else quote_ident(pg_get_userbyid(granted.grantee)) end
            || case when granted.is_grantable then ' with grant option' else '' end;
    end loop;
end

-- name: write_through_view
-- INSERT on the view goes through its function.
create function {schema}.{function}() returns trigger language plpgsql as {body};
create trigger {trigger} instead of insert on {schema}.{view} for each row execute function {schema}.{function}();

-- name: insert_event
-- INSERT into a declared view. A known event is replayed as it is stored; a new one is taken from the row and its envelope.
-- One that is still in the outbox falls due at once, in its old place, so that strict ordering holds; and so does one that was
-- discarded on its way out. Letters that were given up are wanted again, unless the event is on its way at this moment.
<<replay>>
declare
    incoming uuid := {event_id};
    given jsonb := {payload};
    envelope jsonb := '{{}}';
    known record;
    row_status text;
begin
    if {status} <> {pending_word} then
        raise exception using errcode = 'check_violation',
            message = 'an event is inserted as ' || {pending_word} || ', not as ' || {status};
    end if;
    if replay.incoming is null then
        raise exception using errcode = 'not_null_violation', message = 'an event cannot be inserted without its event_id';
    end if;
    if jsonb_typeof(given) = 'object' and given ? 'payload' and lower(given ->> 'event_id') = incoming::text then
        envelope := given;
    end if;
    select place.* into replay.known
    from (
        select 1 as rank, event.seq, {stored} from {schema}.outbox event where event.id = replay.incoming
        union all
        select 2, event.seq, {stored} from {schema}.log event where event.id = replay.incoming
        union all
        select 3, event.seq, {stored} from {schema}.dead_letter_events event where event.event_id = replay.incoming
    ) place
    order by place.rank
    limit 1;
    if found and known.payload::jsonb is distinct from given and known.payload::jsonb is distinct from envelope -> 'payload' then
        raise exception using errcode = 'check_violation',
            message = 'event ' || incoming || ' is stored with another payload, and an event never changes: insert the corrected one under a new event_id';
    end if;
    -- Before letters, rows, as everybody locks them.
    select queued.status into replay.row_status from {schema}.outbox queued where queued.id = replay.incoming for update;
    if replay.known.rank is not null and replay.row_status is distinct from 'pending' then
        with discarded as (
            select letter.event_id, letter.consumer_name, letter.spared
            from {schema}.dead_letter_events letter
            where letter.event_id = replay.incoming and letter.status = 'discarded'
            order by letter.consumer_name
            for update
        ),
        reopened as (
            update {schema}.dead_letter_events letter set status = 'parked', spared = false
            from discarded where letter.event_id = discarded.event_id and letter.consumer_name = discarded.consumer_name
        )
        delete from {schema}.processed_events inbox using discarded
        where inbox.event_id = discarded.event_id and inbox.consumer_name = discarded.consumer_name and discarded.spared;
    end if;
    -- A known event has a time of its retry: by it the relay finds it in its old place, and knows that there are letters to resolve.
    if replay.known.rank = 3 then
        insert into {schema}.outbox (id, seq, next_retry_at, {columns})
        overriding system value
        values (replay.incoming, known.seq, clock_timestamp(), {values})
        on conflict (id) do nothing;
    else
        insert into {schema}.outbox as kept (id, next_retry_at, {columns})
        values (replay.incoming, case when replay.known.rank is not null then clock_timestamp() end, {values})
        on conflict (id) do update set status = 'pending', retry_count = 0, next_retry_at = clock_timestamp()
        where kept.status = 'failed' or kept.next_retry_at is not null;
    end if;
    perform pg_notify({channel}, '') from {schema}.relay where listening limit 1;
    return new;
end

-- name: define_make_partitions
-- Owned by whoever migrates and callable by the roles that relay, which may not create tables themselves.
create or replace function {schema}.make_partitions() returns setof text
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '5s' as {body};
revoke execute on function {schema}.make_partitions() from public;
comment on function {schema}.make_partitions() is {stamp}

-- name: make_partitions_body
-- The partition of the tip and the next ones, of the log and of the audience, where there is one: whether there is does not
-- depend on who asks. Each is made beside its table first: attaching takes a lock that neither writers nor readers notice,
-- while CREATE TABLE … PARTITION OF would wait for all of them.
declare
    table_name text;
    number bigint;
    parent text;
    partition_name text;
begin
    for table_name, number in
        select class.relname, head.position / {size} + step
        from {schema}.head, generate_series(0, {ahead} - 1) step, pg_class class
        where class.relnamespace = {quoted_schema}::regnamespace and class.relkind = 'p' and class.relname in ('log', 'audience')
        order by step, class.relname
    loop
        parent := {quoted_schema} || '.' || table_name;
        partition_name := table_name || '_' || lpad(number::text, greatest(6, length(number::text)), '0');
        continue when exists (select from pg_inherits join pg_class on pg_class.oid = inhrelid
                              where inhparent = parent::regclass and relname = partition_name);
        perform pg_advisory_xact_lock({lock_class}, hashtext({schema_name}));
        -- Somebody else may have made it while we waited.
        continue when exists (select from pg_inherits join pg_class on pg_class.oid = inhrelid
                              where inhparent = parent::regclass and relname = partition_name);
        execute 'create table ' || {quoted_schema} || '.' || partition_name
            || ' (like ' || parent || ' including defaults including constraints)';
        execute 'alter table ' || parent || ' attach partition ' || {quoted_schema} || '.' || partition_name
            || ' for values from (' || number * {size} + 1 || ') to (' || (number + 1) * {size} + 1 || ')';
        return next partition_name;
    end loop;
end

-- name: call_make_partitions
-- The same as a statement that returns nothing.
begin
    perform {schema}.make_partitions();
end

-- name: make_partitions
-- Makes the partitions ahead of the tip that are missing; returns their names.
select * from {schema}.make_partitions()

-- name: partitions
-- The partitions of a table with their bounds; whether a detach was begun, and whether retention began it.
select child.relname::text, pg_get_expr(child.relpartbound, child.oid), link.inhdetachpending,
       coalesce(obj_description(child.oid, 'pg_class') = %(condemned)s, false)
from pg_inherits link
join pg_class child on child.oid = link.inhrelid
where link.inhparent = to_regclass(%(table)s)

-- name: condemned_tables
-- Partitions that retention had detached when something kept it from dropping them.
select class.relname::text
from pg_class class
join pg_namespace namespace on namespace.oid = class.relnamespace
where namespace.nspname = %(schema)s and class.relkind = 'r' and not class.relispartition
  and obj_description(class.oid, 'pg_class') = %(condemned)s
order by class.relname

-- name: condemn_partition
-- Marks a partition for retention, so that a run that was interrupted is taken up by the next.
comment on table {schema}.{partition} is {condemned}

-- name: pardon_partition
-- A partition that is needed after all is no longer marked.
comment on table {schema}.{partition} is null

-- name: detach_partition
-- Waits for readers, blocks nobody. Cannot run inside a transaction.
alter table {schema}.{table} detach partition {schema}.{partition} concurrently

-- name: finish_detach
-- A detach that was interrupted is finished.
alter table {schema}.{table} detach partition {schema}.{partition} finalize

-- name: drop_partition
-- Retention: a whole partition at once.
drop table {schema}.{partition}

-- name: last_of_partition
-- Whether the log has gone past a partition, and its newest row, where it has one. Asked through the log, which is what roles are
-- granted.
select head.position >= %(upper)s::bigint - 1, newest.position, newest.ts
from {schema}.head
left join lateral (
    select position, ts from {schema}.log where position >= %(lower)s and position < %(upper)s order by position desc limit 1
) newest on true

-- name: grant_on_schema
-- Names inside the schema can be used.
grant usage on schema {schema} to {role}

-- name: grant_on_relation
-- What the work on one table, view or sequence needs.
grant {privileges} on {schema}.{relation} to {role}

-- name: grant_on_function
-- A relay makes partitions through this function.
grant execute on function {schema}.{function}() to {role}

-- name: drop_everything
-- The outbox with all its events.
drop schema if exists {schema} cascade
