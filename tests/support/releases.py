"""Versions of the package side by side, as during a deployment: each in a folder of its own, run as programs.

The old code is the code of this tree. The new code is the same with one more migration, which does to the busiest
tables what a migration may do: columns, a table, indexes. So the test stays true for every version to come, and the old
code is really what users run when they upgrade from this version.
"""

import shutil
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from aftercommit.schema.numbered import migrations
from tests.support.programs import REPOSITORY, Program, running

NEWEST = migrations()[-1].version
NEXT = f"""-- The migration of a version to come.
-- needs code: {NEWEST:04d}
alter table {{schema}}.outbox add column origin text not null default 'unknown';
alter table {{schema}}.log add column origin text not null default 'unknown';
alter table {{schema}}.dead_letter_events add column origin text not null default 'unknown';
create table {{schema}}.novelty (id bigint generated always as identity primary key);

-- concurrently: outbox_by_origin on outbox
create index {{concurrently}} {{index}} on {{only}} {{schema}}.{{table}} (origin, seq);

-- concurrently: log_by_origin on log
create index {{concurrently}} {{index}} on {{only}} {{schema}}.{{table}} (origin, position);

-- concurrently: dead_letters_by_origin on dead_letter_events
create index {{concurrently}} {{index}} on {{only}} {{schema}}.{{table}} (origin);
"""
SMALL = "SMALL_BYTES = 64 * 1024 * 1024"


@dataclass(frozen=True)
class Release:
    """One version of the package."""

    source: Path

    def run(self, *arguments: str, dsn: str) -> AbstractContextManager[Program]:
        """Our command line of this version, for the shop."""
        options = ("--app", "tests.support.upgrade_app:outbox", "--dsn", dsn, "--log-format", "json")
        return running(*arguments, *options, PYTHONPATH=str(self.source))


def this_release() -> Release:
    """The code of this tree."""
    return Release(REPOSITORY / "src")


def next_release(folder: Path) -> Release:
    """The same with one more migration, for which no table is too small to be indexed without blocking writers."""
    source = folder / "next" / "src"
    shutil.copytree(REPOSITORY / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
    room = source / "aftercommit" / "schema"
    (room / "migrations" / f"{NEWEST + 1:04d}_next.sql").write_text(NEXT)
    indexes = (room / "indexes.py").read_text()
    assert indexes.count(SMALL) == 1
    (room / "indexes.py").write_text(indexes.replace(SMALL, "SMALL_BYTES = 0"))
    return Release(source)
