"""Colours and measures are written down once, in `web/ui/tokens.css`. Pages of the package, which is installed without
`web/`, have copies: all of it, or what they use. Every copy stays as it is there."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.programs import REPOSITORY

SOURCE = REPOSITORY / "web" / "ui" / "tokens.css"
PACKAGE = REPOSITORY / "src" / "aftercommit"


def blocks(css: str) -> list[Mapping[str, str]]:
    """The custom properties of each block that has some, in order: light, dark by the system, dark by choice."""
    found = [dict(re.findall(r"(--[\w-]+):\s*([^;]+);", block)) for block in re.findall(r"\{([^{}]*)\}", css)]
    return [each for each in found if each]


def copies() -> list[Path]:
    """Every style sheet of the package that says what a colour is."""
    return [path for path in sorted(PACKAGE.rglob("*.css")) if blocks(path.read_text("utf-8"))]


def test_the_pages_of_the_package_are_found():
    assert [path.name for path in copies()] == ["docs.css", "tokens.css"]


@pytest.mark.parametrize("copy", copies(), ids=lambda path: path.name)
def test_the_colours_and_measures_of_a_page_are_those_of_all_pages(copy: Path):
    ours, theirs = (blocks(path.read_text("utf-8")) for path in (copy, SOURCE))
    assert len(ours[0]) > 20
    assert ours[1] == ours[2], "dark by the system and dark by choice"
    for own, common in zip(ours, theirs, strict=True):
        assert own == {name: common[name] for name in own}


@pytest.mark.parametrize("copy", copies(), ids=lambda path: path.name)
def test_a_copy_is_the_whole_or_what_its_page_uses(copy: Path):
    sheets = [path.read_text("utf-8") for path in copy.parent.glob("*.css")]
    used = {name for sheet in sheets for name in re.findall(r"var\((--[\w-]+)\)", sheet)}
    there = set(blocks(copy.read_text("utf-8"))[0])
    assert used <= there
    assert used == there or copy.read_text("utf-8") == SOURCE.read_text("utf-8")
