-- The engine: outbox, log, lanes, consumers, inbox, dead letters.
-- {schema} is the schema of the outbox. Declared scope columns are added to outbox, log and dead_letter_events by the declaration.

create table {schema}.head (
    only_row boolean not null default true,
    position bigint not null default 0,
    ts timestamptz not null default now(),
    epoch uuid not null default gen_random_uuid(),
    constraint head_pkey primary key (only_row),
    constraint head_is_one_row check (only_row),
    constraint head_position_is_not_negative check (position >= 0)
) with (fillfactor = 10);
comment on table {schema}.head is 'The tip of the log. Its row lock makes log order equal commit order. epoch changes on restore or failover.';

insert into {schema}.head default values;

create table {schema}.outbox (
    id uuid not null,
    seq bigint generated always as identity,
    lane smallint not null generated always as ((hashtextextended(aggregate_type || '/' || aggregate_id, 0) & 63)::smallint) stored,
    aggregate_type varchar(50) not null,
    aggregate_id varchar(255) not null,
    event_type varchar(100) not null,
    schema_version smallint not null default 1,
    occurred_at timestamptz not null default clock_timestamp(),
    correlation_id varchar(255) not null,
    causation_id uuid,
    payload json not null,
    status varchar(20) not null default 'pending',
    retry_count integer not null default 0,
    next_retry_at timestamptz,
    created_at timestamptz not null default clock_timestamp(),
    last_error text,
    constraint outbox_pkey primary key (id),
    constraint outbox_status_is_known check (status in ('pending', 'failed')),
    constraint outbox_retry_count_is_not_negative check (retry_count >= 0),
    constraint outbox_schema_version_is_positive check (schema_version >= 1),
    constraint outbox_failed_has_error_and_no_retry check (
        status <> 'failed' or (next_retry_at is null and last_error is not null and retry_count > 0)
    ),
    constraint outbox_names_are_not_empty check (aggregate_type <> '' and aggregate_id <> '' and event_type <> '' and correlation_id <> ''),
    constraint outbox_occurred_at_is_readable check (occurred_at >= '0002-01-01T00:00:00Z' and occurred_at < '9999-01-01T00:00:00Z')
) with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_insert_scale_factor = 0.2);
comment on table {schema}.outbox is 'Committed events that are not in the log yet. seq is drawn by the INSERT, while the writer holds its aggregate''s lock.';

-- Only partial indexes: a row that failed or waits costs the drain nothing.
create index outbox_fresh on {schema}.outbox (seq) where status = 'pending' and next_retry_at is null;
create index outbox_retries on {schema}.outbox (next_retry_at) where status = 'pending' and next_retry_at is not null;
create index outbox_held on {schema}.outbox (aggregate_type, aggregate_id, seq) where status = 'failed' or next_retry_at is not null;
create index outbox_failed on {schema}.outbox (seq) where status = 'failed';

create table {schema}.log (
    position bigint not null,
    ts timestamptz not null,
    stream_seq bigint,
    id uuid not null,
    seq bigint not null,
    lane smallint not null,
    aggregate_type varchar(50) not null,
    aggregate_id varchar(255) not null,
    event_type varchar(100) not null,
    schema_version smallint not null,
    occurred_at timestamptz not null,
    correlation_id varchar(255) not null,
    causation_id uuid,
    payload json not null,
    retry_count integer not null,
    created_at timestamptz not null,
    constraint log_pkey primary key (position),
    constraint log_position_is_positive check (position > 0)
) partition by range (position);
comment on table {schema}.log is 'What was published: gapless, immutable, totally ordered by position. Retention drops partitions and never deletes rows.';

create index log_event on {schema}.log (id);
create index log_aggregate on {schema}.log (aggregate_id, position);

create table {schema}.stream (
    aggregate_type varchar(50) not null,
    aggregate_id varchar(255) not null,
    seq bigint not null,
    ts timestamptz not null,
    constraint stream_pkey primary key (aggregate_type, aggregate_id),
    constraint stream_seq_is_positive check (seq > 0)
) with (fillfactor = 50);
comment on table {schema}.stream is 'The last stream_seq of each aggregate whose type is declared numbered.';

create table {schema}.relay (
    id uuid not null,
    name text not null,
    listening boolean not null default false,
    seen_at timestamptz not null default clock_timestamp(),
    constraint relay_pkey primary key (id)
) with (fillfactor = 50);
comment on table {schema}.relay is 'Live relays. A publisher rings the doorbell (NOTIFY) only while one of them is listening.';

create table {schema}.lane (
    lane smallint not null,
    relay uuid,
    token uuid,
    leased_until timestamptz,
    constraint lane_pkey primary key (lane),
    constraint lane_is_in_range check (lane between 0 and 63),
    constraint lane_is_held_or_free check ((relay is null) = (token is null) and (relay is null) = (leased_until is null))
) with (fillfactor = 50);
comment on table {schema}.lane is 'Who carries which events: aggregates hash to 64 lanes, a relay leases lanes, the token fences its writes.';

insert into {schema}.lane (lane) select generate_series(0, 63);

create table {schema}.published_key (
    key varchar(255) not null,
    scope text not null default '',
    fingerprint text not null default '',
    event_ids uuid[] not null,
    created_at timestamptz not null default clock_timestamp(),
    constraint published_key_pkey primary key (key, scope),
    constraint published_key_names_events check (cardinality(event_ids) > 0)
);
comment on table {schema}.published_key is 'Idempotency keys given at publish, each within its scope: the same key again publishes nothing and returns the first ids.';
create index published_key_age on {schema}.published_key using brin (created_at);

create table {schema}.consumer (
    name varchar(100) not null,
    position bigint not null,
    declared_by text not null,
    paused boolean not null default false,
    worker text,
    token uuid,
    leased_until timestamptz,
    suspect_position bigint,
    suspect_attempts integer not null default 0,
    updated_at timestamptz not null default clock_timestamp(),
    constraint consumer_pkey primary key (name),
    constraint consumer_position_is_not_negative check (position >= 0),
    constraint consumer_is_held_or_free check ((worker is null) = (token is null) and (worker is null) = (leased_until is null)),
    constraint consumer_suspect_is_counted check ((suspect_position is null) = (suspect_attempts = 0))
) with (fillfactor = 50);
comment on table {schema}.consumer is 'Checkpoint, lease and pause flag of every consumer of the log.';

create table {schema}.processed_events (
    event_id uuid not null,
    consumer_name varchar(100) not null,
    processed_at timestamptz not null default clock_timestamp(),
    constraint processed_events_pkey primary key (event_id, consumer_name)
);
comment on table {schema}.processed_events is 'The inbox: written in the handler''s transaction, so that an event has its effects once per consumer.';
create index processed_events_age on {schema}.processed_events using brin (processed_at);

create table {schema}.dead_letter_events (
    event_id uuid not null,
    consumer_name varchar(100) not null,
    status varchar(20) not null,
    event_type varchar(100) not null,
    schema_version smallint not null,
    aggregate_type varchar(50) not null,
    aggregate_id varchar(255) not null,
    occurred_at timestamptz not null,
    correlation_id varchar(255) not null,
    causation_id uuid,
    payload json not null,
    seq bigint not null,
    position bigint,
    created_at timestamptz not null,
    error text not null,
    error_class text not null,
    attempts integer not null,
    first_seen_at timestamptz not null default clock_timestamp(),
    last_seen_at timestamptz not null default clock_timestamp(),
    next_retry_at timestamptz,
    history jsonb not null default '[]',
    constraint dead_letter_events_pkey primary key (event_id, consumer_name),
    constraint dead_letter_status_is_known check (status in ('retrying', 'waiting', 'parked', 'resolved', 'discarded')),
    constraint dead_letter_retry_has_a_time check ((status = 'retrying') = (next_retry_at is not null)),
    constraint dead_letter_attempts_are_not_negative check (attempts >= 0),
    constraint dead_letter_was_seen_in_order check (last_seen_at >= first_seen_at),
    constraint dead_letter_history_is_a_list check (jsonb_typeof(history) = 'array')
);
comment on table {schema}.dead_letter_events is 'Events that a consumer (or, under the name @relay, a transport) could not take: retrying, waiting behind one that is, or parked.';
create index dead_letter_due on {schema}.dead_letter_events (consumer_name, next_retry_at) where status = 'retrying';
create index dead_letter_open on {schema}.dead_letter_events (consumer_name, aggregate_type, aggregate_id, seq) where status in ('retrying', 'waiting', 'parked');
create index dead_letter_age on {schema}.dead_letter_events using brin (last_seen_at);
