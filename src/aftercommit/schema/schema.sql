-- Written by `make schema` from the migrations. Never executed; its diff is for reviewers.

-- Name: aftercommit; Type: SCHEMA; Schema: -; Owner: -

CREATE SCHEMA aftercommit;

-- Name: error_pattern(text); Type: FUNCTION; Schema: aftercommit; Owner: -

CREATE FUNCTION aftercommit.error_pattern(error text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN "left"(regexp_replace(split_part(error, '
'::text, 1), '[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}|[0-9]+'::text, '#'::text, 'g'::text), 200);

-- Name: FUNCTION error_pattern(error text); Type: COMMENT; Schema: aftercommit; Owner: -

COMMENT ON FUNCTION aftercommit.error_pattern(error text) IS 'The first line of an error. Numbers and ids belong to one event each, so # stands for them.';

-- Name: error_group(text, text); Type: FUNCTION; Schema: aftercommit; Owner: -

CREATE FUNCTION aftercommit.error_group(error_class text, error text) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN hashtextextended(((error_class || '
'::text) || aftercommit.error_pattern(error)), (0)::bigint);

-- Name: FUNCTION error_group(error_class text, error text); Type: COMMENT; Schema: aftercommit; Owner: -

COMMENT ON FUNCTION aftercommit.error_group(error_class text, error text) IS 'Which dead letters of an owner have the same error.';

-- Name: facet(json, text[]); Type: FUNCTION; Schema: aftercommit; Owner: -

CREATE FUNCTION aftercommit.facet(payload json, path text[]) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN ((strpos((payload)::text, '\u'::text) = 0) OR (regexp_replace(replace((payload)::text, '\\'::text, ''::text), '\\u[dD][89abAB]..\\u[dD][c-fC-F]'::text, ''::text, 'g'::text) !~ '\\u(0000|[dD][89a-fA-F])'::text)) THEN "left"((payload #>> path), 255) ELSE NULL::text END;

-- Name: FUNCTION facet(payload json, path text[]); Type: COMMENT; Schema: aftercommit; Owner: -

COMMENT ON FUNCTION aftercommit.facet(payload json, path text[]) IS 'The text at a place in a payload, for filters of feeds; null where there is none that text can hold.';

-- Name: given(int8multirange, bigint, bigint); Type: FUNCTION; Schema: aftercommit; Owner: -

CREATE FUNCTION aftercommit.given(gaps int8multirange, low bigint, high bigint) RETURNS bigint
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN (((GREATEST((high - low), (0)::bigint))::numeric - COALESCE((SELECT sum((upper(gap.gap) - lower(gap.gap))) AS sum FROM unnest((given.gaps * int8multirange(int8range((given.low + 1), (GREATEST(given.low, given.high) + 1))))) gap(gap)), (0)::numeric)))::bigint;

-- Name: FUNCTION given(gaps int8multirange, low bigint, high bigint); Type: COMMENT; Schema: aftercommit; Owner: -

COMMENT ON FUNCTION aftercommit.given(gaps int8multirange, low bigint, high bigint) IS 'How many numbers were given behind low and up to high: all but those in the gaps between two lives.';

-- Name: make_partitions(); Type: FUNCTION; Schema: aftercommit; Owner: -

CREATE FUNCTION aftercommit.make_partitions() RETURNS SETOF text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '5s'
    AS $$
-- The partition of the tip and the next ones, of the log and of the audience, where there is one: whether there is does not
-- depend on who asks. Each is made beside its table first: attaching takes a lock that neither writers nor readers notice,
-- while CREATE TABLE … PARTITION OF would wait for all of them.
declare
    table_name text;
    number bigint;
    parent text;
    partition_name text;
begin
    for table_name, number in
        select class.relname, head.position / 1000000 + step
        from "aftercommit".head, generate_series(0, 3 - 1) step, pg_class class
        where class.relnamespace = '"aftercommit"'::regnamespace and class.relkind = 'p' and class.relname in ('log', 'audience')
        order by step, class.relname
    loop
        parent := '"aftercommit"' || '.' || table_name;
        partition_name := table_name || '_' || lpad(number::text, greatest(6, length(number::text)), '0');
        continue when exists (select from pg_inherits join pg_class on pg_class.oid = inhrelid
                              where inhparent = parent::regclass and relname = partition_name);
        perform pg_advisory_xact_lock(1634104419, hashtext('aftercommit'));
        -- Somebody else may have made it while we waited.
        continue when exists (select from pg_inherits join pg_class on pg_class.oid = inhrelid
                              where inhparent = parent::regclass and relname = partition_name);
        execute 'create table ' || '"aftercommit"' || '.' || partition_name
            || ' (like ' || parent || ' including defaults including constraints)';
        execute 'alter table ' || parent || ' attach partition ' || '"aftercommit"' || '.' || partition_name
            || ' for values from (' || number * 1000000 + 1 || ') to (' || (number + 1) * 1000000 + 1 || ')';
        return next partition_name;
    end loop;
end
$$;

-- Name: FUNCTION make_partitions(); Type: COMMENT; Schema: aftercommit; Owner: -

COMMENT ON FUNCTION aftercommit.make_partitions() IS 'aftercommit:e9988072f28274d2';

-- Name: set_doorbell(); Type: FUNCTION; Schema: aftercommit; Owner: -

CREATE FUNCTION aftercommit.set_doorbell() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    doorbell regclass := quote_ident(tg_table_schema) || '.doorbell';
begin
    -- A heartbeat of a relay that sleeps. After a failover to a server that has the rows and not the sequence, it is set here.
    if tg_op = 'UPDATE' and old.listening = new.listening and pg_sequence_last_value(doorbell) is not null then
        return null;
    end if;
    -- One at a time, or a relay that stops listening could miss one that begins to.
    perform pg_advisory_xact_lock(hashtextextended('aftercommit doorbell', tg_relid::bigint));
    perform setval(doorbell, 1, exists (select from "aftercommit".relay where listening));
    return null;
end
$$;

-- Name: FUNCTION set_doorbell(); Type: COMMENT; Schema: aftercommit; Owner: -

COMMENT ON FUNCTION aftercommit.set_doorbell() IS 'Keeps the doorbell, with the rights of the owner: relays need none on the sequence.';

-- Name: consumer; Type: TABLE; Schema: aftercommit; Owner: -

CREATE TABLE aftercommit.consumer (
    name character varying(100) NOT NULL,
    "position" bigint NOT NULL,
    declared_by text NOT NULL,
    paused boolean DEFAULT false NOT NULL,
    worker text,
    token uuid,
    leased_until timestamp with time zone,
    suspect_position bigint,
    suspect_attempts integer DEFAULT 0 NOT NULL,
    updated_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    inbox boolean DEFAULT true NOT NULL,
    lease_seconds double precision,
    lanes smallint DEFAULT 1 NOT NULL,
    CONSTRAINT consumer_is_held_or_free CHECK ((((worker IS NULL) = (token IS NULL)) AND ((worker IS NULL) = (leased_until IS NULL)))),
    CONSTRAINT consumer_lanes_are_in_range CHECK (((lanes >= 1) AND (lanes <= 64))),
    CONSTRAINT consumer_position_is_not_negative CHECK (("position" >= 0)),
    CONSTRAINT consumer_suspect_is_counted CHECK (((suspect_position IS NULL) = (suspect_attempts = 0)))
)
WITH (fillfactor='50');

-- Name: TABLE consumer; Type: COMMENT; Schema: aftercommit; Owner: -

COMMENT ON TABLE aftercommit.consumer IS 'Checkpoint, lease and pause flag of every consumer of the log. A consumer that is divided into lanes has a row for each lane, named consumer#lane. Its own row is held for good, and its position is not used.';

-- Name: consumer_worker; Type: TABLE; Schema: aftercommit; Owner: -

CREATE TABLE aftercommit.consumer_worker (
    consumer_name character varying(100) NOT NULL,
    token uuid NOT NULL,
    worker text NOT NULL,
    leased_until timestamp with time zone NOT NULL,
    lease_seconds double precision NOT NULL,
    CONSTRAINT consumer_worker_lease_has_a_length CHECK ((lease_seconds > (0)::double precision))
)
WITH (fillfactor='50');

-- Name: TABLE consumer_worker; Type: COMMENT; Schema: aftercommit; Owner: -

COMMENT ON TABLE aftercommit.consumer_worker IS 'Live workers of divided consumers, which share the lanes evenly.';

-- Name: dead_letter_events; Type: TABLE; Schema: aftercommit; Owner: -

CREATE TABLE aftercommit.dead_letter_events (
    event_id uuid NOT NULL,
    consumer_name character varying(100) NOT NULL,
    status character varying(20) NOT NULL,
    event_type character varying(100) NOT NULL,
    schema_version smallint NOT NULL,
    aggregate_type character varying(50) NOT NULL,
    aggregate_id character varying(255) NOT NULL,
    occurred_at timestamp with time zone NOT NULL,
    correlation_id character varying(255) NOT NULL,
    causation_id uuid,
    payload json NOT NULL,
    seq bigint NOT NULL,
    "position" bigint,
    created_at timestamp with time zone NOT NULL,
    error text NOT NULL,
    error_class text NOT NULL,
    attempts integer NOT NULL,
    first_seen_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    last_seen_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    next_retry_at timestamp with time zone,
    history jsonb DEFAULT '[]'::jsonb NOT NULL,
    spared boolean DEFAULT false NOT NULL,
    attempts_before integer DEFAULT 0 NOT NULL,
    CONSTRAINT dead_letter_attempts_are_not_negative CHECK ((attempts >= 0)),
    CONSTRAINT dead_letter_history_is_a_list CHECK ((jsonb_typeof(history) = 'array'::text)),
    CONSTRAINT dead_letter_retry_has_a_time CHECK ((((status)::text = 'retrying'::text) = (next_retry_at IS NOT NULL))),
    CONSTRAINT dead_letter_status_is_known CHECK (((status)::text = ANY ((ARRAY['retrying'::character varying, 'waiting'::character varying, 'parked'::character varying, 'resolved'::character varying, 'discarded'::character varying])::text[])))
);

-- Name: TABLE dead_letter_events; Type: COMMENT; Schema: aftercommit; Owner: -

COMMENT ON TABLE aftercommit.dead_letter_events IS 'Events that a consumer (or, under the name @relay, a transport) could not take: retrying, waiting behind one that is, or parked.';

-- Name: doorbell; Type: SEQUENCE; Schema: aftercommit; Owner: -

CREATE SEQUENCE aftercommit.doorbell
    AS smallint
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;

-- Name: SEQUENCE doorbell; Type: COMMENT; Schema: aftercommit; Owner: -

COMMENT ON SEQUENCE aftercommit.doorbell IS 'Set while a relay is listening: then publishers ring (NOTIFY). A sequence, because that is read by one function call, past any snapshot.';

-- Name: log; Type: TABLE; Schema: aftercommit; Owner: -

CREATE TABLE aftercommit.log (
    "position" bigint NOT NULL,
    ts timestamp with time zone NOT NULL,
    stream_seq bigint,
    id uuid NOT NULL,
    seq bigint NOT NULL,
    lane smallint NOT NULL,
    aggregate_type character varying(50) NOT NULL,
    aggregate_id character varying(255) NOT NULL,
    event_type character varying(100) NOT NULL,
    schema_version smallint NOT NULL,
    occurred_at timestamp with time zone NOT NULL,
    correlation_id character varying(255) NOT NULL,
    causation_id uuid,
    payload json NOT NULL,
    retry_count integer NOT NULL,
    created_at timestamp with time zone NOT NULL,
    CONSTRAINT log_position_is_positive CHECK (("position" > 0))
)
PARTITION BY RANGE ("position");

-- Name: TABLE log; Type: COMMENT; Schema: aftercommit; Owner: -

COMMENT ON TABLE aftercommit.log IS 'What was published: gapless, immutable, totally ordered by position. Retention drops partitions and never deletes rows.';

-- Name: event_log; Type: VIEW; Schema: aftercommit; Owner: -

CREATE VIEW aftercommit.event_log AS
 SELECT "position",
    ts,
    id AS event_id,
    aggregate_type,
    aggregate_id,
    stream_seq,
    event_type,
    schema_version,
    occurred_at,
    correlation_id,
    causation_id,
    (payload)::jsonb AS payload,
    retry_count,
    created_at,
    ts AS published_at
   FROM aftercommit.log;

-- Name: VIEW event_log; Type: COMMENT; Schema: aftercommit; Owner: -

COMMENT ON VIEW aftercommit.event_log IS 'aftercommit:e7b48826c8c3c9cb';

-- Name: outbox; Type: TABLE; Schema: aftercommit; Owner: -

CREATE TABLE aftercommit.outbox (
    id uuid NOT NULL,
    seq bigint NOT NULL,
    lane smallint GENERATED ALWAYS AS (((hashtextextended((((aggregate_type)::text || '/'::text) || (aggregate_id)::text), (0)::bigint) & (63)::bigint))::smallint) STORED NOT NULL,
    aggregate_type character varying(50) NOT NULL,
    aggregate_id character varying(255) NOT NULL,
    event_type character varying(100) NOT NULL,
    schema_version smallint DEFAULT 1 NOT NULL,
    occurred_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    correlation_id character varying(255) NOT NULL,
    causation_id uuid,
    payload json NOT NULL,
    status character varying(20) DEFAULT 'pending'::character varying NOT NULL,
    retry_count integer DEFAULT 0 NOT NULL,
    next_retry_at timestamp with time zone,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    last_error text,
    CONSTRAINT outbox_failed_has_error_and_no_retry CHECK ((((status)::text <> 'failed'::text) OR ((next_retry_at IS NULL) AND (last_error IS NOT NULL) AND (retry_count > 0)))),
    CONSTRAINT outbox_names_are_not_empty CHECK ((((aggregate_type)::text <> ''::text) AND ((aggregate_id)::text <> ''::text) AND ((event_type)::text <> ''::text) AND ((correlation_id)::text <> ''::text))),
    CONSTRAINT outbox_occurred_at_is_readable CHECK (((occurred_at >= '0002-01-01 00:00:00+00'::timestamp with time zone) AND (occurred_at < '9999-01-01 00:00:00+00'::timestamp with time zone))),
    CONSTRAINT outbox_retry_count_is_not_negative CHECK ((retry_count >= 0)),
    CONSTRAINT outbox_schema_version_is_positive CHECK ((schema_version >= 1)),
    CONSTRAINT outbox_status_is_known CHECK (((status)::text = ANY ((ARRAY['pending'::character varying, 'failed'::character varying])::text[])))
)
WITH (autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_threshold='5000', autovacuum_vacuum_insert_scale_factor='0.2');

-- Name: TABLE outbox; Type: COMMENT; Schema: aftercommit; Owner: -

COMMENT ON TABLE aftercommit.outbox IS 'Committed events that are not in the log yet. seq is drawn by the INSERT, while the writer holds its aggregate''s lock.';

-- Name: event_outbox; Type: VIEW; Schema: aftercommit; Owner: -

CREATE VIEW aftercommit.event_outbox AS
 SELECT outbox.id,
    outbox.aggregate_type,
    outbox.aggregate_id,
    outbox.event_type,
    outbox.schema_version,
    outbox.occurred_at,
    outbox.correlation_id,
    outbox.causation_id,
    (outbox.payload)::jsonb AS payload,
    outbox.status,
    outbox.retry_count,
    outbox.next_retry_at,
    outbox.created_at,
    NULL::timestamp with time zone AS published_at,
    outbox.last_error,
    outbox.seq,
    NULL::bigint AS "position"
   FROM aftercommit.outbox
UNION ALL
 SELECT log.id,
    log.aggregate_type,
    log.aggregate_id,
    log.event_type,
    log.schema_version,
    log.occurred_at,
    log.correlation_id,
    log.causation_id,
    (log.payload)::jsonb AS payload,
    'published'::character varying(20) AS status,
    log.retry_count,
    NULL::timestamp with time zone AS next_retry_at,
    log.created_at,
    log.ts AS published_at,
    NULL::text AS last_error,
    log.seq,
    log."position"
   FROM aftercommit.log;

-- Name: VIEW event_outbox; Type: COMMENT; Schema: aftercommit; Owner: -

COMMENT ON VIEW aftercommit.event_outbox IS 'aftercommit:08597fd85780d775';

-- Name: head; Type: TABLE; Schema: aftercommit; Owner: -

CREATE TABLE aftercommit.head (
    only_row boolean DEFAULT true NOT NULL,
    "position" bigint DEFAULT 0 NOT NULL,
    ts timestamp with time zone DEFAULT now() NOT NULL,
    epoch uuid DEFAULT gen_random_uuid() NOT NULL,
    gaps int8multirange DEFAULT '{}'::int8multirange NOT NULL,
    server_started timestamp with time zone,
    CONSTRAINT head_gaps_are_behind_it CHECK ((isempty(gaps) OR (upper(gaps) <= ("position" + 1)))),
    CONSTRAINT head_is_one_row CHECK (only_row),
    CONSTRAINT head_position_is_not_negative CHECK (("position" >= 0))
)
WITH (fillfactor='10');

-- Name: TABLE head; Type: COMMENT; Schema: aftercommit; Owner: -

COMMENT ON TABLE aftercommit.head IS 'The tip of the log. Its row lock makes log order equal commit order. epoch changes on restore or failover.';

-- Name: COLUMN head.gaps; Type: COMMENT; Schema: aftercommit; Owner: -

COMMENT ON COLUMN aftercommit.head.gaps IS 'Positions that were never given: one range before each life but the first.';

-- Name: COLUMN head.server_started; Type: COMMENT; Schema: aftercommit; Owner: -

COMMENT ON COLUMN aftercommit.head.server_started IS 'When the server started that the present life is known to go on with. On any other the relay looks first.';

-- Name: lane; Type: TABLE; Schema: aftercommit; Owner: -

CREATE TABLE aftercommit.lane (
    lane smallint NOT NULL,
    relay uuid,
    token uuid,
    leased_until timestamp with time zone,
    lease_seconds double precision,
    CONSTRAINT lane_is_held_or_free CHECK ((((relay IS NULL) = (token IS NULL)) AND ((relay IS NULL) = (leased_until IS NULL)))),
    CONSTRAINT lane_is_in_range CHECK (((lane >= 0) AND (lane <= 63)))
)
WITH (fillfactor='50');

-- Name: TABLE lane; Type: COMMENT; Schema: aftercommit; Owner: -

COMMENT ON TABLE aftercommit.lane IS 'Who carries which events: aggregates hash to 64 lanes, a relay holds lanes, the token fences its writes. A lane is free when its own lease, which is long, or the lease of its relay has run out.';

-- Name: life; Type: TABLE; Schema: aftercommit; Owner: -

CREATE TABLE aftercommit.life (
    number integer NOT NULL,
    base bigint NOT NULL,
    previous_last bigint NOT NULL,
    began_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    epoch uuid NOT NULL,
    reason text NOT NULL,
    system_identifier bigint,
    timeline integer,
    database_oid oid,
    head_oid oid,
    CONSTRAINT life_begins_above_the_one_before CHECK (((number = 1) OR (base > previous_last))),
    CONSTRAINT life_is_numbered_from_one CHECK ((number >= 1))
);

-- Name: TABLE life; Type: COMMENT; Schema: aftercommit; Owner: -

COMMENT ON TABLE aftercommit.life IS 'Lives of the log. One begins with the first migration, and another after each restore, promotion or recovery: its first event has the position base + 1, above all that any life before can have given.';

-- Name: log_000000; Type: TABLE; Schema: aftercommit; Owner: -

CREATE TABLE aftercommit.log_000000 (
    "position" bigint CONSTRAINT log_position_not_null NOT NULL,
    ts timestamp with time zone CONSTRAINT log_ts_not_null NOT NULL,
    stream_seq bigint,
    id uuid CONSTRAINT log_id_not_null NOT NULL,
    seq bigint CONSTRAINT log_seq_not_null NOT NULL,
    lane smallint CONSTRAINT log_lane_not_null NOT NULL,
    aggregate_type character varying(50) CONSTRAINT log_aggregate_type_not_null NOT NULL,
    aggregate_id character varying(255) CONSTRAINT log_aggregate_id_not_null NOT NULL,
    event_type character varying(100) CONSTRAINT log_event_type_not_null NOT NULL,
    schema_version smallint CONSTRAINT log_schema_version_not_null NOT NULL,
    occurred_at timestamp with time zone CONSTRAINT log_occurred_at_not_null NOT NULL,
    correlation_id character varying(255) CONSTRAINT log_correlation_id_not_null NOT NULL,
    causation_id uuid,
    payload json CONSTRAINT log_payload_not_null NOT NULL,
    retry_count integer CONSTRAINT log_retry_count_not_null NOT NULL,
    created_at timestamp with time zone CONSTRAINT log_created_at_not_null NOT NULL,
    CONSTRAINT log_position_is_positive CHECK (("position" > 0))
);

-- Name: log_000001; Type: TABLE; Schema: aftercommit; Owner: -

CREATE TABLE aftercommit.log_000001 (
    "position" bigint CONSTRAINT log_position_not_null NOT NULL,
    ts timestamp with time zone CONSTRAINT log_ts_not_null NOT NULL,
    stream_seq bigint,
    id uuid CONSTRAINT log_id_not_null NOT NULL,
    seq bigint CONSTRAINT log_seq_not_null NOT NULL,
    lane smallint CONSTRAINT log_lane_not_null NOT NULL,
    aggregate_type character varying(50) CONSTRAINT log_aggregate_type_not_null NOT NULL,
    aggregate_id character varying(255) CONSTRAINT log_aggregate_id_not_null NOT NULL,
    event_type character varying(100) CONSTRAINT log_event_type_not_null NOT NULL,
    schema_version smallint CONSTRAINT log_schema_version_not_null NOT NULL,
    occurred_at timestamp with time zone CONSTRAINT log_occurred_at_not_null NOT NULL,
    correlation_id character varying(255) CONSTRAINT log_correlation_id_not_null NOT NULL,
    causation_id uuid,
    payload json CONSTRAINT log_payload_not_null NOT NULL,
    retry_count integer CONSTRAINT log_retry_count_not_null NOT NULL,
    created_at timestamp with time zone CONSTRAINT log_created_at_not_null NOT NULL,
    CONSTRAINT log_position_is_positive CHECK (("position" > 0))
);

-- Name: log_000002; Type: TABLE; Schema: aftercommit; Owner: -

CREATE TABLE aftercommit.log_000002 (
    "position" bigint CONSTRAINT log_position_not_null NOT NULL,
    ts timestamp with time zone CONSTRAINT log_ts_not_null NOT NULL,
    stream_seq bigint,
    id uuid CONSTRAINT log_id_not_null NOT NULL,
    seq bigint CONSTRAINT log_seq_not_null NOT NULL,
    lane smallint CONSTRAINT log_lane_not_null NOT NULL,
    aggregate_type character varying(50) CONSTRAINT log_aggregate_type_not_null NOT NULL,
    aggregate_id character varying(255) CONSTRAINT log_aggregate_id_not_null NOT NULL,
    event_type character varying(100) CONSTRAINT log_event_type_not_null NOT NULL,
    schema_version smallint CONSTRAINT log_schema_version_not_null NOT NULL,
    occurred_at timestamp with time zone CONSTRAINT log_occurred_at_not_null NOT NULL,
    correlation_id character varying(255) CONSTRAINT log_correlation_id_not_null NOT NULL,
    causation_id uuid,
    payload json CONSTRAINT log_payload_not_null NOT NULL,
    retry_count integer CONSTRAINT log_retry_count_not_null NOT NULL,
    created_at timestamp with time zone CONSTRAINT log_created_at_not_null NOT NULL,
    CONSTRAINT log_position_is_positive CHECK (("position" > 0))
);

-- Name: migration; Type: TABLE; Schema: aftercommit; Owner: -

CREATE TABLE aftercommit.migration (
    version integer NOT NULL,
    name text NOT NULL,
    checksum text NOT NULL,
    applied_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    needs_code integer
);

-- Name: TABLE migration; Type: COMMENT; Schema: aftercommit; Owner: -

COMMENT ON TABLE aftercommit.migration IS 'Which migrations this schema has had, and the checksum of each.';

-- Name: COLUMN migration.needs_code; Type: COMMENT; Schema: aftercommit; Owner: -

COMMENT ON COLUMN aftercommit.migration.needs_code IS 'Code that knows the migrations up to this one can work with the schema.';

-- Name: operation; Type: TABLE; Schema: aftercommit; Owner: -

CREATE TABLE aftercommit.operation (
    id uuid NOT NULL,
    kind character varying(20) NOT NULL,
    status character varying(20) DEFAULT 'running'::character varying NOT NULL,
    requested_by text NOT NULL,
    reason text DEFAULT ''::text NOT NULL,
    target text NOT NULL,
    selection jsonb NOT NULL,
    detail jsonb DEFAULT '{}'::jsonb NOT NULL,
    per_second double precision,
    total bigint DEFAULT 0 NOT NULL,
    done bigint DEFAULT 0 NOT NULL,
    skipped bigint DEFAULT 0 NOT NULL,
    failed bigint DEFAULT 0 NOT NULL,
    driver uuid,
    driven_until timestamp with time zone,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    finished_at timestamp with time zone,
    lease_seconds double precision,
    driven_by text,
    CONSTRAINT operation_ends_once CHECK (((finished_at IS NULL) = ((status)::text = ANY ((ARRAY['running'::character varying, 'aborting'::character varying])::text[])))),
    CONSTRAINT operation_is_driven_or_free CHECK (((driver IS NULL) = (driven_until IS NULL))),
    CONSTRAINT operation_kind_is_known CHECK (((kind)::text = ANY ((ARRAY['retry'::character varying, 'edit'::character varying, 'discard'::character varying, 'replay'::character varying, 'seek'::character varying])::text[]))),
    CONSTRAINT operation_rate_is_positive CHECK ((per_second > (0)::double precision)),
    CONSTRAINT operation_status_is_known CHECK (((status)::text = ANY ((ARRAY['running'::character varying, 'aborting'::character varying, 'aborted'::character varying, 'done'::character varying])::text[])))
);

-- Name: TABLE operation; Type: COMMENT; Schema: aftercommit; Owner: -

COMMENT ON TABLE aftercommit.operation IS 'What operators did to events: who, why, which selection, and how it went. A replay runs in the open and can be aborted.';

-- Name: operation_event; Type: TABLE; Schema: aftercommit; Owner: -

CREATE TABLE aftercommit.operation_event (
    operation_id uuid NOT NULL,
    ordinal bigint NOT NULL,
    event_id uuid NOT NULL,
    consumer_name character varying(100),
    "position" bigint,
    state character varying(20) DEFAULT 'waiting'::character varying NOT NULL,
    former_status character varying(20),
    former_letter character varying(20),
    former_attempts integer,
    was_handled boolean DEFAULT false NOT NULL,
    note text,
    CONSTRAINT operation_event_state_is_known CHECK (((state)::text = ANY ((ARRAY['waiting'::character varying, 'started'::character varying, 'done'::character varying, 'skipped'::character varying, 'failed'::character varying, 'aborted'::character varying])::text[])))
);

-- Name: TABLE operation_event; Type: COMMENT; Schema: aftercommit; Owner: -

COMMENT ON TABLE aftercommit.operation_event IS 'The frozen set of an operation, in the order in which it is gone through; what is needed to take a step back is kept beside it.';

-- Name: outbox_seq_seq; Type: SEQUENCE; Schema: aftercommit; Owner: -

ALTER TABLE aftercommit.outbox ALTER COLUMN seq ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME aftercommit.outbox_seq_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

-- Name: processed_events; Type: TABLE; Schema: aftercommit; Owner: -

CREATE TABLE aftercommit.processed_events (
    event_id uuid NOT NULL,
    consumer_name character varying(100) NOT NULL,
    processed_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

-- Name: TABLE processed_events; Type: COMMENT; Schema: aftercommit; Owner: -

COMMENT ON TABLE aftercommit.processed_events IS 'The inbox: written in the handler''s transaction, so that an event has its effects once per consumer.';

-- Name: published_key; Type: TABLE; Schema: aftercommit; Owner: -

CREATE TABLE aftercommit.published_key (
    key character varying(255) NOT NULL,
    scope text DEFAULT ''::text NOT NULL,
    fingerprint text DEFAULT ''::text NOT NULL,
    event_ids uuid[] NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT published_key_names_events CHECK ((cardinality(event_ids) > 0))
);

-- Name: TABLE published_key; Type: COMMENT; Schema: aftercommit; Owner: -

COMMENT ON TABLE aftercommit.published_key IS 'Idempotency keys given at publish, each within its scope: the same key again publishes nothing and returns the first ids.';

-- Name: rate_log; Type: TABLE; Schema: aftercommit; Owner: -

CREATE UNLOGGED TABLE aftercommit.rate_log (
    name character varying(100) NOT NULL,
    key character varying(255) NOT NULL,
    seconds integer NOT NULL,
    granted bigint NOT NULL,
    moments bigint[] NOT NULL,
    taken bigint[] NOT NULL,
    CONSTRAINT rate_log_counts_each_moment CHECK (((cardinality(moments) = cardinality(taken)) AND (seconds > 0) AND (granted >= 0)))
)
WITH (fillfactor='50');

-- Name: TABLE rate_log; Type: COMMENT; Schema: aftercommit; Owner: -

COMMENT ON TABLE aftercommit.rate_log IS 'Requests that server processes have let through in the last seconds, by limit and key: so many (taken) at each moment, in microseconds since 1970. Granted is what the last exchange was allowed beyond what it told.';

-- Name: rate_window; Type: TABLE; Schema: aftercommit; Owner: -

CREATE UNLOGGED TABLE aftercommit.rate_window (
    name character varying(100) NOT NULL,
    key character varying(255) NOT NULL,
    seconds integer NOT NULL,
    number bigint NOT NULL,
    taken bigint NOT NULL,
    CONSTRAINT rate_window_is_counted CHECK (((taken > 0) AND (seconds > 0)))
)
WITH (fillfactor='50');

-- Name: TABLE rate_window; Type: COMMENT; Schema: aftercommit; Owner: -

COMMENT ON TABLE aftercommit.rate_window IS 'What releases before 0007 count by: requests that server processes have let through, by limit, key and window. Newer ones use rate_log.';

-- Name: relay; Type: TABLE; Schema: aftercommit; Owner: -

CREATE TABLE aftercommit.relay (
    id uuid NOT NULL,
    name text NOT NULL,
    listening boolean DEFAULT false NOT NULL,
    seen_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    leased_until timestamp with time zone,
    lease_seconds double precision,
    CONSTRAINT relay_lease_knows_its_length CHECK (((leased_until IS NULL) = (lease_seconds IS NULL)))
)
WITH (fillfactor='50');

-- Name: TABLE relay; Type: COMMENT; Schema: aftercommit; Owner: -

COMMENT ON TABLE aftercommit.relay IS 'Live relays, and until when each may use its lanes (null: a relay of a release before 0008, whose lanes have leases of their own). A publisher rings the doorbell (NOTIFY) only while one of them is listening.';

-- Name: revoked_token; Type: TABLE; Schema: aftercommit; Owner: -

CREATE TABLE aftercommit.revoked_token (
    kind character varying(10) NOT NULL,
    value character varying(255) NOT NULL,
    revoked_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    revoked_by text DEFAULT ''::text NOT NULL,
    reason text DEFAULT ''::text NOT NULL,
    until timestamp with time zone DEFAULT 'infinity'::timestamp with time zone NOT NULL,
    changed bigint DEFAULT ((pg_current_xact_id())::text)::bigint NOT NULL,
    CONSTRAINT revoked_token_kind_is_known CHECK (((kind)::text = ANY ((ARRAY['token'::character varying, 'user'::character varying])::text[])))
);

-- Name: TABLE revoked_token; Type: COMMENT; Schema: aftercommit; Owner: -

COMMENT ON TABLE aftercommit.revoked_token IS 'Tokens that count no more: one by its id, or all of a user that were issued before revoked_at. Until says when the last of them has expired, and the row may go.';

-- Name: service_token; Type: TABLE; Schema: aftercommit; Owner: -

CREATE TABLE aftercommit.service_token (
    id character varying(40) NOT NULL,
    name character varying(200) NOT NULL,
    secret_hash bytea NOT NULL,
    permissions text[] NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    created_by text DEFAULT ''::text NOT NULL,
    expires_at timestamp with time zone,
    revoked_at timestamp with time zone,
    last_used_at timestamp with time zone,
    changed bigint DEFAULT ((pg_current_xact_id())::text)::bigint NOT NULL,
    CONSTRAINT service_token_hash_is_sha256 CHECK ((octet_length(secret_hash) = 32))
);

-- Name: TABLE service_token; Type: COMMENT; Schema: aftercommit; Owner: -

COMMENT ON TABLE aftercommit.service_token IS 'Tokens of services. Only the hash of the secret is here; changed is the number of the transaction that last changed what a token may, so that readers find what is new since they last looked.';

-- Name: stream; Type: TABLE; Schema: aftercommit; Owner: -

CREATE TABLE aftercommit.stream (
    aggregate_type character varying(50) NOT NULL,
    aggregate_id character varying(255) NOT NULL,
    seq bigint NOT NULL,
    ts timestamp with time zone NOT NULL,
    gaps int8multirange DEFAULT '{}'::int8multirange NOT NULL,
    CONSTRAINT stream_seq_is_positive CHECK ((seq > 0))
)
WITH (fillfactor='50');

-- Name: TABLE stream; Type: COMMENT; Schema: aftercommit; Owner: -

COMMENT ON TABLE aftercommit.stream IS 'The last stream_seq of each aggregate whose type is declared numbered.';

-- Name: COLUMN stream.gaps; Type: COMMENT; Schema: aftercommit; Owner: -

COMMENT ON COLUMN aftercommit.stream.gaps IS 'Numbers of this stream that were never given: one range before each life but the first.';

-- Name: upkeep; Type: TABLE; Schema: aftercommit; Owner: -

CREATE TABLE aftercommit.upkeep (
    task character varying(50) NOT NULL,
    keep interval,
    horizon timestamp with time zone,
    removed bigint DEFAULT 0 NOT NULL,
    kept_back jsonb DEFAULT '{}'::jsonb NOT NULL,
    began_at timestamp with time zone,
    next_page bigint,
    ran_at timestamp with time zone,
    leased_until timestamp with time zone,
    lease_seconds double precision,
    CONSTRAINT upkeep_keeps_some_time CHECK ((keep > '00:00:00'::interval)),
    CONSTRAINT upkeep_kept_back_is_an_object CHECK ((jsonb_typeof(kept_back) = 'object'::text)),
    CONSTRAINT upkeep_page_is_not_negative CHECK ((next_page >= 0)),
    CONSTRAINT upkeep_pass_has_begun CHECK (((next_page IS NULL) OR (began_at IS NOT NULL)))
);

-- Name: TABLE upkeep; Type: COMMENT; Schema: aftercommit; Owner: -

COMMENT ON TABLE aftercommit.upkeep IS 'What retention does: for each kind of row how long it is kept, the time before which rows may be gone (horizon), what was held back and by whom. Whoever relies on a horizon locks its row FOR SHARE: it does not move meanwhile. The row sweep is the right to do a round.';

-- Name: version_wait; Type: TABLE; Schema: aftercommit; Owner: -

CREATE TABLE aftercommit.version_wait (
    consumer_name character varying(100) NOT NULL,
    event_type character varying(100) NOT NULL,
    version smallint NOT NULL,
    known smallint NOT NULL,
    since timestamp with time zone NOT NULL,
    until timestamp with time zone NOT NULL,
    seen_at timestamp with time zone NOT NULL,
    CONSTRAINT version_wait_is_for_newer_code CHECK (((version > known) AND (known >= 0)))
)
WITH (fillfactor='50');

-- Name: TABLE version_wait; Type: COMMENT; Schema: aftercommit; Owner: -

COMMENT ON TABLE aftercommit.version_wait IS 'Consumers that met an event of a version (or, with known 0, of a type) that their code does not know. Until says when they stop waiting for newer code and park such events.';

-- Name: log_000000; Type: TABLE ATTACH; Schema: aftercommit; Owner: -

ALTER TABLE ONLY aftercommit.log ATTACH PARTITION aftercommit.log_000000 FOR VALUES FROM ('1') TO ('1000001');

-- Name: log_000001; Type: TABLE ATTACH; Schema: aftercommit; Owner: -

ALTER TABLE ONLY aftercommit.log ATTACH PARTITION aftercommit.log_000001 FOR VALUES FROM ('1000001') TO ('2000001');

-- Name: log_000002; Type: TABLE ATTACH; Schema: aftercommit; Owner: -

ALTER TABLE ONLY aftercommit.log ATTACH PARTITION aftercommit.log_000002 FOR VALUES FROM ('2000001') TO ('3000001');

-- Name: consumer consumer_pkey; Type: CONSTRAINT; Schema: aftercommit; Owner: -

ALTER TABLE ONLY aftercommit.consumer
    ADD CONSTRAINT consumer_pkey PRIMARY KEY (name);

-- Name: consumer_worker consumer_worker_pkey; Type: CONSTRAINT; Schema: aftercommit; Owner: -

ALTER TABLE ONLY aftercommit.consumer_worker
    ADD CONSTRAINT consumer_worker_pkey PRIMARY KEY (consumer_name, token);

-- Name: dead_letter_events dead_letter_events_pkey; Type: CONSTRAINT; Schema: aftercommit; Owner: -

ALTER TABLE ONLY aftercommit.dead_letter_events
    ADD CONSTRAINT dead_letter_events_pkey PRIMARY KEY (event_id, consumer_name);

-- Name: head head_pkey; Type: CONSTRAINT; Schema: aftercommit; Owner: -

ALTER TABLE ONLY aftercommit.head
    ADD CONSTRAINT head_pkey PRIMARY KEY (only_row);

-- Name: lane lane_pkey; Type: CONSTRAINT; Schema: aftercommit; Owner: -

ALTER TABLE ONLY aftercommit.lane
    ADD CONSTRAINT lane_pkey PRIMARY KEY (lane);

-- Name: life life_pkey; Type: CONSTRAINT; Schema: aftercommit; Owner: -

ALTER TABLE ONLY aftercommit.life
    ADD CONSTRAINT life_pkey PRIMARY KEY (number);

-- Name: log log_pkey; Type: CONSTRAINT; Schema: aftercommit; Owner: -

ALTER TABLE ONLY aftercommit.log
    ADD CONSTRAINT log_pkey PRIMARY KEY ("position");

-- Name: log_000000 log_000000_pkey; Type: CONSTRAINT; Schema: aftercommit; Owner: -

ALTER TABLE ONLY aftercommit.log_000000
    ADD CONSTRAINT log_000000_pkey PRIMARY KEY ("position");

-- Name: log_000001 log_000001_pkey; Type: CONSTRAINT; Schema: aftercommit; Owner: -

ALTER TABLE ONLY aftercommit.log_000001
    ADD CONSTRAINT log_000001_pkey PRIMARY KEY ("position");

-- Name: log_000002 log_000002_pkey; Type: CONSTRAINT; Schema: aftercommit; Owner: -

ALTER TABLE ONLY aftercommit.log_000002
    ADD CONSTRAINT log_000002_pkey PRIMARY KEY ("position");

-- Name: migration migration_pkey; Type: CONSTRAINT; Schema: aftercommit; Owner: -

ALTER TABLE ONLY aftercommit.migration
    ADD CONSTRAINT migration_pkey PRIMARY KEY (version);

-- Name: operation_event operation_event_pkey; Type: CONSTRAINT; Schema: aftercommit; Owner: -

ALTER TABLE ONLY aftercommit.operation_event
    ADD CONSTRAINT operation_event_pkey PRIMARY KEY (operation_id, ordinal);

-- Name: operation operation_pkey; Type: CONSTRAINT; Schema: aftercommit; Owner: -

ALTER TABLE ONLY aftercommit.operation
    ADD CONSTRAINT operation_pkey PRIMARY KEY (id);

-- Name: outbox outbox_pkey; Type: CONSTRAINT; Schema: aftercommit; Owner: -

ALTER TABLE ONLY aftercommit.outbox
    ADD CONSTRAINT outbox_pkey PRIMARY KEY (id);

-- Name: processed_events processed_events_pkey; Type: CONSTRAINT; Schema: aftercommit; Owner: -

ALTER TABLE ONLY aftercommit.processed_events
    ADD CONSTRAINT processed_events_pkey PRIMARY KEY (event_id, consumer_name);

-- Name: published_key published_key_pkey; Type: CONSTRAINT; Schema: aftercommit; Owner: -

ALTER TABLE ONLY aftercommit.published_key
    ADD CONSTRAINT published_key_pkey PRIMARY KEY (key, scope);

-- Name: rate_log rate_log_pkey; Type: CONSTRAINT; Schema: aftercommit; Owner: -

ALTER TABLE ONLY aftercommit.rate_log
    ADD CONSTRAINT rate_log_pkey PRIMARY KEY (name, key, seconds);

-- Name: rate_window rate_window_pkey; Type: CONSTRAINT; Schema: aftercommit; Owner: -

ALTER TABLE ONLY aftercommit.rate_window
    ADD CONSTRAINT rate_window_pkey PRIMARY KEY (name, key, seconds, number);

-- Name: relay relay_pkey; Type: CONSTRAINT; Schema: aftercommit; Owner: -

ALTER TABLE ONLY aftercommit.relay
    ADD CONSTRAINT relay_pkey PRIMARY KEY (id);

-- Name: revoked_token revoked_token_pkey; Type: CONSTRAINT; Schema: aftercommit; Owner: -

ALTER TABLE ONLY aftercommit.revoked_token
    ADD CONSTRAINT revoked_token_pkey PRIMARY KEY (kind, value);

-- Name: service_token service_token_pkey; Type: CONSTRAINT; Schema: aftercommit; Owner: -

ALTER TABLE ONLY aftercommit.service_token
    ADD CONSTRAINT service_token_pkey PRIMARY KEY (id);

-- Name: stream stream_pkey; Type: CONSTRAINT; Schema: aftercommit; Owner: -

ALTER TABLE ONLY aftercommit.stream
    ADD CONSTRAINT stream_pkey PRIMARY KEY (aggregate_type, aggregate_id);

-- Name: upkeep upkeep_pkey; Type: CONSTRAINT; Schema: aftercommit; Owner: -

ALTER TABLE ONLY aftercommit.upkeep
    ADD CONSTRAINT upkeep_pkey PRIMARY KEY (task);

-- Name: version_wait version_wait_pkey; Type: CONSTRAINT; Schema: aftercommit; Owner: -

ALTER TABLE ONLY aftercommit.version_wait
    ADD CONSTRAINT version_wait_pkey PRIMARY KEY (consumer_name, event_type, version);

-- Name: dead_letter_count; Type: INDEX; Schema: aftercommit; Owner: -

CREATE INDEX dead_letter_count ON aftercommit.dead_letter_events USING btree (consumer_name, status) WHERE ((status)::text = ANY ((ARRAY['retrying'::character varying, 'waiting'::character varying, 'parked'::character varying])::text[]));

-- Name: dead_letter_due; Type: INDEX; Schema: aftercommit; Owner: -

CREATE INDEX dead_letter_due ON aftercommit.dead_letter_events USING btree (consumer_name, next_retry_at) WHERE ((status)::text = 'retrying'::text);

-- Name: dead_letter_group; Type: INDEX; Schema: aftercommit; Owner: -

CREATE INDEX dead_letter_group ON aftercommit.dead_letter_events USING btree (consumer_name, aftercommit.error_group(error_class, error), last_seen_at DESC) WHERE ((status)::text = ANY ((ARRAY['retrying'::character varying, 'parked'::character varying])::text[]));

-- Name: dead_letter_open; Type: INDEX; Schema: aftercommit; Owner: -

CREATE INDEX dead_letter_open ON aftercommit.dead_letter_events USING btree (consumer_name, aggregate_type, aggregate_id, seq) WHERE ((status)::text = ANY ((ARRAY['retrying'::character varying, 'waiting'::character varying, 'parked'::character varying])::text[]));

-- Name: dead_letter_seen; Type: INDEX; Schema: aftercommit; Owner: -

CREATE INDEX dead_letter_seen ON aftercommit.dead_letter_events USING btree (consumer_name, status, last_seen_at DESC, event_id);

-- Name: log_aggregate; Type: INDEX; Schema: aftercommit; Owner: -

CREATE INDEX log_aggregate ON ONLY aftercommit.log USING btree (aggregate_id, "position");

-- Name: log_000000_aggregate_id_position_idx; Type: INDEX; Schema: aftercommit; Owner: -

CREATE INDEX log_000000_aggregate_id_position_idx ON aftercommit.log_000000 USING btree (aggregate_id, "position");

-- Name: log_stream; Type: INDEX; Schema: aftercommit; Owner: -

CREATE INDEX log_stream ON ONLY aftercommit.log USING btree (aggregate_type, aggregate_id, stream_seq) INCLUDE (event_type) WHERE (stream_seq IS NOT NULL);

-- Name: log_000000_aggregate_type_aggregate_id_stream_seq_event_typ_idx; Type: INDEX; Schema: aftercommit; Owner: -

CREATE INDEX log_000000_aggregate_type_aggregate_id_stream_seq_event_typ_idx ON aftercommit.log_000000 USING btree (aggregate_type, aggregate_id, stream_seq) INCLUDE (event_type) WHERE (stream_seq IS NOT NULL);

-- Name: log_ranges; Type: INDEX; Schema: aftercommit; Owner: -

CREATE INDEX log_ranges ON ONLY aftercommit.log USING brin (created_at timestamptz_minmax_multi_ops, event_type text_bloom_ops (n_distinct_per_range='64', false_positive_rate='0.001'), correlation_id text_bloom_ops (n_distinct_per_range='600', false_positive_rate='0.001')) WITH (pages_per_range='32', autosummarize='on');

-- Name: log_000000_created_at_event_type_correlation_id_idx; Type: INDEX; Schema: aftercommit; Owner: -

CREATE INDEX log_000000_created_at_event_type_correlation_id_idx ON aftercommit.log_000000 USING brin (created_at timestamptz_minmax_multi_ops, event_type text_bloom_ops (n_distinct_per_range='64', false_positive_rate='0.001'), correlation_id text_bloom_ops (n_distinct_per_range='600', false_positive_rate='0.001')) WITH (pages_per_range='32', autosummarize='on');

-- Name: log_event; Type: INDEX; Schema: aftercommit; Owner: -

CREATE INDEX log_event ON ONLY aftercommit.log USING btree (id);

-- Name: log_000000_id_idx; Type: INDEX; Schema: aftercommit; Owner: -

CREATE INDEX log_000000_id_idx ON aftercommit.log_000000 USING btree (id);

-- Name: log_000001_aggregate_id_position_idx; Type: INDEX; Schema: aftercommit; Owner: -

CREATE INDEX log_000001_aggregate_id_position_idx ON aftercommit.log_000001 USING btree (aggregate_id, "position");

-- Name: log_000001_aggregate_type_aggregate_id_stream_seq_event_typ_idx; Type: INDEX; Schema: aftercommit; Owner: -

CREATE INDEX log_000001_aggregate_type_aggregate_id_stream_seq_event_typ_idx ON aftercommit.log_000001 USING btree (aggregate_type, aggregate_id, stream_seq) INCLUDE (event_type) WHERE (stream_seq IS NOT NULL);

-- Name: log_000001_created_at_event_type_correlation_id_idx; Type: INDEX; Schema: aftercommit; Owner: -

CREATE INDEX log_000001_created_at_event_type_correlation_id_idx ON aftercommit.log_000001 USING brin (created_at timestamptz_minmax_multi_ops, event_type text_bloom_ops (n_distinct_per_range='64', false_positive_rate='0.001'), correlation_id text_bloom_ops (n_distinct_per_range='600', false_positive_rate='0.001')) WITH (pages_per_range='32', autosummarize='on');

-- Name: log_000001_id_idx; Type: INDEX; Schema: aftercommit; Owner: -

CREATE INDEX log_000001_id_idx ON aftercommit.log_000001 USING btree (id);

-- Name: log_000002_aggregate_id_position_idx; Type: INDEX; Schema: aftercommit; Owner: -

CREATE INDEX log_000002_aggregate_id_position_idx ON aftercommit.log_000002 USING btree (aggregate_id, "position");

-- Name: log_000002_aggregate_type_aggregate_id_stream_seq_event_typ_idx; Type: INDEX; Schema: aftercommit; Owner: -

CREATE INDEX log_000002_aggregate_type_aggregate_id_stream_seq_event_typ_idx ON aftercommit.log_000002 USING btree (aggregate_type, aggregate_id, stream_seq) INCLUDE (event_type) WHERE (stream_seq IS NOT NULL);

-- Name: log_000002_created_at_event_type_correlation_id_idx; Type: INDEX; Schema: aftercommit; Owner: -

CREATE INDEX log_000002_created_at_event_type_correlation_id_idx ON aftercommit.log_000002 USING brin (created_at timestamptz_minmax_multi_ops, event_type text_bloom_ops (n_distinct_per_range='64', false_positive_rate='0.001'), correlation_id text_bloom_ops (n_distinct_per_range='600', false_positive_rate='0.001')) WITH (pages_per_range='32', autosummarize='on');

-- Name: log_000002_id_idx; Type: INDEX; Schema: aftercommit; Owner: -

CREATE INDEX log_000002_id_idx ON aftercommit.log_000002 USING btree (id);

-- Name: operation_age; Type: INDEX; Schema: aftercommit; Owner: -

CREATE INDEX operation_age ON aftercommit.operation USING btree (created_at);

-- Name: operation_event_event; Type: INDEX; Schema: aftercommit; Owner: -

CREATE INDEX operation_event_event ON aftercommit.operation_event USING btree (event_id);

-- Name: operation_event_started; Type: INDEX; Schema: aftercommit; Owner: -

CREATE INDEX operation_event_started ON aftercommit.operation_event USING btree (operation_id, ordinal) WHERE ((state)::text = 'started'::text);

-- Name: operation_event_waiting; Type: INDEX; Schema: aftercommit; Owner: -

CREATE INDEX operation_event_waiting ON aftercommit.operation_event USING btree (operation_id, ordinal) WHERE ((state)::text = 'waiting'::text);

-- Name: outbox_failed; Type: INDEX; Schema: aftercommit; Owner: -

CREATE INDEX outbox_failed ON aftercommit.outbox USING btree (seq) WHERE ((status)::text = 'failed'::text);

-- Name: outbox_fresh; Type: INDEX; Schema: aftercommit; Owner: -

CREATE INDEX outbox_fresh ON aftercommit.outbox USING btree (seq) WHERE (((status)::text = 'pending'::text) AND (next_retry_at IS NULL));

-- Name: outbox_held; Type: INDEX; Schema: aftercommit; Owner: -

CREATE INDEX outbox_held ON aftercommit.outbox USING btree (aggregate_type, aggregate_id, seq) WHERE (((status)::text = 'failed'::text) OR (next_retry_at IS NOT NULL));

-- Name: outbox_retries; Type: INDEX; Schema: aftercommit; Owner: -

CREATE INDEX outbox_retries ON aftercommit.outbox USING btree (next_retry_at) WHERE (((status)::text = 'pending'::text) AND (next_retry_at IS NOT NULL));

-- Name: revoked_token_changed; Type: INDEX; Schema: aftercommit; Owner: -

CREATE INDEX revoked_token_changed ON aftercommit.revoked_token USING btree (changed);

-- Name: service_token_changed; Type: INDEX; Schema: aftercommit; Owner: -

CREATE INDEX service_token_changed ON aftercommit.service_token USING btree (changed);

-- Name: log_000000_aggregate_id_position_idx; Type: INDEX ATTACH; Schema: aftercommit; Owner: -

ALTER INDEX aftercommit.log_aggregate ATTACH PARTITION aftercommit.log_000000_aggregate_id_position_idx;

-- Name: log_000000_aggregate_type_aggregate_id_stream_seq_event_typ_idx; Type: INDEX ATTACH; Schema: aftercommit; Owner: -

ALTER INDEX aftercommit.log_stream ATTACH PARTITION aftercommit.log_000000_aggregate_type_aggregate_id_stream_seq_event_typ_idx;

-- Name: log_000000_created_at_event_type_correlation_id_idx; Type: INDEX ATTACH; Schema: aftercommit; Owner: -

ALTER INDEX aftercommit.log_ranges ATTACH PARTITION aftercommit.log_000000_created_at_event_type_correlation_id_idx;

-- Name: log_000000_id_idx; Type: INDEX ATTACH; Schema: aftercommit; Owner: -

ALTER INDEX aftercommit.log_event ATTACH PARTITION aftercommit.log_000000_id_idx;

-- Name: log_000000_pkey; Type: INDEX ATTACH; Schema: aftercommit; Owner: -

ALTER INDEX aftercommit.log_pkey ATTACH PARTITION aftercommit.log_000000_pkey;

-- Name: log_000001_aggregate_id_position_idx; Type: INDEX ATTACH; Schema: aftercommit; Owner: -

ALTER INDEX aftercommit.log_aggregate ATTACH PARTITION aftercommit.log_000001_aggregate_id_position_idx;

-- Name: log_000001_aggregate_type_aggregate_id_stream_seq_event_typ_idx; Type: INDEX ATTACH; Schema: aftercommit; Owner: -

ALTER INDEX aftercommit.log_stream ATTACH PARTITION aftercommit.log_000001_aggregate_type_aggregate_id_stream_seq_event_typ_idx;

-- Name: log_000001_created_at_event_type_correlation_id_idx; Type: INDEX ATTACH; Schema: aftercommit; Owner: -

ALTER INDEX aftercommit.log_ranges ATTACH PARTITION aftercommit.log_000001_created_at_event_type_correlation_id_idx;

-- Name: log_000001_id_idx; Type: INDEX ATTACH; Schema: aftercommit; Owner: -

ALTER INDEX aftercommit.log_event ATTACH PARTITION aftercommit.log_000001_id_idx;

-- Name: log_000001_pkey; Type: INDEX ATTACH; Schema: aftercommit; Owner: -

ALTER INDEX aftercommit.log_pkey ATTACH PARTITION aftercommit.log_000001_pkey;

-- Name: log_000002_aggregate_id_position_idx; Type: INDEX ATTACH; Schema: aftercommit; Owner: -

ALTER INDEX aftercommit.log_aggregate ATTACH PARTITION aftercommit.log_000002_aggregate_id_position_idx;

-- Name: log_000002_aggregate_type_aggregate_id_stream_seq_event_typ_idx; Type: INDEX ATTACH; Schema: aftercommit; Owner: -

ALTER INDEX aftercommit.log_stream ATTACH PARTITION aftercommit.log_000002_aggregate_type_aggregate_id_stream_seq_event_typ_idx;

-- Name: log_000002_created_at_event_type_correlation_id_idx; Type: INDEX ATTACH; Schema: aftercommit; Owner: -

ALTER INDEX aftercommit.log_ranges ATTACH PARTITION aftercommit.log_000002_created_at_event_type_correlation_id_idx;

-- Name: log_000002_id_idx; Type: INDEX ATTACH; Schema: aftercommit; Owner: -

ALTER INDEX aftercommit.log_event ATTACH PARTITION aftercommit.log_000002_id_idx;

-- Name: log_000002_pkey; Type: INDEX ATTACH; Schema: aftercommit; Owner: -

ALTER INDEX aftercommit.log_pkey ATTACH PARTITION aftercommit.log_000002_pkey;

-- Name: relay relay_listened; Type: TRIGGER; Schema: aftercommit; Owner: -

CREATE TRIGGER relay_listened AFTER DELETE OR UPDATE OF listening ON aftercommit.relay FOR EACH ROW WHEN (old.listening) EXECUTE FUNCTION aftercommit.set_doorbell();

-- Name: relay relay_listens; Type: TRIGGER; Schema: aftercommit; Owner: -

CREATE TRIGGER relay_listens AFTER INSERT OR UPDATE OF listening ON aftercommit.relay FOR EACH ROW WHEN (new.listening) EXECUTE FUNCTION aftercommit.set_doorbell();

-- Name: operation_event operation_event_operation_fkey; Type: FK CONSTRAINT; Schema: aftercommit; Owner: -

ALTER TABLE ONLY aftercommit.operation_event
    ADD CONSTRAINT operation_event_operation_fkey FOREIGN KEY (operation_id) REFERENCES aftercommit.operation(id) ON DELETE CASCADE;
