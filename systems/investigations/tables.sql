-- The system's own tables. Safe to repeat: `aftercommit up` runs this at every start.
select pg_advisory_xact_lock(hashtext('investigations'));

create schema if not exists investigations;

create table if not exists investigations.investigation (
    id varchar(100) not null,
    number bigint generated always as identity,
    title varchar(200) not null,
    status varchar(10) not null default 'open',
    created_at timestamptz not null default clock_timestamp(),
    created_by varchar(255) not null,
    closed_at timestamptz,
    closed_by varchar(255),
    constraint investigation_pkey primary key (id),
    constraint investigation_number_is_unique unique (number),
    constraint investigation_status_is_known check (status in ('open', 'closed')),
    constraint investigation_closed_has_time_and_name check (
        (status = 'closed') = (closed_at is not null) and (closed_at is null) = (closed_by is null)
    )
);

-- The ids of stored lines. Written in the transaction that publishes the line: a repeated id waits for the first one to
-- commit, and is then a duplicate. There is no foreign key: the statement that inserts here locks the investigation's row,
-- nothing deletes investigations, and a check for each line would be expensive.
create table if not exists investigations.stored_log (
    investigation_id varchar(100) not null,
    event_id uuid not null,
    constraint stored_log_pkey primary key (investigation_id, event_id)
);
