-- name: returning_event
-- If they are few, the append returns the events, in the order of `read_log`: consumers in this process need not read them.
log.id, log.event_type, log.schema_version, log.aggregate_type, log.aggregate_id, log.occurred_at, log.correlation_id, log.causation_id,
log.payload, log.created_at, log.seq, log.position {log_scope}

-- name: few_bytes
-- The size of their payloads: large ones are not returned.
, sum(pg_column_size(payload)) as bytes

-- name: handed
-- One event in each row.
left join appended event on true
order by event.position

-- name: handed_columns
-- The server, and whether the payloads are small. The event comes last.
, pg_catalog.pg_postmaster_start_time(), (select bytes from total) <= %(few_bytes)s,
event.id, event.event_type, event.schema_version, event.aggregate_type, event.aggregate_id, event.occurred_at, event.correlation_id,
event.causation_id, case when (select bytes from total) <= %(few_bytes)s then event.payload end, event.created_at, event.seq,
event.position {handed_scope}

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
