-- The doorbell: whether a relay listens, where publishers can read it without a query.
-- A sequence and triggers that keep it: code that knows 0001 goes on working. Its publishers read the table, its relays write only that.
-- needs code: 0001

create sequence {schema}.doorbell as smallint;
comment on sequence {schema}.doorbell is 'Set while a relay is listening: then publishers ring (NOTIFY). A sequence, because that is read by one function call, past any snapshot.';

create function {schema}.set_doorbell() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $set_doorbell$
declare
    doorbell regclass := quote_ident(tg_table_schema) || '.doorbell';
begin
    -- A heartbeat of a relay that sleeps. After a failover to a server that has the rows and not the sequence, it is set here.
    if tg_op = 'UPDATE' and old.listening = new.listening and pg_sequence_last_value(doorbell) is not null then
        return null;
    end if;
    -- One at a time, or a relay that stops listening could miss one that begins to.
    perform pg_advisory_xact_lock(hashtextextended('aftercommit doorbell', tg_relid::bigint));
    perform setval(doorbell, 1, exists (select from {schema}.relay where listening));
    return null;
end
$set_doorbell$;
revoke execute on function {schema}.set_doorbell() from public;
comment on function {schema}.set_doorbell() is 'Keeps the doorbell, with the rights of the owner: relays need none on the sequence.';

create trigger relay_listens after insert or update of listening on {schema}.relay
for each row when (new.listening) execute function {schema}.set_doorbell();
create trigger relay_listened after delete or update of listening on {schema}.relay
for each row when (old.listening) execute function {schema}.set_doorbell();

-- Publishers go on without new grants, whatever rights they have. All that can be read here is whether a relay sleeps.
grant select on sequence {schema}.doorbell to public;
update {schema}.relay set listening = listening where listening;
