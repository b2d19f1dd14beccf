-- name: which_events
-- The conditions of a selection for an event, in any table; null matches everything.
(%(event_ids)s::uuid[] is null or {event_id} = any(%(event_ids)s::uuid[]))
and (%(types)s::text[] is null or event.event_type = any(%(types)s::text[]))
and (%(aggregate_type)s::text is null or event.aggregate_type = %(aggregate_type)s::text)
and (%(aggregate_id)s::text is null or event.aggregate_id = %(aggregate_id)s::text)
and (%(correlation_id)s::text is null or event.correlation_id = %(correlation_id)s::text)
and (%(since)s::timestamptz is null or event.created_at >= %(since)s::timestamptz)
and (%(until)s::timestamptz is null or event.created_at < %(until)s::timestamptz)
and (%(from_position)s::bigint is null or {position} >= %(from_position)s::bigint)
and (%(to_position)s::bigint is null or {position} <= %(to_position)s::bigint)
{scope} {where}

-- name: which_payload
-- A value in the payload. Without a backslash, the text has the value as it is: that is cheaper to see than to read the JSON.
and (strpos(event.payload::text, {value}) > 0 or strpos(event.payload::text, '\') > 0) and {schema}.facet(event.payload, {path}) = {value}

-- name: which_letters
-- The same for dead letters, which also have an owner, an error and a status.
{events}
and (%(consumer)s::text is null or event.consumer_name = %(consumer)s::text)
and (%(error_class)s::text is null or event.error_class = %(error_class)s::text)
and (%(error)s::text is null or position(%(error)s::text in event.error) > 0)
and (%(statuses)s::text[] is null or event.status = any(%(statuses)s::text[]))

-- name: show_letters
-- Everything about the letters of one event; the only query that returns a payload.
select letter.event_id, letter.consumer_name, letter.status, letter.event_type, letter.aggregate_type, letter.aggregate_id, letter.position,
       letter.error, letter.error_class, letter.attempts, letter.first_seen_at, letter.last_seen_at, letter.next_retry_at,
       jsonb_array_length(letter.history), letter.schema_version, letter.occurred_at, letter.created_at, letter.correlation_id, letter.causation_id,
       letter.payload::text, letter.history,
       (select outbox.status from {schema}.outbox where outbox.id = letter.event_id),
       coalesce((select array_agg(log.position order by log.position) from {schema}.log where log.id = letter.event_id), '{{}}')
       {letter_scope}
from {schema}.dead_letter_events letter
where letter.event_id = %(event_id)s and (%(consumer)s::text is null or letter.consumer_name = %(consumer)s::text)
order by letter.consumer_name

-- name: operations_on_event
-- What operators did to one event, in order.
select operation.id, operation.kind, operation.requested_by, operation.reason, operation.created_at, item.state, item.note,
       operation.detail ->> 'former_payload'
from {schema}.operation_event item
join {schema}.operation on operation.id = item.operation_id
where item.event_id = %(event_id)s
order by operation.created_at, operation.id

-- name: find_rows
-- Those of these events that are in the outbox.
select id from {schema}.outbox where id = any(%(ids)s::uuid[])

-- name: lock_rows
-- Locks rows of the outbox before their letters, as the relay does. Skips a row that the relay is settling right now.
select id, status from {schema}.outbox where id = any(%(ids)s::uuid[]) order by id for update skip locked

-- name: find_letters
-- The letters of an action.
select event.event_id, event.consumer_name, event.seq, event.position, event.status
from {letters}
where {which}
limit %(most)s

-- name: lock_letters
-- The same, locked. Skips a letter that a worker has locked: its handler may take long.
select event.event_id, event.consumer_name, event.seq, event.position, event.status
from {schema}.dead_letter_events event
where {which}
order by event.event_id, event.consumer_name
for update skip locked

-- name: retry_letters
-- Makes letters of log consumers due at once, in the given order and with all their attempts; attempts made before stay counted.
update {schema}.dead_letter_events letter
set status = 'retrying', attempts_before = letter.attempts, next_retry_at = statement_timestamp() + chosen.ordinal * interval '1 microsecond'
from unnest(%(ids)s::uuid[], %(consumers)s::text[]) with ordinality as chosen (event_id, consumer_name, ordinal)
where letter.event_id = chosen.event_id and letter.consumer_name = chosen.consumer_name

-- name: redeliver
-- Sends events again in the given order, with all their attempts: a failed row of the outbox becomes pending, an event that has left the
-- outbox is inserted with the same id. A row with a retry time is found below any watermark, and it tells the relay that there may be a
-- letter to resolve. A published event goes as the log has it, after everything published since. One that never was (its delivery was
-- discarded) goes as its letter has it, in its old place, so that its aggregate keeps the order of publishing, unless later events have
-- gone ahead.
with chosen as (
    select event_id, statement_timestamp() + ordinal * interval '1 microsecond' as due
    from unnest(%(ids)s::uuid[]) with ordinality as chosen (event_id, ordinal)
),
sent as (
    update {schema}.outbox
    set status = 'pending', retry_count = 0, next_retry_at = chosen.due
    from chosen
    where outbox.id = chosen.event_id and (outbox.status = 'failed' or outbox.next_retry_at is not null)
    returning outbox.id, outbox.next_retry_at
),
published as (
    insert into {schema}.outbox (
        id, event_type, schema_version, aggregate_type, aggregate_id, occurred_at, correlation_id, causation_id, payload, next_retry_at {scope_names}
    )
    select event.id, event.event_type, event.schema_version, event.aggregate_type, event.aggregate_id, event.occurred_at,
           event.correlation_id, event.causation_id, event.payload, chosen.due {event_scope}
    from chosen
    cross join lateral (select * from {schema}.log where log.id = chosen.event_id order by log.position limit 1) event
    where not exists (select from {schema}.outbox where outbox.id = chosen.event_id)
    order by chosen.due
    on conflict (id) do nothing
    returning id, next_retry_at
),
never_published as (
    insert into {schema}.outbox (
        id, seq, event_type, schema_version, aggregate_type, aggregate_id, occurred_at, correlation_id, causation_id, payload,
        created_at, next_retry_at {scope_names}
    )
    overriding system value
    select event.event_id, event.seq, event.event_type, event.schema_version, event.aggregate_type, event.aggregate_id, event.occurred_at,
           event.correlation_id, event.causation_id, event.payload, event.created_at, chosen.due {event_scope}
    from chosen
    join {schema}.dead_letter_events event
        on event.event_id = chosen.event_id and event.consumer_name = '@relay' and event.status <> 'resolved'
    where not exists (select from {schema}.outbox where outbox.id = chosen.event_id)
      and not exists (select from {schema}.log where log.id = chosen.event_id)
    on conflict (id) do nothing
    returning id, next_retry_at
),
going as (
    select * from sent union all select * from published union all select * from never_published
),
mine as (
    select letter.event_id, letter.consumer_name, going.next_retry_at
    from going
    join {schema}.dead_letter_events letter on letter.event_id = going.id
    where letter.position is null and letter.status in ('parked', 'retrying')
    order by letter.event_id, letter.consumer_name
    for update of letter
),
letters as (
    update {schema}.dead_letter_events letter
    set status = 'retrying', next_retry_at = mine.next_retry_at
    from mine
    where letter.event_id = mine.event_id and letter.consumer_name = mine.consumer_name
)
select id from going

-- name: reopen_letters
-- Reopens discarded letters: removes the inbox row that has spared a consumer the event.
with reopened as (
    update {schema}.dead_letter_events letter
    set status = 'parked', spared = false
    from unnest(%(ids)s::uuid[], %(consumers)s::text[]) as chosen (event_id, consumer_name)
    join {schema}.dead_letter_events before on before.event_id = chosen.event_id and before.consumer_name = chosen.consumer_name
    where letter.event_id = chosen.event_id and letter.consumer_name = chosen.consumer_name and letter.status = 'discarded'
    returning letter.event_id, letter.consumer_name, before.spared
)
delete from {schema}.processed_events using reopened
where processed_events.event_id = reopened.event_id and processed_events.consumer_name = reopened.consumer_name and reopened.spared

-- name: resolve_delivered
-- A discarded delivery that was made since in another way: nothing is left to do.
update {schema}.dead_letter_events letter
set status = 'resolved'
where letter.event_id = any(%(ids)s::uuid[]) and letter.consumer_name = '@relay' and letter.status = 'discarded'
  and exists (select from {schema}.log where log.id = letter.event_id)
  and not exists (select from {schema}.outbox where outbox.id = letter.event_id)
returning letter.event_id

-- name: discard_letters
-- Discards letters: they are not tried again. They are kept as long as others that were last seen now. A consumer behind the bus gets an
-- inbox row for the event, so that the event can go on to the log; so does a consumer of the log whose checkpoint is still before the
-- event. A consumer that had handled it before, and was to handle it again, has its row back.
with chosen as (
    select chosen.event_id, chosen.consumer_name,
           (letter.position is null and letter.consumer_name <> '@relay')
               or (consumer.inbox and letter.position > consumer.position) as comes_by
    from unnest(%(ids)s::uuid[], %(consumers)s::text[]) as chosen (event_id, consumer_name)
    join {schema}.dead_letter_events letter on letter.event_id = chosen.event_id and letter.consumer_name = chosen.consumer_name
    left join {whole_consumers} consumer on consumer.name = letter.consumer_name
),
handled as (
    select chosen.event_id, chosen.consumer_name
    from chosen
    where exists (
        select from {schema}.operation_event item
        where item.event_id = chosen.event_id and item.consumer_name = chosen.consumer_name and item.was_handled
          and item.state in ('started', 'failed')
    )
),
inbox as (
    insert into {schema}.processed_events (event_id, consumer_name)
    select event_id, consumer_name from chosen where comes_by
    union
    select event_id, consumer_name from handled
    order by 1, 2
    on conflict do nothing
    returning event_id, consumer_name
)
update {schema}.dead_letter_events letter
set status = 'discarded', next_retry_at = null, last_seen_at = clock_timestamp(),
    spared = (letter.event_id, letter.consumer_name::text) in (select event_id, consumer_name::text from inbox)
from chosen
where letter.event_id = chosen.event_id and letter.consumer_name = chosen.consumer_name

-- name: without_open_letters
-- Those of these events that no consumer and no transport waits for any more, in the order of publishing.
select outbox.id
from {schema}.outbox
where outbox.id = any(%(ids)s::uuid[]) and outbox.status = 'failed'
  and not exists (
      select from {schema}.dead_letter_events letter
      where letter.event_id = outbox.id and letter.position is null and letter.status in ('retrying', 'waiting', 'parked')
  )
order by outbox.seq

-- name: remove_rows
-- A discarded delivery leaves the outbox; its letter keeps all of it. Only a failed row, because a pending one may be on its way, and only
-- if no consumer waits for it.
delete from {schema}.outbox
where id = any(%(ids)s::uuid[]) and status = 'failed'
  and not exists (
      select from {schema}.dead_letter_events letter
      where letter.event_id = outbox.id and letter.consumer_name <> '@relay' and letter.position is null
        and letter.status in ('retrying', 'waiting', 'parked')
  )
returning id

-- name: was_published
-- Whether an event was ever in the log. An event that has left the outbox was, unless its delivery was discarded. Null if unknown: a
-- discarded delivery may have been the second one, of an event that retention has dropped from the log since.
select case
    when exists (select from {schema}.log where log.id = letter.event_id) then true
    when exists (select from {schema}.outbox where outbox.id = letter.event_id) then false
    when not exists (
        select from {schema}.dead_letter_events delivery
        where delivery.event_id = letter.event_id and delivery.consumer_name = '@relay' and delivery.status <> 'resolved'
    ) then true
    when least(letter.created_at, letter.occurred_at) > dropped.until then false
end
from {schema}.dead_letter_events letter
cross join (
    select case when {schema}.given(head.gaps, 0, coalesce(first.position - 1, head.position)) = 0 then '-infinity'
                else coalesce(first.ts, head.ts) end as until
    from {schema}.head
    left join lateral (select log.position, log.ts from {schema}.log order by log.position limit 1) first on true
) dropped
where letter.event_id = %(event_id)s and letter.consumer_name = %(consumer)s

-- name: gone_events
-- Those of these events that were published and have left the log: there is nothing to deliver any more.
select chosen.event_id
from unnest(%(ids)s::uuid[]) as chosen (event_id)
where not exists (select from {schema}.outbox where outbox.id = chosen.event_id)
  and not exists (select from {schema}.log where log.id = chosen.event_id)
  and not exists (
      select from {schema}.dead_letter_events delivery
      where delivery.event_id = chosen.event_id and delivery.consumer_name = '@relay' and delivery.status <> 'resolved'
  )

-- name: edit_letter
-- Gives the letter another payload. The log does not change: a published event is corrected for this consumer only. If the event is not
-- published yet, all letters of its row are corrected with it.
update {schema}.dead_letter_events letter
set payload = %(payload)s::json
where letter.event_id = %(event_id)s
  and (letter.consumer_name = %(consumer)s or (%(before_publishing)s and letter.position is null))

-- name: edit_row
-- Corrects an event that is not published yet, in the outbox.
update {schema}.outbox set payload = %(payload)s::json where id = %(event_id)s

-- name: wake_everybody
-- Wakes workers and relays.
select pg_notify(%(log_channel)s, %(changed)s), pg_notify(%(publish_channel)s, '')

-- name: hold_horizons
-- Keeps retention from removing log and inbox rows while a checkpoint is moved.
select task from {schema}.upkeep where task in ('inbox', 'log') order by task for share

-- name: checkpoint_of
-- The checkpoint of a consumer, its worker, its event types, and whether it has an inbox.
select position, worker, string_to_array(declared_by, ' '), inbox from {whole_consumers} whole where name = %(consumer)s

-- name: hold_consumer
-- Locks the checkpoint, or those of all lanes, until the transaction ends. Running slices hold the rows, so this waits for them.
select from {schema}.consumer where split_part(name, '#', 1) = %(consumer)s order by name for update

-- name: ends_of_log
-- The checkpoint before the first event that is kept, and the one after the last.
select coalesce((select min(log.position) - 1 from {schema}.log), head.position), head.position from {schema}.head

-- name: position_before
-- The checkpoint after which everything was published at this time or later. The times of the log do not run backwards, so bisection finds it
-- in a few steps. Each step looks at the first event from the middle on, because there are gaps between two lives.
with recursive search as (
    select coalesce((select min(log.position) from {schema}.log), head.position + 1) as low, head.position + 1 as high
    from {schema}.head
    union all
    select case when probe.ts < %(moment)s then probe.position + 1 else search.low end,
           case when probe.ts < %(moment)s then search.high else middle.position end
    from search
    cross join lateral (select (search.low + search.high) / 2 as position) middle
    left join lateral (
        select log.position, log.ts from {schema}.log
        where log.position >= middle.position and log.position < search.high order by log.position limit 1
    ) probe on true
    where search.low < search.high
)
select low - 1 from search where low = high

-- name: events_between
-- What a consumer takes between two checkpoints: how many events, how many of them its inbox has, how many others have an open letter, and
-- for how many of the rest the inbox does not know any more.
select count(*), count(inbox.event_id),
       count(letter.event_id) filter (where inbox.event_id is null),
       count(*) filter (
           where inbox.event_id is null and letter.event_id is null and least(log.created_at, log.occurred_at) < horizon.moment
       )
from {schema}.log
cross join (select coalesce((select horizon from {schema}.upkeep where task = 'inbox'), '-infinity') as moment) horizon
left join {schema}.processed_events inbox on inbox.event_id = log.id and inbox.consumer_name = %(consumer)s
left join {schema}.dead_letter_events letter
  on letter.event_id = log.id and letter.consumer_name = %(consumer)s and letter.status in ('retrying', 'waiting', 'parked')
where log.position > %(low)s and log.position <= %(high)s
  and (%(taken)s::text[] is null or log.event_type = any(%(taken)s::text[]))

-- name: move_by_hand
-- Moves the checkpoint, or those of all lanes, and clears the lease: the former holder is fenced, and reads the new checkpoint when it takes
-- the lease again.
update {schema}.consumer
set position = %(position)s, worker = null, token = null, leased_until = null, lease_seconds = null, suspect_position = null, suspect_attempts = 0,
    updated_at = clock_timestamp()
where split_part(name, '#', 1) = %(consumer)s and (lanes = 1 or strpos(name, '#') > 0)
