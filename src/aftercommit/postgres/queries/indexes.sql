-- name: index_log_scope
-- Readers of one scope walk the log by position.
create index {concurrently} {index} on {only} {schema}.{table} ({column}, position)

-- name: index_outbox_column
-- Pending events are found by this column too; each such index costs every publish a little, so it is declared.
create index {concurrently} {index} on {only} {schema}.{table} ({column}, created_at)

-- name: index_outbox_age
-- Pending events oldest first, as documents that poll the outbox by created_at ask for them.
create index {concurrently} {index} on {only} {schema}.{table} ({column}) where status = 'pending'

-- name: index_log_facet_stream
-- Events of a stream with one value in their payload, in the stream's order.
create index {concurrently} {index} on {only} {schema}.{table} (aggregate_id, ({value}), stream_seq)
where aggregate_type = {of} and stream_seq is not null

-- name: index_log_facet_scope
-- The same within a scope.
create index {concurrently} {index} on {only} {schema}.{table} ({of}, ({value}), position)

-- name: index_log_facet_everything
-- The same in the whole log.
create index {concurrently} {index} on {only} {schema}.{table} (({value}), position)

-- name: facet_value
-- What a filter compares. Index and query must say the same.
{schema}.facet(payload, {path})

-- name: table_bytes
-- The size of a table with its partitions.
select (pg_relation_size({table_name}::regclass)
        + coalesce((select sum(pg_relation_size(relid)) from pg_partition_tree({table_name}::regclass)), 0))::bigint

-- name: create_small_index
-- An index within somebody's transaction. Writers wait meanwhile, so on a large table it is left to those who can build it otherwise.
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
-- Whether an index can be used; no row when there is none.
select indisvalid from pg_index where indexrelid = to_regclass({index_name})

-- name: wait_for_builders
-- Whoever builds an index concurrently holds this same lock. The first statement of its transaction: one that has looked at
-- anything already would be waited for by the builder in turn.
lock table {schema}.{table} in share update exclusive mode

-- name: drop_invalid_index
-- What a concurrent build has left behind. With the lock of builders in hand an invalid index is a dead one, unless somebody
-- is about to commit its validity: PostgreSQL lets go of the table just before. Who has committed when the locks are looked
-- at is seen by the second look at the index.
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
-- Partitions whose part of an index is not attached yet. The highest comes last: the index is whole with the last attached,
-- and retention never takes that one away.
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
-- The index of a partition becomes a part of the whole.
alter index {schema}.{index} attach partition {schema}.{partition_index}

-- name: relation_kind
-- What a relation is: r a table, p a partitioned one.
select relkind::text from pg_class where oid = {relation}::regclass
