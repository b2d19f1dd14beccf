-- Questions of operators: indexes by which previews of replays and lists of dead letters do not read whole tables.
-- Two functions and indexes: code that knows 0001 goes on working.
-- needs code: 0001

create function {schema}.error_pattern(error text) returns text
language sql immutable parallel safe
return left(regexp_replace(split_part(error, E'\n', 1),
    '[0-9a-fA-F]{{8}}-([0-9a-fA-F]{{4}}-){{3}}[0-9a-fA-F]{{12}}|[0-9]+', '#', 'g'), 200);
comment on function {schema}.error_pattern(text) is 'The first line of an error. Numbers and ids belong to one event each, so # stands for them.';

create function {schema}.error_group(error_class text, error text) returns bigint
language sql immutable parallel safe
return hashtextextended(error_class || E'\n' || {schema}.error_pattern(error), 0);
comment on function {schema}.error_group(text, text) is 'Which dead letters of an owner have the same error.';

-- Dead letters of an owner in one status, last seen first.
-- concurrently: dead_letter_seen on dead_letter_events
create index {concurrently} {index} on {only} {schema}.{table} (consumer_name, status, last_seen_at desc, event_id);
-- The index is where the group of a letter is stored: it is computed when the letter is written.
-- concurrently: dead_letter_group on dead_letter_events
create index {concurrently} {index} on {only} {schema}.{table} (consumer_name, {schema}.error_group(error_class, error), last_seen_at desc)
where status in ('retrying', 'parked');
-- One small index for three questions: per range of pages the times, and filters of the types and correlation ids that may be there. A B-tree
-- for each would cost every append more. An event that came late or early only widens its own range.
-- concurrently: log_ranges on log
create index {concurrently} {index} on {only} {schema}.{table} using brin (
    created_at timestamptz_minmax_multi_ops,
    event_type text_bloom_ops (n_distinct_per_range = 64, false_positive_rate = 0.001),
    correlation_id text_bloom_ops (n_distinct_per_range = 600, false_positive_rate = 0.001)
) with (pages_per_range = 32, autosummarize = on);
