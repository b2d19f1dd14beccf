-- Lives of the log: which server gave its numbers, and where they jump after a restore or a promotion.
-- New columns and a table: code that knows 0001 goes on working, and does not notice a restore.
-- needs code: 0001

alter table {schema}.head
    add column gaps int8multirange not null default '{{}}',
    add column server_started timestamptz,
    add constraint head_gaps_are_behind_it check (isempty(gaps) or upper(gaps) <= position + 1);
comment on column {schema}.head.gaps is 'Positions that were never given: one range before each life but the first.';
comment on column {schema}.head.server_started is 'When the server started that the present life is known to go on with. On any other the relay looks first.';

alter table {schema}.stream add column gaps int8multirange not null default '{{}}';
comment on column {schema}.stream.gaps is 'Numbers of this stream that were never given: one range before each life but the first.';

create table {schema}.life (
    number integer not null,
    base bigint not null,
    previous_last bigint not null,
    began_at timestamptz not null default clock_timestamp(),
    epoch uuid not null,
    reason text not null,
    system_identifier bigint,
    timeline integer,
    database_oid oid,
    head_oid oid,
    constraint life_pkey primary key (number),
    constraint life_is_numbered_from_one check (number >= 1),
    constraint life_begins_above_the_one_before check (number = 1 or base > previous_last)
);
comment on table {schema}.life is 'Lives of the log. One begins with the first migration, and another after each restore, promotion or recovery: its first event has the position base + 1, above all that any life before can have given.';

create function {schema}.given(gaps int8multirange, low bigint, high bigint) returns bigint
language sql immutable strict parallel safe
return (greatest(high - low, 0) - coalesce((
    select sum(upper(gap) - lower(gap)) from unnest(gaps * int8multirange(int8range(low + 1, greatest(low, high) + 1))) gap
), 0))::bigint;
comment on function {schema}.given(int8multirange, bigint, bigint) is 'How many numbers were given behind low and up to high: all but those in the gaps between two lives.';

insert into {schema}.life (number, base, previous_last, began_at, epoch, reason)
select 1, 0, 0, coalesce((select ts from {schema}.log order by position limit 1), clock_timestamp()), epoch, 'the log was created'
from {schema}.head;

-- A log in use is known to be on this server from here on. What the server does not tell stays unknown.
do $$
begin
    update {schema}.life
    set system_identifier = (select system_identifier from pg_catalog.pg_control_system()),
        timeline = ('x' || left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 8))::bit(32)::integer,
        database_oid = (select oid from pg_catalog.pg_database where datname = current_database()),
        head_oid = (select tableoid from {schema}.head)
    where (select position from {schema}.head) > 0;
exception when insufficient_privilege or undefined_function or feature_not_supported or object_not_in_prerequisite_state then
    null;
end
$$;
