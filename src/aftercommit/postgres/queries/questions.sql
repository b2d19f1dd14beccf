-- name: letters_by_line
-- Letters of each line (an owner and a status), last seen first, and no more of each than this.
unnest(%(owners)s::text[], %(line_statuses)s::text[]) as line (consumer_name, status)
cross join lateral (
    select letter.* from {schema}.dead_letter_events letter
    where letter.consumer_name = line.consumer_name and letter.status = line.status
    order by letter.last_seen_at desc, letter.event_id
    limit %(look)s
) event

-- name: all_letters
-- Letters that keys find, or all.
{schema}.dead_letter_events event

-- name: letter_lines
-- Every owner and status that letters have: one index step for each, however many letters there are.
with recursive line as (
    (select consumer_name, status from {schema}.dead_letter_events order by consumer_name, status limit 1)
    union all
    select following.consumer_name, following.status
    from line cross join lateral (
        select letter.consumer_name, letter.status from {schema}.dead_letter_events letter
        where (letter.consumer_name, letter.status) > (line.consumer_name, line.status)
        order by letter.consumer_name, letter.status
        limit 1
    ) following
)
select consumer_name::text, status::text from line

-- name: has_more_letters
-- Whether a line has more letters than were looked at.
select exists (
    select from unnest(%(owners)s::text[], %(line_statuses)s::text[]) as line (consumer_name, status)
    cross join lateral (
        select from {schema}.dead_letter_events letter
        where letter.consumer_name = line.consumer_name and letter.status = line.status
        order by letter.last_seen_at desc, letter.event_id
        offset %(look)s limit 1
    ) beyond
)

-- name: list_letters
-- Dead letters, last seen first, without their payloads.
select event.event_id, event.consumer_name, event.status, event.event_type, event.aggregate_type, event.aggregate_id, event.position,
       event.error, event.error_class, event.attempts, event.first_seen_at, event.last_seen_at, event.next_retry_at,
       jsonb_array_length(event.history)
from (
    select event.event_id, event.consumer_name
    from {letters}
    where {which}
    order by event.last_seen_at desc, event.event_id, event.consumer_name
    limit %(limit)s offset %(offset)s
) page
join {schema}.dead_letter_events event on event.event_id = page.event_id and event.consumer_name = page.consumer_name
order by event.last_seen_at desc, event.event_id, event.consumer_name

-- name: count_letters
-- How many letters match, up to a limit.
select count(*) from (select from {letters} where {which} limit %(most)s) counted

-- name: letter_groups
-- The groups of letters that have failed, by owner: one index step for each, however many letters there are.
with recursive known as (
    (
        select consumer_name, {schema}.error_group(error_class, error) as key, 1 as ordinal
        from {schema}.dead_letter_events
        where status in ('retrying', 'parked') and (%(consumer)s::text is null or consumer_name = %(consumer)s::text)
        order by consumer_name, {schema}.error_group(error_class, error)
        limit 1
    )
    union all
    select following.consumer_name, following.key, known.ordinal + 1
    from known cross join lateral (
        select letter.consumer_name, {schema}.error_group(letter.error_class, letter.error) as key
        from {schema}.dead_letter_events letter
        where letter.status in ('retrying', 'parked') and (%(consumer)s::text is null or letter.consumer_name = %(consumer)s::text)
          and (letter.consumer_name, {schema}.error_group(letter.error_class, letter.error)) > (known.consumer_name, known.key)
        order by letter.consumer_name, {schema}.error_group(letter.error_class, letter.error)
        limit 1
    ) following
    where known.ordinal < %(most)s
)
select consumer_name::text, key from known

-- name: count_groups
-- Each of these groups, counted up to a limit, beginning with the letter that was last seen.
select event.consumer_name, min(event.error_class), {schema}.error_pattern(min(event.error)), count(*),
       count(*) filter (where event.status = 'parked'), min(event.first_seen_at), max(event.last_seen_at),
       array_agg(distinct event.event_type::text), (array_agg(event.event_id order by event.last_seen_at desc, event.event_id))[1]
from unnest(%(owners)s::text[], %(keys)s::bigint[]) as chosen (consumer_name, key)
cross join lateral (
    select letter.* from {schema}.dead_letter_events letter
    where letter.status in ('retrying', 'parked') and letter.consumer_name = chosen.consumer_name
      and {schema}.error_group(letter.error_class, letter.error) = chosen.key
    order by letter.last_seen_at desc
    limit %(look)s
) event
group by event.consumer_name, chosen.key
order by count(*) desc, max(event.last_seen_at) desc
limit %(limit)s

-- name: group_letters
-- The same for letters that match further conditions.
select event.consumer_name, event.error_class, {schema}.error_pattern(event.error), count(*),
       count(*) filter (where event.status = 'parked'), min(event.first_seen_at), max(event.last_seen_at),
       array_agg(distinct event.event_type::text), (array_agg(event.event_id order by event.last_seen_at desc, event.event_id))[1]
from {letters}
where {which}
group by 1, 2, 3
order by count(*) desc, max(event.last_seen_at) desc
limit %(limit)s

-- name: chosen_letters
-- Selects dead letters: each goes to its owner, which is a consumer of the log or (as null) the relay; or all go to the transport. A relay's
-- letter can only go again while its event is in the outbox, or after the whole delivery was discarded.
select min(event.seq) as seq, event.event_id, owner.consumer_name, owner.position, count(*) as copies
from (
    select event.seq, event.event_id, event.consumer_name, event.position
    from {letters}
    where {which}
      and (%(to_transport)s or event.position is not null or event.status in ('retrying', 'parked') or event.consumer_name = '@relay')
    limit %(most)s
) event
cross join lateral (
    select case when event.position is not null and not %(to_transport)s then event.consumer_name end as consumer_name,
           case when not %(to_transport)s then event.position end as position
) owner
group by event.event_id, owner.consumer_name, owner.position

-- name: chosen_for_consumer
-- Selects events of the log for one consumer that follows it: those that it takes and has passed. It will read the others anyway.
select min(event.seq) as seq, event.id as event_id, %(target)s::text as consumer_name, min(event.position) as position, count(*) as copies
from (
    select event.seq, event.id, event.position
    from {schema}.log event
    where {which} and event.position <= %(checkpoint)s
      and (%(taken)s::text[] is null or event.event_type = any(%(taken)s::text[]))
    limit %(most)s
) event
group by event.id

-- name: chosen_for_transport
-- Selects events for the transport: those of the log, and those that failed on their way into it.
select min(event.seq) as seq, event.id as event_id, %(target)s::text as consumer_name, null::bigint as position, count(*) as copies
from (
    select event.seq, event.id
    from {schema}.log event
    where {which} and (%(taken)s::text[] is null or event.event_type = any(%(taken)s::text[]))
    limit %(most)s
) event
group by event.id
union all
select event.seq, event.id, %(target)s::text, null::bigint, 1
from {schema}.outbox event
where event.status = 'failed' and {which_rows} and (%(taken)s::text[] is null or event.event_type = any(%(taken)s::text[]))
  and not exists (select from {schema}.log where log.id = event.id)

-- name: preview_plan
-- A preview ends after some matches. PostgreSQL expects them anywhere in a table and would begin to read it from the start, but what an
-- operator asks for is often all in one place: the newest events, or those of one type.
select set_config('enable_seqscan', 'off', true)

-- name: preview_budget
-- Ends a preview for which the index of the log leaves too many events, as for a type that is neither rare nor frequent.
select set_config('statement_timeout', %(budget)s, true)

-- name: indexed_scopes
-- The scopes among these by which the log has an index.
select name
from unnest(%(names)s::text[]) name
join pg_index on indexrelid = to_regclass(format('%%I.%%I', %(schema)s::text, 'log_scope_' || name)) and indisvalid

-- name: edge_of_look
-- The position after the last event that is looked at, and the head of the log.
select (
    select event.position from {schema}.log event
    where {which} and event.position >= %(low)s
    order by event.position
    offset %(look)s limit 1
), head.position
from {schema}.head

-- name: preview
-- How many events a selection has, how many were handled already, for how many the inbox does not know any more, and their types. All
-- events are looked up together: the log has no index by id over all its partitions.
with chosen as materialized (
    {chosen}
),
horizon as (
    select coalesce((select horizon from {schema}.upkeep where task = 'inbox'), '-infinity') as moment
),
first_of_event as materialized (
    select distinct on (found.id) found.*
    from (
        select log.id, log.event_type, log.created_at, least(log.created_at, log.occurred_at) as since, true as in_log, log.seq
        from {schema}.log where log.id = any(array(select event_id from chosen))
        union all
        select known.event_id, known.event_type, known.created_at, least(known.created_at, known.occurred_at), false, known.seq
        from {schema}.dead_letter_events known where known.event_id = any(array(select event_id from chosen))
    ) found
    order by found.id, found.in_log desc, found.seq
),
item as materialized (
    select chosen.event_id, chosen.position, chosen.copies, event.created_at, coalesce(event.event_type, '?') as event_type,
           letter.status in ('retrying', 'waiting', 'parked') as is_open, inbox.event_id is not null and not {is_wanted_again} as is_handled,
           {is_past_horizon} as is_past_horizon
    from chosen
    cross join horizon
    {details}
    left join first_of_event event on event.id = chosen.event_id
),
frequent as (
    select item.event_type, count(*) as items from item group by 1 order by 2 desc, 1 limit 20
)
select count(*), count(distinct event_id), count(*) filter (where is_open), count(*) filter (where is_handled),
       count(*) filter (where is_past_horizon), (select moment from horizon where isfinite(moment)),
       min(position), max(position), min(created_at), max(created_at),
       (select coalesce(array_agg(type.event_type::text order by type.items desc, type.event_type), '{{}}') from frequent type),
       (select coalesce(array_agg(type.items order by type.items desc, type.event_type), '{{}}') from frequent type),
       sum(copies)::bigint
from item
