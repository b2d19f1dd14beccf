-- name: audience_bytes
-- The bytes of an event's audience as they are sent to the client.
+ octet_length(audience::text)

-- name: add_audience_to_outbox
-- The readers of an event. Events from before the audience was declared, and those of programs that do not declare it yet, have none: the
-- column has a default, so that no program has to stop for the migration.
alter table {schema}.{table} add column audience varchar(255)[] not null default '{{}}' {check}

-- name: add_audience
-- The same column in the log and in dead letters, without a default: keep_audience fills it in or refuses the row.
alter table {schema}.{table} add column audience varchar(255)[] not null default '{{}}';
alter table {schema}.{table} alter column audience drop default

-- name: audience_check
-- Every event enters through the outbox, also through a view or by plain SQL: refuses a list that could not be appended.
constraint outbox_audience_names_readers check (
    coalesce(array_ndims(audience), 1) = 1 and cardinality(audience) <= {most} and array_position(audience, null) is null and '' <> all (audience)
)

-- name: create_audience_table
-- Finds the events of a reader. Its partitions are those of the log, made and dropped with them.
create table {schema}.audience (
    reader varchar(255) collate "C" not null,
    position bigint not null,
    constraint audience_pkey primary key (reader, position)
) partition by range (position);
comment on table {schema}.audience is 'Who hears of which event of the log, in order; written with the append. Its partitions come and go with those of the log.'

-- name: define_keep_audience
-- A program that does not declare the audience yet does not know it. Such a relay must not move an event with an audience into the log
-- without it: it waits, and a relay that knows takes over. A dead letter gets the audience from its event.
create or replace function {schema}.keep_audience() returns trigger language plpgsql stable as {log_body};
comment on function {schema}.keep_audience() is {stamp};
create or replace trigger keep_audience before insert on {schema}.log
    for each row when (new.audience is null) execute function {schema}.keep_audience();
create or replace function {schema}.keep_letter_audience() returns trigger language plpgsql stable as {letter_body};
comment on function {schema}.keep_letter_audience() is {stamp};
create or replace trigger keep_audience before insert on {schema}.dead_letter_events
    for each row when (new.audience is null) execute function {schema}.keep_letter_audience()

-- name: keep_audience_body
-- Stable, so that it looks at the outbox as it was before the statement that takes the event out of it.
begin
    if exists (select from {schema}.outbox where outbox.id = new.id and cardinality(outbox.audience) > 0) then
        -- Of this class, because it passes: the relay tries again and says so.
        raise exception using errcode = 'object_not_in_prerequisite_state',
            message = 'event ' || new.id || ' has an audience, of which this relay does not know',
            hint = 'Run relays that declare Outbox(audience=True); nothing is lost meanwhile.';
    end if;
    new.audience := '{{}}';
    return new;
end

-- name: keep_letter_audience_body
-- In the outbox, or else in the log.
begin
    new.audience := coalesce(
        (select outbox.audience from {schema}.outbox where outbox.id = new.event_id),
        (select log.audience from {schema}.log where log.position = new.position),
        '{{}}');
    return new;
end

-- name: returning_audience
-- The appended events, for their readers.
position, audience

-- name: heard
-- The rows by which readers find their events, in the same transaction. A reader that plain SQL has named twice gets one row.
, heard as (
    insert into {schema}.audience (reader, position)
    select distinct reader, appended.position from appended cross join lateral unnest(appended.audience) reader
)

-- name: view_audience
-- Who hears of an event that comes in through a view: as it is stored, else as the row or the envelope says, else nobody.
coalesce(
    known.audience, {row}
    (select array_agg(reader)::varchar[] from jsonb_array_elements_text(envelope -> 'audience') reader),
    '{{}}'
)

-- name: feed_candidates_heard
-- The events of a reader, in order: walks the index of the reader, and looks up each event by its position. (With its own limit, or the
-- planner might scan the log instead.)
select found.*
from {schema}.audience heard
cross join lateral (
    select {columns}, {bytes} as _bytes
    from {schema}.log
    where log.position = heard.position {types} {rest}
    limit 1
) found
where heard.reader = %(key)s and heard.position > %(low)s::bigint and heard.position <= %(high)s::bigint
order by heard.position {direction}
limit %(limit)s

-- name: feed_reach_heard
-- How far the next so many events of a reader reach. No row: to the end.
select heard.position, log.ts
from (
    select position
    from {schema}.audience
    where reader = %(key)s and position > %(low)s::bigint and position <= %(high)s::bigint
    order by position {direction}
    offset %(window)s - 1
    limit 1
) heard
join {schema}.log on log.position = heard.position
