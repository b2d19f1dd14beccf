"""What is promised is tested: README, package metadata and CI name the same versions of Python and PostgreSQL."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from tools import matrix
from tools.matrix import FOLDERS, PARTS, WHOLE, Missing, Run, Version

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.contract("E8")

PYTHONS = sorted({run.python for run in (WHOLE, *PARTS)})
SERVERS = sorted({run.postgres for run in (WHOLE, *PARTS)})


def listed(versions: list[str], last: str = "and") -> str:
    """As people write it: `3.11, 3.12 and 3.13`."""
    return f"{', '.join(versions[:-1])} {last} {versions[-1]}"


def test_the_readme_promises_the_versions_that_ci_runs() -> None:
    servers = listed([str(version) for version in SERVERS])
    promise = f"CI tests Python {listed(PYTHONS)}, and PostgreSQL {servers}."

    assert promise in (ROOT / "README.md").read_text()
    assert f"You need Python {listed(PYTHONS, 'or')}," in (ROOT / "CONTRIBUTING.md").read_text()


def test_the_package_names_the_versions_that_ci_runs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    classified = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))

    assert classified == PYTHONS
    assert project["requires-python"] == f">={PYTHONS[0]}"


def test_ci_runs_the_whole_suite_and_then_the_matrix() -> None:
    commands = (ROOT / ".ci" / "run").read_text().splitlines()

    whole = next(index for index, command in enumerate(commands) if re.fullmatch(r"make test(-all)?", command))
    assert ".venv/bin/python -m tools.matrix" in commands[whole:]


def test_every_part_runs_unit_contract_and_feed_tests() -> None:
    assert FOLDERS == ("tests/unit", "tests/contracts", "tests/feed")
    for run in PARTS:
        first, *_ = matrix.calls(run.postgres)
        assert (*first,) == (*FOLDERS, "-m", "not long")
    assert all((ROOT / folder).is_dir() for folder in FOLDERS)


def test_a_promised_version_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    known: dict[Version, Path] = {(3, 11, 7): Path("a"), (3, 11, 2): Path("b"), (3, 12, 1): Path("c")}

    assert matrix.oldest("3.11", known) == ((3, 11, 2), Path("b"))
    with pytest.raises(Missing, match=r"Python 3\.13 is promised and not installed"):
        matrix.passes(Run("3.13", 18), known)
    with pytest.raises(Missing, match="PostgreSQL 99 is promised and not installed"), matrix.server(99):
        pass


@pytest.mark.thorough
def test_interpreters_are_those_of_the_machine_and_not_of_an_environment() -> None:
    known = matrix.interpreters()

    assert known
    for version, path in known.items():
        told = subprocess.run(
            [str(path), "-c", "import sys; print(sys.prefix == sys.base_prefix, *sys.version_info[:3])"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert told.split() == ["True", *map(str, version)]
