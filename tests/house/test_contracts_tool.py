"""`make contracts` can be believed: it finds every kind of mark, and tells where page and tests differ."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools import contracts

REPOSITORY = Path(__file__).resolve().parents[2]

PAGE = """
# Contracts

| row | status | what holds |
|---|---|---|
| T1 | held | The first promise. |
| T2 | planned | The second promise. |
"""


@pytest.fixture
def tree(tmp_path: Path):
    """Build a repository from a page and the text of one test file."""

    def build(tests: str, page: str = PAGE) -> Path:
        (tmp_path / "docs").mkdir()
        (tmp_path / "docs" / "contracts.md").write_text(page)
        (tmp_path / "tests" / "deep").mkdir(parents=True)
        (tmp_path / "tests" / "deep" / "test_some.py").write_text(tests)
        return tmp_path

    return build


def proofs_of(report: contracts.Report, identifier: str) -> list[str]:
    return next(row.tests for row in report.rows if row.identifier == identifier)


MARKED = {
    "function": '@pytest.mark.contract("T1")\ndef test_it(): ...',
    "coroutine": '@pytest.mark.contract("T1")\nasync def test_it(): ...',
    "imported mark": '@mark.contract("T1")\ndef test_it(): ...',
    "module": 'pytestmark = pytest.mark.contract("T1")\ndef test_it(): ...',
    "module list": 'pytestmark = [pytest.mark.slow, pytest.mark.contract("T1")]\ndef test_it(): ...',
    "one case": (
        '@pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.contract("T1"))])\ndef test_it(n): ...'
    ),
}


@pytest.mark.parametrize("source", MARKED.values(), ids=MARKED.keys())
def test_a_mark_is_found_wherever_pytest_accepts_one(tree, source):
    report = contracts.compare(tree(source))

    assert report.problems == []
    assert proofs_of(report, "T1") == ["tests/deep/test_some.py::test_it"]


@pytest.mark.parametrize(
    "source",
    [
        '@pytest.mark.contract("T1")\nclass TestAll:\n    def test_it(self): ...',
        'class TestAll:\n    pytestmark = pytest.mark.contract("T1")\n    def test_it(self): ...',
        'class TestAll:\n    @pytest.mark.contract("T1")\n    def test_it(self): ...',
    ],
    ids=["on the class", "in the class", "on the method"],
)
def test_marks_of_a_class_reach_its_tests(tree, source):
    assert proofs_of(contracts.compare(tree(source)), "T1") == ["tests/deep/test_some.py::TestAll::test_it"]


def test_one_mark_may_name_several_rows(tree):
    report = contracts.compare(tree('@pytest.mark.contract("T1", "T2")\ndef test_it(): ...'))

    assert proofs_of(report, "T1") == proofs_of(report, "T2") == ["tests/deep/test_some.py::test_it"]


def test_a_held_row_without_a_test_is_a_problem_and_a_planned_one_is_not(tree):
    (problem,) = contracts.compare(tree("def test_it(): ...")).problems

    assert problem.startswith("T1 is held but no test proves it")


def test_a_row_that_holds_in_part_needs_a_test_too(tree):
    page = PAGE.replace("| T2 | planned |", "| T2 | partly |")

    (problem,) = contracts.compare(tree('@pytest.mark.contract("T1")\ndef test_it(): ...', page)).problems

    assert problem.startswith("T2 is partly but no test proves it")


def test_an_unknown_row_is_a_problem_that_names_the_test(tree):
    source = '@pytest.mark.contract("T1", "T9")\ndef test_it(): ...'

    (problem,) = contracts.compare(tree(source)).problems

    assert problem == "tests/deep/test_some.py::test_it names row T9, which docs/contracts.md does not have"


@pytest.mark.parametrize("void", ["skip", 'skip(reason="later")', "xfail"])
def test_a_test_that_never_has_to_pass_proves_nothing(tree, void):
    source = f'@pytest.mark.{void}\n@pytest.mark.contract("T1")\ndef test_it(): ...'

    (problem,) = contracts.compare(tree(source)).problems

    assert problem.startswith("T1 is held but no test proves it")


def test_skipping_one_case_of_many_leaves_the_proof(tree):
    source = (
        '@pytest.mark.contract("T1")\n'
        '@pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.skip)])\n'
        "def test_it(n): ..."
    )

    assert contracts.compare(tree(source)).problems == []


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ('@pytest.mark.contract("T1")\ndef helper(): ...', "it is not a test"),
        ('@pytest.mark.contract("T1")\nclass Suite:\n    def test_it(self): ...', "classes named Test"),
        ("@pytest.mark.contract\ndef test_it(): ...", "names no row"),
        ("@pytest.mark.contract()\ndef test_it(): ...", "names no row"),
        ("@pytest.mark.contract(ROW)\ndef test_it(): ...", "names a row as ROW: write it as a plain string"),
    ],
)
def test_a_mark_that_cannot_count_is_a_problem(tree, source, complaint):
    assert any(complaint in problem for problem in contracts.compare(tree(source)).problems)


@pytest.mark.parametrize(
    ("page", "complaint"),
    [
        (PAGE + "| T1 | held | Once more. |\n", "T1 is there twice"),
        (PAGE + "| T3 | someday | Not a status. |\n", "T3 has status 'someday'"),
        ("# Nothing\n", "has no rows"),
    ],
)
def test_a_page_that_cannot_be_read_as_rows_is_a_problem(tree, page, complaint):
    source = '@pytest.mark.contract("T1")\ndef test_it(): ...'

    assert any(complaint in problem for problem in contracts.compare(tree(source, page)).problems)


def run(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tools.contracts", "--root", str(root), *arguments]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)


def test_the_command_prints_rows_with_tests_and_succeeds_when_all_is_proved(tree):
    result = run(tree('@pytest.mark.contract("T1")\ndef test_it(): ...'))

    assert (result.returncode, result.stderr) == (0, "")
    assert "T1  held     The first promise.\n             tests/deep/test_some.py::test_it\n" in result.stdout
    assert result.stdout.endswith("2 rows: 1 held, 1 of them proved by a test\n")


def test_the_command_fails_with_problems_on_stderr_and_data_alone_on_stdout(tree):
    result = run(tree("def test_it(): ..."), "--json")

    assert result.returncode == 1
    assert result.stderr.startswith("problem: T1 is held but no test proves it")
    data = json.loads(result.stdout)
    assert data["rows"][1] == {
        "row": "T2",
        "status": "planned",
        "sentence": "The second promise.",
        "tests": [],
    }
    assert len(data["problems"]) == 1


def test_a_row_whose_every_test_is_left_to_the_thorough_run_is_a_problem(tree):
    source = '@pytest.mark.thorough\n@pytest.mark.contract("T1")\ndef test_it(): ...'
    report = contracts.compare(tree(source))
    assert [problem for problem in report.problems if "`make test` runs none" in problem]


@pytest.mark.parametrize(
    "also", ['@pytest.mark.contract("T1")\ndef test_quick(): ...', ""], ids=["beside a quick one", "program alone"]
)
def test_a_thorough_test_or_one_that_needs_a_program_may_stand_beside_a_quick_one(tree, also):
    mark = "thorough" if also else 'needs("chromium")'
    source = f'@pytest.mark.{mark}\n@pytest.mark.contract("T1")\ndef test_it(): ...\n{also}'
    assert contracts.compare(tree(source)).problems == []
