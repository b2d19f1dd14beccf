-- The bot's own tables, for SQLite and PostgreSQL alike. What stands here was applied somewhere: add versions, change none.
-- Times are ISO 8601 in UTC with microseconds, so that they sort as text.

-- version: 1
create table {schema}.link (
    chat_id bigint primary key,
    user_id text not null,
    name text not null,
    language text not null,
    place text,
    linked_at text not null,
    muted_until text,
    passed bigint not null default 0,
    unreachable text,
    unreachable_at text,
    code_hash text not null default ''
);
create table {schema}.failure (
    chat_id bigint not null,
    user_id text not null,
    place text not null,
    event_id text not null,
    event_type text not null,
    kind text not null check (kind in ('blocked', 'gone', 'refused', 'gap')),
    reason text not null,
    at text not null,
    primary key (chat_id, user_id, place, kind)
);
create index {index}failure_at on {failure} (at);
create table {schema}.code (
    hash text primary key,
    user_id text not null,
    name text not null,
    expires_at text not null,
    taken_by text
);
create table {schema}.progress (
    name text primary key,
    value bigint not null
);

-- version: 2
create table {schema}.trouble (
    name text primary key,
    said text not null
);

-- version: 3
alter table {schema}.link add column topic bigint;
