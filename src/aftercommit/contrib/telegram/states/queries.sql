-- Every statement of the bot's state, for SQLite and PostgreSQL alike. Parameters are :named.

-- name: links
select {link_columns} from {schema}.link order by linked_at, chat_id

-- name: link
select {link_columns} from {schema}.link where chat_id = :chat_id

-- Whoever is linked again as the same user goes on where they were.
-- name: put_link
insert into {schema}.link as link ({link_columns})
values (:chat_id, :user_id, :name, :language, :place, :linked_at, :muted_until, :passed, :unreachable,
    :unreachable_at, :code_hash, :topic)
on conflict (chat_id) do update set
    place = case when link.user_id = excluded.user_id then link.place else excluded.place end,
    linked_at = case when link.user_id = excluded.user_id then link.linked_at else excluded.linked_at end,
    muted_until = case when link.user_id = excluded.user_id then link.muted_until else excluded.muted_until end,
    passed = case when link.user_id = excluded.user_id then link.passed else excluded.passed end,
    user_id = excluded.user_id, name = excluded.name, language = excluded.language,
    unreachable = excluded.unreachable, unreachable_at = excluded.unreachable_at, code_hash = excluded.code_hash,
    topic = excluded.topic

-- name: unlink
delete from {schema}.link where chat_id = :chat_id returning chat_id

-- name: move
update {schema}.link set place = :place
where chat_id = :chat_id and user_id = :user_id and linked_at = :linked_at and coalesce(place, '') = :was

-- name: reached
update {schema}.link set unreachable = null, unreachable_at = null
where chat_id = :chat_id and unreachable is not null

-- name: lost
update {schema}.link set unreachable = :reason, unreachable_at = coalesce(unreachable_at, :at) where chat_id = :chat_id

-- name: count_passed
update {schema}.link set place = :place, passed = passed + 1
where chat_id = :chat_id and user_id = :user_id and linked_at = :linked_at and coalesce(place, '') = :was

-- Others may have passed while this was told.
-- name: told_passed
update {schema}.link set passed = case when passed > :passed then passed - :passed else 0 end
where chat_id = :chat_id and user_id = :user_id and linked_at = :linked_at

-- name: mute
update {schema}.link set muted_until = :until where chat_id = :chat_id

-- name: speak
update {schema}.link set language = :language where chat_id = :chat_id

-- The supergroup may have been linked by itself meanwhile: then that link counts.
-- name: renumber
update {schema}.link set chat_id = :new_chat_id
where chat_id = :chat_id and not exists (select 1 from {schema}.link where chat_id = :new_chat_id)

-- Both numbers may have been linked for a while, and the same event set aside for both.
-- name: forget_double_failures
delete from {schema}.failure where chat_id = :chat_id and exists (
    select 1 from {schema}.failure other
    where other.chat_id = :new_chat_id and other.user_id = failure.user_id
        and other.place = failure.place and other.kind = failure.kind
)

-- name: renumber_failures
update {schema}.failure set chat_id = :new_chat_id where chat_id = :chat_id

-- name: put_failure
insert into {schema}.failure (chat_id, user_id, place, event_id, event_type, kind, reason, at)
values (:chat_id, :user_id, :place, :event_id, :event_type, :kind, :reason, :at)
on conflict (chat_id, user_id, place, kind) do update set reason = excluded.reason, at = excluded.at

-- name: failures
select chat_id, user_id, place, event_id, event_type, kind, reason, at
from {schema}.failure
where (cast(:chat_id as bigint) is null or chat_id = :chat_id)
    and (cast(:user_id as text) is null or user_id = :user_id)
order by at desc, place desc
limit :limit

-- name: count_failures
select count(*) from {schema}.failure
where (cast(:chat_id as bigint) is null or chat_id = :chat_id)
    and (cast(:user_id as text) is null or user_id = :user_id)
    and (cast(:since as text) is null or at >= :since)

-- name: forget_failures
delete from {schema}.failure where at < :before returning chat_id

-- name: end_codes_of_user
delete from {schema}.code where user_id = :user_id or expires_at < :now

-- name: put_code
insert into {schema}.code (hash, user_id, name, expires_at) values (:hash, :user_id, :name, :expires_at)
on conflict (hash) do update set
    user_id = excluded.user_id, name = excluded.name, expires_at = excluded.expires_at, taken_by = null

-- Not deleted: whoever does not know whether this was committed asks again under the same name, and gets it.
-- name: take_code
update {schema}.code set taken_by = :taker where hash = :hash and (taken_by is null or taken_by = :taker)
returning user_id, name, expires_at

-- name: progress
select value from {schema}.progress where name = :name

-- name: save_progress
insert into {schema}.progress (name, value) values (:name, :value)
on conflict (name) do update set value = excluded.value

-- name: trouble
select said from {schema}.trouble order by name

-- name: note_trouble
insert into {schema}.trouble (name, said) values (:name, :said) on conflict (name) do update set said = excluded.said

-- name: end_trouble
delete from {schema}.trouble where name = :name returning name
