"""Every system has the same files, so that whoever knows one knows all; and it is known where systems are listed."""

from pathlib import Path

import pytest

from systems.site import SYSTEMS

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / "systems"
GUIDE = REPOSITORY / "docs" / "guides" / "systems.md"
SHARED = "host"

WRITTEN = {"README.md", "__init__.py", "events.py", "tables.sql", "feeds.py", "system.py"}
# A file, or a folder where a system has several of these.
ONE_OR_MORE = {"service", "api", "sample"}
OPTIONAL = {"handlers"}

SYSTEM_FOLDERS = sorted(path for path in FOLDER.iterdir() if path.is_dir() and path.name not in (SHARED, "__pycache__"))


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name != "__pycache__"}


@pytest.mark.parametrize("folder", SYSTEM_FOLDERS, ids=lambda folder: folder.name)
def test_a_system_has_the_files_that_every_system_has(folder: Path):
    parts = [name.removesuffix(".py") for name in names_in(folder) - WRITTEN]

    assert names_in(folder) >= WRITTEN
    assert len(parts) == len(set(parts)), "a file and a folder of one name"
    assert ONE_OR_MORE <= set(parts) <= ONE_OR_MORE | OPTIONAL


def test_every_system_is_on_the_site():
    assert sorted(system.name for system in SYSTEMS) == [folder.name for folder in SYSTEM_FOLDERS]


def test_the_guide_names_every_file():
    text = GUIDE.read_text(encoding="utf-8")

    assert [name for name in sorted(WRITTEN) if f"`{name}`" not in text] == []
    assert [name for name in sorted(ONE_OR_MORE | OPTIONAL) if f"`{name}.py` or `{name}/`" not in text] == []
    for folder in SYSTEM_FOLDERS:
        inside = {path.stem for name in ONE_OR_MORE | OPTIONAL for path in (folder / name).glob("*.py")}
        assert [stem for stem in sorted(inside - {"__init__"}) if f"`{stem}`" not in text] == [], folder.name
