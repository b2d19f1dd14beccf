-- Consumers that wait for newer code, and leases that know their own length.
-- A new table, columns without a default and a constraint gone: code that knows 0001 goes on working.
-- needs code: 0001

create table {schema}.version_wait (
    consumer_name varchar(100) not null,
    event_type varchar(100) not null,
    version smallint not null,
    known smallint not null,
    since timestamptz not null,
    until timestamptz not null,
    seen_at timestamptz not null,
    constraint version_wait_pkey primary key (consumer_name, event_type, version),
    constraint version_wait_is_for_newer_code check (version > known and known >= 0)
) with (fillfactor = 50);
comment on table {schema}.version_wait is 'Consumers that met an event of a version (or, with known 0, of a type) that their code does not know. Until says when they stop waiting for newer code and park such events.';

-- A lease that ends further ahead than its own length was taken before the clock was set back: it is void.
alter table {schema}.lane add column lease_seconds double precision;
alter table {schema}.consumer add column lease_seconds double precision;
alter table {schema}.operation add column lease_seconds double precision, add column driven_by text;
alter table {schema}.upkeep add column lease_seconds double precision;

-- A clock that was set back is no reason to refuse a write.
alter table {schema}.dead_letter_events drop constraint dead_letter_was_seen_in_order;
