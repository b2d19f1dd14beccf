-- Rate limits that hold for any stretch of time: what was let through, by moment, instead of by fixed windows.
-- A new table: code that knows 0001 goes on working, and counts in rate_window meanwhile.
-- needs code: 0001

-- Unlogged: what was counted in the last minutes is worth nothing after a crash.
create unlogged table {schema}.rate_log (
    name varchar(100) not null,
    key varchar(255) not null,
    seconds integer not null,
    granted bigint not null,
    moments bigint[] not null,
    taken bigint[] not null,
    constraint rate_log_pkey primary key (name, key, seconds),
    constraint rate_log_counts_each_moment check (cardinality(moments) = cardinality(taken) and seconds > 0 and granted >= 0)
) with (fillfactor = 50);
comment on table {schema}.rate_log is 'Requests that server processes have let through in the last seconds, by limit and key: so many (taken) at each moment, in microseconds since 1970. Granted is what the last exchange was allowed beyond what it told.';
comment on table {schema}.rate_window is 'What releases before 0007 count by: requests that server processes have let through, by limit, key and window. Newer ones use rate_log.';
