-- The system's own tables. Harmless to repeat: `aftercommit up` does it at every start.
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

-- Which lines have been stored, by the names that their producers gave them. Written in the transaction that publishes
-- the line: a repeated name waits for the first one to commit, and is then known. There is no foreign key: the statement
-- that writes here holds the investigation's row, which is never deleted, and a check per line would cost a batch dearly.
create table if not exists investigations.stored_log (
    investigation_id varchar(100) not null,
    event_id uuid not null,
    constraint stored_log_pkey primary key (investigation_id, event_id)
);
