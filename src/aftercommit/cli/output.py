"""How the command line speaks: data to stdout, messages to stderr, tables where somebody looks, plain text in pipes."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from datetime import datetime
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
    """To whoever is looking, not to whoever reads the output."""
    click.echo(pasteable(text), err=True)


def line(text: str) -> None:
    """One line of data."""
    click.echo(text)


def print_json(data: Any, *, compact: bool = False) -> None:
    """One JSON document; compact ones are one line each."""
    click.echo(json.dumps(data, default=_plain, indent=None if compact else 2, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Sequence[Row]) -> None:
    """A table on a terminal; in a pipe plain columns, which are never cut off."""
    if sys.stdout.isatty():
        Console(highlight=False).print(rich_table(columns, rows))
        return
    cells = [[*columns], *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[index]) for row in cells) for index in range(len(columns))]
    for row in cells:
        line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def rich_table(columns: Sequence[str], rows: Sequence[Row]) -> Table:
    """The table for a terminal; numbers stand on the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        numeric = all(isinstance(row[index], int | float) for row in rows) and bool(rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row))
    return table


def printable(text: str) -> str:
    """Text from elsewhere, without the control characters by which it could paint over the terminal."""
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
