-- Feeds: the log is read stream by stream, and filters find events by values in their payloads.
-- A new function and an index: code that knows 0001 goes on working.
-- needs code: 0001

-- An index over the log is fed by every append, so this must not fail on any payload: json takes what text cannot hold (NUL and
-- halves of characters, which only SQL by hand can have put there), and an index entry has to fit on a page.
create function {schema}.facet(payload json, path text[]) returns text
language sql immutable parallel safe
return case
    when strpos(payload::text, '\u') = 0
      or regexp_replace(replace(payload::text, '\\', ''), '\\u[dD][89abAB]..\\u[dD][c-fC-F]', '', 'g') !~ '\\u(0000|[dD][89a-fA-F])'
    then left(payload #>> path, 255)
end;
comment on function {schema}.facet(json, text[]) is 'The text at a place in a payload, for filters of feeds; null where there is none that text can hold.';

-- concurrently: log_stream on log
create index {concurrently} {index} on {only} {schema}.{table} (aggregate_type, aggregate_id, stream_seq) include (event_type) where stream_seq is not null;
