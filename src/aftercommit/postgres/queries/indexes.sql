-- name: index_log_scope
-- For readers of one scope, by position.
create index {concurrently} {index} on {only} {schema}.{table} ({column}, position)

-- name: index_outbox_column
-- For pending events by a declared column. Each such index costs every publish a little.
create index {concurrently} {index} on {only} {schema}.{table} ({column}, created_at)

-- name: index_outbox_age
-- Pending events, oldest first, for programs that poll the outbox by created_at.
create index {concurrently} {index} on {only} {schema}.{table} ({column}) where status = 'pending'

-- name: index_log_facet_stream
-- Events of a stream with one payload value, in the stream's order.
create index {concurrently} {index} on {only} {schema}.{table} (aggregate_id, ({value}), stream_seq)
where aggregate_type = {of} and stream_seq is not null

-- name: index_log_facet_scope
-- The same within a scope.
create index {concurrently} {index} on {only} {schema}.{table} ({of}, ({value}), position)

-- name: index_log_facet_everything
-- The same in the whole log.
create index {concurrently} {index} on {only} {schema}.{table} (({value}), position)

-- name: facet_value
-- The expression that filters compare. Index and query must have the same.
{schema}.facet(payload, {path})

-- name: table_bytes
-- The size of a table with its partitions.
select (pg_relation_size({table_name}::regclass)
        + coalesce((select sum(pg_relation_size(relid)) from pg_partition_tree({table_name}::regclass)), 0))::bigint

-- name: create_small_index
-- Makes an index in the caller's transaction. Writers wait meanwhile, so for a large table it is left to a concurrent build.
begin
    if exists (select from pg_index where indexrelid = to_regclass({index_name}) and indrelid = {table_name}::regclass and indisvalid) then
        return;
    end if;
    if ({bytes}) > {small} then
        raise exception using errcode = 'object_not_in_prerequisite_state',
            message = 'index ' || {index_name} || ' would have to be built in this transaction, and writers of '
                || {table_name} || ' would wait: run `aftercommit migrate up`, which builds it without blocking them, and then this again';
    end if;
    if exists (select from pg_index where indexrelid = to_regclass({index_name}) and indrelid = {table_name}::regclass) then
        drop index {schema}.{index};
    end if;
    {creation};
end

-- name: index_is_valid
-- Whether an index is valid; no row if it does not exist.
select indisvalid from pg_index where indexrelid = to_regclass({index_name})

-- name: wait_for_builders
-- The lock of concurrent index builds. It must be the first statement of its transaction: a builder would wait for one with an older
-- snapshot.
lock table {schema}.{table} in share update exclusive mode

-- name: drop_invalid_index
-- An index that a failed concurrent build has left behind. While we hold the builders' lock, an invalid index is dead, unless its builder
-- is about to commit: PostgreSQL releases the table just before that. The second look at the index, after the locks, sees such a commit.
begin
    if exists (
        select from pg_index join pg_locks writer on writer.transactionid = pg_index.xmax and writer.granted
        where indexrelid = to_regclass({index_name}) and not indisvalid
    ) then
        raise lock_not_available using message = 'the build of index ' || {index_name} || ' is about to be committed';
    end if;
    if exists (select from pg_index where indexrelid = to_regclass({index_name}) and not indisvalid) then
        drop index {schema}.{index};
    end if;
end

-- name: partitions_without_index
-- Partitions whose part of an index is not attached yet. The highest comes last: the index becomes valid with it, and retention does not
-- drop that partition.
select child.relname::text
from pg_inherits link
join pg_class child on child.oid = link.inhrelid
where link.inhparent = {table_name}::regclass and not link.inhdetachpending
  and not exists (
      select from pg_inherits attached
      join pg_index part on part.indexrelid = attached.inhrelid
      where attached.inhparent = {index_name}::regclass and part.indrelid = child.oid
  )
order by length(child.relname), child.relname

-- name: attach_index
-- Attaches the index of a partition to the index of the whole table.
alter index {schema}.{index} attach partition {schema}.{partition_index}

-- name: relation_kind
-- The kind of a relation: r for a table, p for a partitioned one.
select relkind::text from pg_class where oid = {relation}::regclass
