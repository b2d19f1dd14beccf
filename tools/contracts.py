"""Which tests prove which promise: reads docs/contracts.md and the marks in tests/, and compares.

A row of the page is `held` (at least one test proves it), `partly` (tests prove a part of it, the rest is not
delivered yet) or `planned` (not delivered yet). A test names the rows it proves with
`@pytest.mark.contract("C3", "S5")`, on itself, on its class, or for a whole file in `pytestmark`. Files are parsed,
never imported: the answer depends neither on a database nor on what happens to be installed.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

STATUSES = ("held", "partly", "planned")
ROW = re.compile(r"^\|\s*(?P<identifier>[A-Z]\d+)\s*\|\s*(?P<status>[^|]*?)\s*\|\s*(?P<sentence>.*?)\s*\|$")

# A test that is always skipped, or expected to fail, proves nothing.
VOID_MARKS = frozenset({"skip", "xfail"})
# Left out of `make test`: what takes long, and what runs a program that not every machine has.
LATER_MARKS = frozenset({"thorough", "long"})
PROGRAM_MARK = "needs"

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Row:
    """One promise of the page, and the tests found for it."""

    identifier: str
    status: str
    sentence: str
    tests: list[str] = field(default_factory=list)
    runs: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Claim:
    """One test that says it proves one row. `runs`: in `make test`, later, or only with a program of the system."""

    row: str
    test: str
    runs: Literal["quick", "later", "program"]


@dataclass
class Report:
    """The page and the tests side by side, with everything that is wrong between them."""

    rows: list[Row]
    problems: list[str]

    def as_json(self) -> str:
        rows = [
            {"row": row.identifier, "status": row.status, "sentence": row.sentence, "tests": row.tests}
            for row in self.rows
        ]
        return json.dumps({"rows": rows, "problems": self.problems}, indent=2, ensure_ascii=False)

    def as_text(self) -> str:
        lines: list[str] = []
        for row in self.rows:
            lines.append(f"{row.identifier:<4}{row.status:<9}{row.sentence}")
            lines.extend(f"             {test}" for test in row.tests)
        held = [row for row in self.rows if row.status == "held"]
        proved = sum(1 for row in held if row.tests)
        lines.append(f"{len(self.rows)} rows: {len(held)} held, {proved} of them proved by a test")
        return "\n".join(lines)


def compare(root: Path) -> Report:
    """Read the page and the tests under `root` and say how they fit."""
    rows, problems = read_page(root / "docs" / "contracts.md")
    claims, complaints = read_tests(root)
    problems += complaints
    by_identifier = {row.identifier: row for row in rows}
    for claim in claims:
        if row := by_identifier.get(claim.row):
            row.tests.append(claim.test)
            row.runs.add(claim.runs)
        else:
            problems.append(f"{claim.test} names row {claim.row}, which docs/contracts.md does not have")
    problems += [
        f"{row.identifier} is {row.status} but no test proves it: mark one with"
        f' pytest.mark.contract("{row.identifier}"), or set the row to planned'
        for row in rows
        if row.status != "planned" and not row.tests
    ]
    problems += [
        f"{row.identifier} is {row.status}, but `make test` runs none of its tests: leave one without the mark thorough"
        for row in rows
        if row.status != "planned" and "later" in row.runs and "quick" not in row.runs
    ]
    return Report(rows, problems)


def read_page(page: Path) -> tuple[list[Row], list[str]]:
    """Read the rows of every table on the page; a row there twice or an unknown status is a problem."""
    if not page.is_file():
        return [], [f"{page} does not exist"]
    rows: dict[str, Row] = {}
    problems: list[str] = []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        if not (match := ROW.match(line)):
            continue
        row = Row(match["identifier"], match["status"], match["sentence"])
        if row.status not in STATUSES:
            known = ", ".join(STATUSES)
            problems.append(
                f"{page.name}:{number}: {row.identifier} has status {row.status!r}, which is none of {known}"
            )
        if row.identifier in rows:
            problems.append(f"{page.name}:{number}: {row.identifier} is there twice")
        rows[row.identifier] = row
    if not rows:
        problems.append(f"{page} has no rows of the form | T1 | held | sentence |")
    return list(rows.values()), problems


def read_tests(root: Path) -> tuple[list[Claim], list[str]]:
    """Collect what the test files claim, in the order of their paths."""
    claims: list[Claim] = []
    problems: list[str] = []
    for path in sorted((root / "tests").rglob("test_*.py")):
        scan = FileScan(path.relative_to(root).as_posix())
        scan.read(ast.parse(path.read_text(encoding="utf-8"), filename=str(path)))
        claims += scan.claims
        problems += scan.problems
    return claims, problems


class FileScan:
    """What one test file claims. Collects as pytest does: `test_*` functions, also in `Test*` classes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.claims: list[Claim] = []
        self.problems: list[str] = []

    def read(self, module: ast.Module) -> None:
        marks = list(marks_in(assigned_marks(module.body)))
        self._read_body(module.body, self.name, marks)

    def _read_body(self, body: Sequence[ast.stmt], prefix: str, inherited: list[ast.expr]) -> None:
        for statement in body:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                self._read_function(statement, prefix, inherited)
            elif isinstance(statement, ast.ClassDef):
                self._read_class(statement, prefix, inherited)

    def _read_class(self, node: ast.ClassDef, prefix: str, inherited: list[ast.expr]) -> None:
        own = [*marks_in(node.decorator_list), *marks_in(assigned_marks(node.body))]
        name = f"{prefix}::{node.name}"
        if node.name.startswith("Test"):
            self._read_body(node.body, name, [*inherited, *own])
        elif any(mark_name(mark) == "contract" for mark in own):
            self.problems.append(f"{name} has a contract mark, but pytest collects only classes named Test…")

    def _read_function(self, node: Function, prefix: str, inherited: list[ast.expr]) -> None:
        own = list(marks_in(node.decorator_list))
        name = f"{prefix}::{node.name}"
        if not node.name.startswith("test_"):
            if any(mark_name(mark) == "contract" for mark in own):
                self.problems.append(f"{name} has a contract mark, but it is not a test")
            return
        marks = [*inherited, *own]
        rows = self._rows(marks, name)
        names = {mark_name(mark) for mark in outright(marks, node)}
        if not names & VOID_MARKS:
            runs: Literal["quick", "later", "program"] = (
                "program" if PROGRAM_MARK in names else "later" if names & LATER_MARKS else "quick"
            )
            self.claims += [Claim(row, name, runs) for row in dict.fromkeys(rows)]

    def _rows(self, marks: Iterable[ast.expr], name: str) -> list[str]:
        rows: list[str] = []
        for mark in marks:
            if mark_name(mark) != "contract":
                continue
            arguments = mark.args if isinstance(mark, ast.Call) else []
            if not arguments:
                self.problems.append(f"{name} has a contract mark that names no row")
            for argument in arguments:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    rows.append(argument.value)
                else:
                    self.problems.append(f"{name} names a row as {ast.unparse(argument)}: write it as a plain string")
        return rows


def assigned_marks(body: Iterable[ast.stmt]) -> Iterator[ast.expr]:
    """Yield what `pytestmark` is set to in a module or class body."""
    for statement in body:
        if isinstance(statement, ast.Assign):
            targets: list[ast.expr] = statement.targets
        elif isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        else:
            continue
        if statement.value and any(isinstance(t, ast.Name) and t.id == "pytestmark" for t in targets):
            yield statement.value


def marks_in(expressions: Iterable[ast.expr]) -> Iterator[ast.expr]:
    """Yield every mark inside the expressions: in lists, and in the `marks=` of a parametrized case."""
    for expression in expressions:
        called = {id(node.func) for node in ast.walk(expression) if isinstance(node, ast.Call)}
        for node in ast.walk(expression):
            if isinstance(node, ast.expr) and id(node) not in called and mark_name(node):
                yield node


def mark_name(node: ast.expr) -> str | None:
    """Give the mark's name for `pytest.mark.name`, `mark.name` and calls of these; None for anything else."""
    target = node.func if isinstance(node, ast.Call) else node
    if not isinstance(target, ast.Attribute):
        return None
    owner = target.value
    is_mark = (isinstance(owner, ast.Attribute) and owner.attr == "mark") or (
        isinstance(owner, ast.Name) and owner.id == "mark"
    )
    return target.attr if is_mark else None


def outright(marks: Iterable[ast.expr], node: Function) -> list[ast.expr]:
    """Leave out marks on single parametrized cases: those void one case, not the test."""
    inside_cases = {
        id(inner)
        for decorator in node.decorator_list
        if mark_name(decorator) == "parametrize"
        for inner in ast.walk(decorator)
        if inner is not decorator
    }
    return [mark for mark in marks if id(mark) not in inside_cases]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tools.contracts", description="Contract rows and their tests.")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.add_argument("--root", type=Path, default=Path(), help="the repository; default is where you are")
    options = parser.parse_args(arguments)
    report = compare(options.root)
    print(report.as_json() if options.json else report.as_text())
    for problem in report.problems:
        print(f"problem: {problem}", file=sys.stderr)
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
