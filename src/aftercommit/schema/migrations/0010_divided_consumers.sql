-- Divided consumers: several workers share the lanes of one consumer.
-- A column with a default and a new table: code that knows 0001 goes on working. It stands by at a consumer that is divided, because the
-- row of that consumer is held for good, and takes the rows of its lanes for consumers that it does not declare.
-- needs code: 0001

alter table {schema}.consumer add column lanes smallint not null default 1;
alter table {schema}.consumer add constraint consumer_lanes_are_in_range check (lanes between 1 and 64);
comment on table {schema}.consumer is 'Checkpoint, lease and pause flag of every consumer of the log. A consumer that is divided into lanes has a row for each lane, named consumer#lane. Its own row is held for good, and its position is not used.';

create table {schema}.consumer_worker (
    consumer_name varchar(100) not null,
    token uuid not null,
    worker text not null,
    leased_until timestamptz not null,
    lease_seconds double precision not null,
    constraint consumer_worker_pkey primary key (consumer_name, token),
    constraint consumer_worker_lease_has_a_length check (lease_seconds > 0)
) with (fillfactor = 50);
comment on table {schema}.consumer_worker is 'Live workers of divided consumers, which share the lanes evenly.';
