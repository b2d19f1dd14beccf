"""Output of the command line: data to stdout, messages to stderr, tables on a terminal, plain columns in pipes."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from aftercommit.cli.remedies import pasteable
from aftercommit.event.envelope import rfc3339

Row = Sequence[object]


def message(text: str) -> None:
    """Print a message for the person at the terminal, to stderr."""
    click.echo(pasteable(text), err=True)


def line(text: str) -> None:
    """Print one line of data to stdout."""
    click.echo(text)


def print_json(data: Any, *, compact: bool = False) -> None:
    """Print one JSON document to stdout, indented or on one line."""
    click.echo(json.dumps(data, default=_plain, indent=None if compact else 2, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Sequence[Row]) -> None:
    """Print a table on a terminal, or plain columns, which are not cut off, in a pipe."""
    if sys.stdout.isatty():
        Console(highlight=False).print(rich_table(columns, rows))
        return
    cells = [[*columns], *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[index]) for row in cells) for index in range(len(columns))]
    for row in cells:
        line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def rich_table(columns: Sequence[str], rows: Sequence[Row]) -> Table:
    """The table for a terminal; numbers are aligned right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        numeric = all(isinstance(row[index], int | float) for row in rows) and bool(rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row))
    return table


def print_fields(fields: Mapping[str, object], width: int = 12) -> None:
    """Print one line per field: its name and its value."""
    for name, value in fields.items():
        line(printable(f"{name:<{width}} {value}"))


def day_and_time(moment: datetime) -> str:
    """A time in UTC to the second, as tables show it."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"


def printable(text: str) -> str:
    """The text without control characters, which could rewrite the terminal's content."""
    return "".join(character if character in "\n\t" or character.isprintable() else "�" for character in text)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1f}"
    return printable(f"{value:,}" if isinstance(value, int) and sys.stdout.isatty() else str(value))


def _plain(value: object) -> Any:
    if isinstance(value, datetime):
        return rfc3339(value)
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)
