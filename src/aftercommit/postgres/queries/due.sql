-- name: due_columns
-- What it takes to append an event that is due.
o.seq, o.lane, o.id, o.event_type, o.retry_count, o.created_at, o.ctid as place

-- name: loaded_columns
-- The whole event, and how many bytes it has when it is sent. For a compressed value, pg_column_size is the compressed size. (A leading
-- underscore, because no scope column has such a name.)
o.*, case when pg_column_compression(payload) is null then pg_column_size(payload)
          else octet_length(payload::text) end {audience_bytes} as _bytes

-- name: due_fresh
-- Committed events of these lanes that were never tried, in the order of seq. Locks nothing.
select {due_columns}
from {schema}.outbox o
where o.status = 'pending' and o.next_retry_at is null
  and o.seq > %(watermark)s and o.lane = any(%(lanes)s)
order by o.seq
limit %(limit)s

-- name: due_fresh_strict
-- The same for strict ordering: skips aggregates with an event that failed or waits for its retry.
select {due_columns}
from {schema}.outbox o
where o.status = 'pending' and o.next_retry_at is null
  and o.seq > %(watermark)s and o.lane = any(%(lanes)s)
  and not exists (
      select from {schema}.outbox held
      where held.aggregate_type = o.aggregate_type and held.aggregate_id = o.aggregate_id and held.seq < o.seq
        and (held.status = 'failed' or held.next_retry_at is not null)
  )
order by o.seq
limit %(limit)s

-- name: due_retries
-- Events whose retry is due, longest due first.
select {due_columns}
from {schema}.outbox o
where o.status = 'pending' and o.next_retry_at <= statement_timestamp() and o.lane = any(%(lanes)s)
order by o.next_retry_at
limit %(limit)s

-- name: due_retries_strict
-- The same for strict ordering: only the first held event of an aggregate may go.
select {due_columns}
from {schema}.outbox o
where o.status = 'pending' and o.next_retry_at <= statement_timestamp() and o.lane = any(%(lanes)s)
  and not exists (
      select from {schema}.outbox held
      where held.aggregate_type = o.aggregate_type and held.aggregate_id = o.aggregate_id and held.seq < o.seq
        and (held.status = 'failed' or held.next_retry_at is not null)
  )
order by o.next_retry_at
limit %(limit)s

-- name: load_due
-- Envelopes and payloads of due events, for transports that carry them; cuts a batch of large payloads before it is loaded.
select id, event_type, schema_version, aggregate_type, aggregate_id, occurred_at, correlation_id, causation_id, payload,
       created_at, seq, lane, retry_count {scope_names}
from (
    select due.*, sum(_bytes) over (order by seq rows between unbounded preceding and 1 preceding) as _bytes_before
    from ({due}) due
) sized
where coalesce(_bytes_before, 0) < %(max_bytes)s
order by seq

-- name: look
-- Whether an untried event of these lanes is due, and seconds until a retry is. Locks nothing: this is what an idle carrier asks.
select exists ({due}), ({retry})

-- name: next_retry
-- Seconds until the next retry of these lanes is due.
select extract(epoch from min(o.next_retry_at) - clock_timestamp())::float8
from {schema}.outbox o
where o.status = 'pending' and o.next_retry_at is not null and o.lane = any(%(lanes)s)

-- name: next_retry_strict
-- The same for strict ordering: an event behind another one of its aggregate cannot go, even if it is due.
select extract(epoch from min(o.next_retry_at) - clock_timestamp())::float8
from {schema}.outbox o
where o.status = 'pending' and o.next_retry_at is not null and o.lane = any(%(lanes)s)
  and not exists (
      select from {schema}.outbox held
      where held.aggregate_type = o.aggregate_type and held.aggregate_id = o.aggregate_id and held.seq < o.seq
        and (held.status = 'failed' or held.next_retry_at is not null)
  )
