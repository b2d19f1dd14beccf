-- Repair and upkeep: audited operations (retry, edit, discard, replay) with the set of events each was given, and what retention has removed.
-- New tables, columns with defaults and indexes, and indexes gone that no statement used: code that knows 0001 goes on working.
-- needs code: 0001

create table {schema}.operation (
    id uuid not null,
    kind varchar(20) not null,
    status varchar(20) not null default 'running',
    requested_by text not null,
    reason text not null default '',
    target text not null,
    selection jsonb not null,
    detail jsonb not null default '{{}}',
    per_second double precision,
    total bigint not null default 0,
    done bigint not null default 0,
    skipped bigint not null default 0,
    failed bigint not null default 0,
    driver uuid,
    driven_until timestamptz,
    created_at timestamptz not null default clock_timestamp(),
    finished_at timestamptz,
    constraint operation_pkey primary key (id),
    constraint operation_kind_is_known check (kind in ('retry', 'edit', 'discard', 'replay', 'seek')),
    constraint operation_status_is_known check (status in ('running', 'aborting', 'aborted', 'done')),
    constraint operation_ends_once check ((finished_at is null) = (status in ('running', 'aborting'))),
    constraint operation_is_driven_or_free check ((driver is null) = (driven_until is null)),
    constraint operation_rate_is_positive check (per_second > 0)
);
comment on table {schema}.operation is 'What operators did to events: who, why, which selection, and how it went. A replay runs in the open and can be aborted.';
create index operation_age on {schema}.operation (created_at);

create table {schema}.operation_event (
    operation_id uuid not null,
    ordinal bigint not null,
    event_id uuid not null,
    consumer_name varchar(100),
    position bigint,
    state varchar(20) not null default 'waiting',
    former_status varchar(20),
    former_letter varchar(20),
    former_attempts integer,
    was_handled boolean not null default false,
    note text,
    constraint operation_event_pkey primary key (operation_id, ordinal),
    constraint operation_event_operation_fkey foreign key (operation_id) references {schema}.operation (id) on delete cascade,
    constraint operation_event_state_is_known check (state in ('waiting', 'started', 'done', 'skipped', 'failed', 'aborted'))
);
comment on table {schema}.operation_event is 'The frozen set of an operation, in the order in which it is gone through; what is needed to take a step back is kept beside it.';
-- Two, so that neither question steps over the answers to the other.
create index operation_event_waiting on {schema}.operation_event (operation_id, ordinal) where state = 'waiting';
create index operation_event_started on {schema}.operation_event (operation_id, ordinal) where state = 'started';
create index operation_event_event on {schema}.operation_event (event_id);

create table {schema}.upkeep (
    task varchar(50) not null,
    keep interval,
    horizon timestamptz,
    removed bigint not null default 0,
    kept_back jsonb not null default '{{}}',
    began_at timestamptz,
    next_page bigint,
    ran_at timestamptz,
    leased_until timestamptz,
    constraint upkeep_pkey primary key (task),
    constraint upkeep_keeps_some_time check (keep > interval '0'),
    constraint upkeep_pass_has_begun check (next_page is null or began_at is not null),
    constraint upkeep_page_is_not_negative check (next_page >= 0),
    constraint upkeep_kept_back_is_an_object check (jsonb_typeof(kept_back) = 'object')
);
comment on table {schema}.upkeep is 'What retention does: for each kind of row how long it is kept, the time before which rows may be gone (horizon), what was held back and by whom. Whoever relies on a horizon locks its row FOR SHARE: it does not move meanwhile. The row sweep is the right to do a round.';
insert into {schema}.upkeep (task) values ('sweep'), ('log'), ('inbox'), ('keys'), ('dead_letters'), ('operations');

-- Pages that retention has emptied are filled again with new rows, and BRIN never forgets how old a page once was: after one
-- turn these indexes would point at every page. Retention goes through the pages themselves.
drop index {schema}.processed_events_age;
drop index {schema}.published_key_age;
drop index {schema}.dead_letter_age;

-- Whether the inbox row of a discarded letter stands for an event that its consumer was spared, and has not handled.
alter table {schema}.dead_letter_events add column spared boolean not null default false;
-- How many of its attempts were made before a letter was last retried by hand: its policy counts from there, and attempts count on.
alter table {schema}.dead_letter_events add column attempts_before integer not null default 0;
-- Without an inbox nobody knows what of the past a consumer has handled.
alter table {schema}.consumer add column inbox boolean not null default true;

-- Who watches counts dead letters again and again, and their rows are wide.
-- concurrently: dead_letter_count on dead_letter_events
create index {concurrently} {index} on {only} {schema}.{table} (consumer_name, status) where status in ('retrying', 'waiting', 'parked');
