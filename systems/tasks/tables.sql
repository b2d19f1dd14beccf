-- The system's own tables. Safe to repeat: `aftercommit up` runs this at every start.
select pg_advisory_xact_lock(hashtext('tasks'));

create schema if not exists tasks;

create table if not exists tasks.users (
    user_id bigint not null,
    name varchar(100) not null,
    constraint users_pkey primary key (user_id),
    constraint users_id_is_positive check (user_id > 0)
);

create table if not exists tasks.roles (
    role_id bigint not null,
    name varchar(100) not null,
    constraint roles_pkey primary key (role_id),
    constraint roles_id_is_positive check (role_id > 0)
);

-- Members of role 1 are administrators: they assign roles.
insert into tasks.roles (role_id, name) values (1, 'administrator') on conflict do nothing;

-- A transaction that publishes locks the rows it has read here (for share), so that removing a member waits for it, and
-- later publishers wait for the removal.
create table if not exists tasks.members (
    role_id bigint not null,
    user_id bigint not null,
    constraint members_pkey primary key (role_id, user_id),
    constraint members_role_fkey foreign key (role_id) references tasks.roles,
    constraint members_user_fkey foreign key (user_id) references tasks.users
);
create index if not exists members_by_user on tasks.members (user_id, role_id);

create table if not exists tasks.tasks (
    task_id bigint generated always as identity,
    title varchar(200) not null,
    description varchar(10000) not null default '',
    state varchar(20) not null,
    creator_user_id bigint not null,
    assignee_user_id bigint,
    report varchar(10000),
    created_at timestamptz not null default clock_timestamp(),
    updated_at timestamptz not null default clock_timestamp(),
    version integer not null default 1,
    -- The request's Idempotency-Key and a digest of its body, so that a repeated request creates one task.
    creation_key varchar(200),
    creation_digest bytea,
    constraint tasks_pkey primary key (task_id),
    constraint tasks_creator_fkey foreign key (creator_user_id) references tasks.users,
    constraint tasks_assignee_fkey foreign key (assignee_user_id) references tasks.users,
    constraint tasks_creation_key_is_used_once unique (creator_user_id, creation_key),
    constraint tasks_creation_key_has_digest check ((creation_key is null) = (creation_digest is null)),
    constraint tasks_state_is_known check (
        state in ('new', 'assigned', 'reported', 'rejected', 'approved', 'cancelled')
    ),
    constraint tasks_assignee_fits_state check (
        case state when 'new' then assignee_user_id is null when 'cancelled' then true else assignee_user_id is not null end
    ),
    constraint tasks_report_fits_state check (
        case when state in ('reported', 'rejected', 'approved') then report is not null
             when state in ('new', 'assigned') then report is null else true end
    )
);
create index if not exists tasks_by_creator on tasks.tasks (creator_user_id, task_id);
create index if not exists tasks_by_assignee on tasks.tasks (assignee_user_id, task_id);

create table if not exists tasks.supervisors (
    task_id bigint not null,
    role_id bigint not null,
    constraint supervisors_pkey primary key (task_id, role_id),
    constraint supervisors_task_fkey foreign key (task_id) references tasks.tasks,
    constraint supervisors_role_fkey foreign key (role_id) references tasks.roles
);
create index if not exists supervisors_by_role on tasks.supervisors (role_id, task_id);

-- The history of a task: one row for each version, which is also one row for each event.
create table if not exists tasks.history (
    task_id bigint not null,
    version integer not null,
    action varchar(20) not null,
    from_state varchar(20),
    to_state varchar(20) not null,
    actor_user_id bigint not null,
    actor_role_id bigint,
    assignee_user_id bigint,
    note varchar(10000),
    at timestamptz not null,
    event_id uuid not null,
    constraint history_pkey primary key (task_id, version),
    constraint history_event_is_told_once unique (event_id),
    constraint history_task_fkey foreign key (task_id) references tasks.tasks,
    constraint history_actor_fkey foreign key (actor_user_id) references tasks.users
);

-- For databases that were created before this column existed.
alter table tasks.history add column if not exists assignee_user_id bigint;

-- Codes that link a chat to a user: one for each user, deleted when used. Only a hash is stored.
create table if not exists tasks.link_codes (
    user_id bigint not null,
    code_hash bytea not null,
    expires_at timestamptz not null,
    constraint link_codes_pkey primary key (user_id),
    constraint link_codes_hash_is_unique unique (code_hash),
    constraint link_codes_user_fkey foreign key (user_id) references tasks.users
);
