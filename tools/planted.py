"""Planted bugs: each is put into a copy of the tree, and the tests named with it must fail there.

A test that has never been seen to fail proves little. These are the mistakes that systems of this kind are known for;
`make planted` shows that ours would be caught. The copy is thrown away; nothing is changed here.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[1]
RELAY_SQL = "src/aftercommit/postgres/queries/relay.sql"
CONSUMER_SQL = "src/aftercommit/postgres/queries/consumer.sql"
CARRIER = "src/aftercommit/relay/carrier.py"
ORDER = "tests/postgres/test_order.py"


@dataclass(frozen=True)
class Bug:
    """One mistake: what it is called, where it is made, and which test must notice."""

    name: str
    file: str
    right: str
    wrong: str
    test: str


BUGS = [
    Bug(
        "the sequence is the readers' cursor: a late commit is hidden behind it",
        RELAY_SQL,
        "select tip.position - count(*) over () + row_number() over (order by moved.seq), tip.ts, {stream_seq},",
        "select moved.seq, tip.ts, {stream_seq},",
        f"{ORDER}::test_late_commit_of_an_early_seq_is_never_hidden_from_a_poller",
    ),
    Bug(
        "the append is not fenced: a relay that lost its lease writes on",
        RELAY_SQL,
        "where {which} and fence.held = %(lane_count)s",
        "where {which} and fence.held >= 0",
        f"{ORDER}::test_a_relay_whose_lanes_were_taken_moves_nothing_even_if_its_heir_has_not_begun",
    ),
    Bug(
        "marked before delivered: a crash in between loses the event",
        CARRIER,
        "        outcome = await self.deliver(batch)\n        return await self.settle(connection, batch, outcome)",
        "        done = await self.settle(connection, batch, Outcome(list(batch.events), []))\n"
        "        await self.deliver(batch)\n        return done",
        f"{ORDER}::test_a_relay_that_dies_on_its_way_to_the_transport_has_marked_nothing",
    ),
    Bug(
        "the inbox is checked and then written: two deliveries at once both pass the check",
        CONSUMER_SQL,
        """    on conflict do nothing
    returning event_id
)
select 1, (select""",
        """    on conflict (event_id, consumer_name) do update set consumer_name = excluded.consumer_name
    returning event_id, event_id in (
        select known.event_id from {schema}.processed_events known where known.consumer_name = %(consumer)s
    ) as seen
)
select 1, (with inbox as (select event_id from inbox where not seen) select""",
        "tests/contracts/test_consumer_contracts.py::test_two_deliveries_of_one_event_at_once_have_one_effect",
    ),
    Bug(
        "the watermark passes events of transactions that are still open",
        "src/aftercommit/relay/plan.py",
        "self.value = max(self.value, min(reached, resolved))",
        "self.value = max(self.value, reached)",
        f"{ORDER}::test_late_commit_is_found_although_the_watermark_has_moved_on",
    ),
    Bug(
        "the watermark trusts what was learned after the read",
        CARRIER,
        "self._watermark.settled(batch.fresh, unsettled, batch.resolved)",
        "self._watermark.settled(batch.fresh, unsettled, self._marks.resolved)",
        f"{ORDER}::test_an_event_committed_between_read_and_resolution_is_not_stepped_over",
    ),
]


def catches(bug: Bug, folder: Path) -> bool:
    """Whether the test fails on a tree with the bug, for a reason of its own."""
    for name in ("src", "tests", "pyproject.toml"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)
    target = folder / bug.file
    text = target.read_text()
    if text.count(bug.right) != 1:
        raise SystemExit(f"{bug.file} no longer has the place for {bug.name!r}: bring tools/planted.py up to date")
    target.write_text(text.replace(bug.right, bug.wrong))
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", bug.test],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    failed = finished.returncode == 1 and "1 failed" in finished.stdout
    if not failed:
        click.echo(finished.stdout[-2000:], err=True)
    return failed


@click.command()
@click.option("--only", default="", help="Only bugs whose name contains this.")
def main(only: str) -> None:
    """Plant each bug in a copy of the tree and see that its test fails."""
    missed = 0
    for bug in BUGS:
        if only not in bug.name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            caught = catches(bug, Path(folder))
        missed += not caught
        click.echo(f"{'caught' if caught else 'MISSED'}  {bug.name}\n        {bug.test}")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
