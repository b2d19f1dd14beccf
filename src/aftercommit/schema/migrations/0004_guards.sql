-- Guards of the feeds: service tokens, revoked tokens, and what rate limits have counted.
-- New tables: code that knows 0001 goes on working.
-- needs code: 0001

create table {schema}.service_token (
    id varchar(40) not null,
    name varchar(200) not null,
    secret_hash bytea not null,
    permissions text[] not null,
    created_at timestamptz not null default clock_timestamp(),
    created_by text not null default '',
    expires_at timestamptz,
    revoked_at timestamptz,
    last_used_at timestamptz,
    changed bigint not null default pg_current_xact_id()::text::bigint,
    constraint service_token_pkey primary key (id),
    constraint service_token_hash_is_sha256 check (octet_length(secret_hash) = 32)
);
comment on table {schema}.service_token is 'Tokens of services. Only the hash of the secret is here; changed is the number of the transaction that last changed what a token may, so that readers find what is new since they last looked.';
create index service_token_changed on {schema}.service_token (changed);

create table {schema}.revoked_token (
    kind varchar(10) not null,
    value varchar(255) not null,
    revoked_at timestamptz not null default clock_timestamp(),
    revoked_by text not null default '',
    reason text not null default '',
    until timestamptz not null default 'infinity',
    changed bigint not null default pg_current_xact_id()::text::bigint,
    constraint revoked_token_pkey primary key (kind, value),
    constraint revoked_token_kind_is_known check (kind in ('token', 'user'))
);
comment on table {schema}.revoked_token is 'Tokens that count no more: one by its id, or all of a user that were issued before revoked_at. Until says when the last of them has expired, and the row may go.';
create index revoked_token_changed on {schema}.revoked_token (changed);

-- Unlogged: what was counted in the last minutes is worth nothing after a crash.
create unlogged table {schema}.rate_window (
    name varchar(100) not null,
    key varchar(255) not null,
    seconds integer not null,
    number bigint not null,
    taken bigint not null,
    constraint rate_window_pkey primary key (name, key, seconds, number),
    constraint rate_window_is_counted check (taken > 0 and seconds > 0)
) with (fillfactor = 50);
comment on table {schema}.rate_window is 'Requests that server processes have let through, by limit, key and window; window n begins n times seconds after 1970.';
