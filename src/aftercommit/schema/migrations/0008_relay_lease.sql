-- One lease per relay: at rest a relay renews its own row and no longer 64 lanes.
-- Columns without a default: code that knows 0001 goes on working. Its relays go by the leases of the lanes, which newer relays write too.
-- needs code: 0001

alter table {schema}.relay add column leased_until timestamptz, add column lease_seconds double precision;
alter table {schema}.relay add constraint relay_lease_knows_its_length check ((leased_until is null) = (lease_seconds is null));
comment on table {schema}.relay is 'Live relays, and until when each may use its lanes (null: a relay of a release before 0008, whose lanes have leases of their own). A publisher rings the doorbell (NOTIFY) only while one of them is listening.';
comment on table {schema}.lane is 'Who carries which events: aggregates hash to 64 lanes, a relay holds lanes, the token fences its writes. A lane is free when its own lease, which is long, or the lease of its relay has run out.';
