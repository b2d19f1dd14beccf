"""The house rules that a machine can check: sizes, docstrings, no leftovers, no addresses in locks."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCE = REPOSITORY / "src"
SYSTEMS = REPOSITORY / "systems"

LONGEST_FILE = 400
LONGEST_FUNCTION = 60

# Written by `make schema`, read by people only as a diff.
GENERATED = {"aftercommit/schema/schema.sql"}

LOCK_NAMES = ("*.lock", "package-lock.json", "npm-shrinkwrap.json", "pnpm-lock.yaml")
ADDRESS = re.compile(r"https?://|^--?(f|i|find-links|(extra-)?index-url|trusted-host)\b")
FOREIGN = {".venv", ".git", "build", "node_modules", ".aftercommit"}


def source_files(*suffixes: str) -> Iterator[Path]:
    for path in sorted([*SOURCE.rglob("*"), *SYSTEMS.rglob("*")]):
        if path.suffix in suffixes and "__pycache__" not in path.parts:
            yield path


def short(path: Path) -> str:
    return path.relative_to(SOURCE if path.is_relative_to(SOURCE) else REPOSITORY).as_posix()


def test_no_file_is_too_long_to_be_read_in_one_sitting():
    lengths = {
        short(path): len(path.read_text(encoding="utf-8").splitlines())
        for path in source_files(".py", ".sql")
        if short(path) not in GENERATED
    }

    assert {name: length for name, length in lengths.items() if length > LONGEST_FILE} == {}


def test_no_function_is_too_long_to_be_seen_at_once():
    too_long = {}
    for path in source_files(".py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > LONGEST_FUNCTION:
                    too_long[f"{short(path)}:{node.lineno} {node.name}"] = length

    assert too_long == {}


def test_no_work_is_left_as_a_note():
    note = re.compile(r"\b(TODO|FIXME|XXX)\b")
    found = [
        f"{short(path)}:{number}: {line.strip()}"
        for path in source_files(".py", ".sql", ".pyi", ".toml")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if note.search(line)
    ]

    assert found == []


def test_every_package_says_what_it_is_for():
    packages = {path.parent for path in source_files(".py")} - {SOURCE}
    undocumented = [short(package) for package in sorted(packages) if not package_docstring(package)]

    assert undocumented == []


def package_docstring(package: Path) -> str | None:
    opening = package / "__init__.py"
    return ast.get_docstring(ast.parse(opening.read_text(encoding="utf-8"))) if opening.is_file() else None


def test_lock_files_hold_no_addresses():
    locks = sorted(
        path
        for pattern in LOCK_NAMES
        for path in REPOSITORY.rglob(pattern)
        if not FOREIGN.intersection(path.relative_to(REPOSITORY).parts)
    )
    found = [
        f"{path.relative_to(REPOSITORY)}:{number}"
        for path in locks
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if ADDRESS.search(line) or re.search(r"^--?(f|i|find-links|(extra-)?index-url|trusted-host)\b", line)
    ]

    assert {REPOSITORY / "requirements" / f"{name}.lock" for name in ("run", "dev", "node")} <= set(locks)
    assert found == []
