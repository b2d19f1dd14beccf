-- name: handed
-- A few small events are returned as well, one in each row: consumers in this process need not read them.
left join (
    select moved.id, moved.event_type, moved.schema_version, moved.aggregate_type, moved.aggregate_id, moved.occurred_at,
           moved.correlation_id, moved.causation_id, moved.payload, moved.created_at, moved.seq, {place} as position {moved_scope}
    from moved
    where case when (select moved from total) <= %(few)s
               then (select sum(pg_column_size(payload)) from moved) <= %(few_bytes)s else false end
) event on true
order by event.position

-- name: handed_columns
-- The server, and the event in the order of `read_log`.
, pg_catalog.pg_postmaster_start_time(), event.*

-- name: server_started
-- Tells servers apart.
select pg_catalog.pg_postmaster_start_time()

-- name: read_news
-- The next events for consumers that have all come to this position. Nothing if one of them was taken over, paused or moved: then
-- `consumer_status` says what there is to do.
select page.* from ({read_log_cut}) page
where not exists (
          select from {schema}.consumer
          where name = any(%(checkpoints)s::text[]) and (token is distinct from %(token)s or paused or position <> %(after)s)
      )
order by page.position
