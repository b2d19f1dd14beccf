"""The golden schema: what all migrations and the declaration of a plain outbox produce, as one readable file.

Without arguments it writes `src/aftercommit/schema/schema.sql` again; `--check` compares and prints the difference.
The schema is made by the same `up()` that users call, on an embedded PostgreSQL 18, and dumped by that version's own
pg_dump, so that the file depends on nothing but the migrations.
"""

import argparse
import difflib
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import psycopg

from aftercommit.embedded import EmbeddedPostgres
from aftercommit.embedded.cluster import binaries
from aftercommit.postgres.shape import Shape
from aftercommit.schema import migrate

VERSION = 18
GOLDEN = Path(__file__).resolve().parents[1] / "src" / "aftercommit" / "schema" / "schema.sql"
HEADER = "-- Written by `make schema` from the migrations. Never executed; its diff is for reviewers.\n"

# What a dump says about its own making: versions, session settings, a random key per run. PostgreSQL 15.20 keeps a
# number of its own with each column, as an option; the pg_dump of an older release prints it.
NOISE = re.compile(
    r"(-- Dumped |-- PostgreSQL database dump|\\(un)?restrict |SET |SELECT pg_catalog\.set_config"
    r"|ALTER TABLE .* SET \(pg_attver=\d+\);$)"
)


def dump(dsn: str, schema: str) -> str:
    """The definition of everything in one schema, without anything that differs from run to run."""
    # The pattern language of pg_dump takes a quoted name literally.
    pattern = '"' + schema.replace('"', '""') + '"'
    options = ["--schema-only", "--no-owner", "--no-privileges", f"--schema={pattern}"]
    command: list[str | Path] = [binaries(VERSION) / "pg_dump", *options, dsn]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        raise SystemExit(f"pg_dump failed: {finished.stderr.strip()}")
    return normalised(finished.stdout)


def normalised(text: str) -> str:
    """The statements of a dump with one empty line between them."""
    kept = [line for line in text.splitlines() if not NOISE.match(line) and line != "--"]
    return re.sub(r"\n{2,}", "\n\n", "\n".join(kept)).strip() + "\n"


def produced() -> str:
    """The schema as the migrations make it now."""
    with tempfile.TemporaryDirectory(prefix="aftercommit-schema-") as folder:
        server = EmbeddedPostgres(Path(folder), version=VERSION, settings={"fsync": "off"})
        with server:
            with psycopg.connect(server.dsn) as connection:
                migrate.up(connection, Shape())
            return HEADER + "\n" + dump(server.dsn, Shape().schema)


def difference() -> str:
    """How the golden file differs from what the migrations make; empty when it does not."""
    written = GOLDEN.read_text(encoding="utf-8") if GOLDEN.exists() else ""
    lines = difflib.unified_diff(
        written.splitlines(keepends=True),
        produced().splitlines(keepends=True),
        fromfile=GOLDEN.name,
        tofile="what the migrations make",
    )
    return "".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing; status 1 when they differ")
    if not parser.parse_args(arguments).check:
        GOLDEN.write_text(produced(), encoding="utf-8")
        print(f"wrote {GOLDEN}")
        return 0
    found = difference()
    if found:
        print(found)
        print("The golden schema is not what the migrations make: run `make schema` and review the difference.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
