"""Colours and measures are written down once, in a file of the package, which is installed without `web/`."""

import re
from pathlib import Path

import pytest

from tests.support.programs import REPOSITORY

SOURCE = REPOSITORY / "src" / "aftercommit" / "feed" / "app" / "pages" / "tokens.css"
FOLDERS = (REPOSITORY / "src", REPOSITORY / "web" / "ui", REPOSITORY / "web" / "pages")


def sheets() -> list[Path]:
    """Every style sheet that is written by hand, those of the package first."""
    return [path for folder in FOLDERS for path in sorted(folder.rglob("*.css")) if path.parent.name != "built"]


def said_in(sheet: Path) -> set[str]:
    """The custom properties that get a value there."""
    return set(re.findall(r"(--[\w-]+):", sheet.read_text("utf-8")))


def test_a_colour_or_measure_is_said_in_one_file():
    assert len(said_in(SOURCE)) > 20
    assert [path for path in sheets() if said_in(path) & said_in(SOURCE)] == [SOURCE]


@pytest.mark.parametrize("sheet", sheets(), ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_a_sheet_uses_what_is_said_there_or_in_its_own_folder(sheet: Path):
    used = set(re.findall(r"var\((--[\w-]+)\)", sheet.read_text("utf-8")))
    assert used <= said_in(SOURCE).union(*(said_in(path) for path in sheet.parent.glob("*.css")))
