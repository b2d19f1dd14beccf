"""Public names are documented, listed on the reference page, and the only ones that documents use."""

import ast
import re
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.programs import REPOSITORY
from tools import public_names, reference

BLOCK = re.compile(r"^[ \t]*```python[^\n]*\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)
DOCUMENTS = sorted(
    [
        REPOSITORY / "README.md",
        REPOSITORY / "PROTOCOL.md",
        *(REPOSITORY / "docs").rglob("*.md"),
        *(REPOSITORY / "systems").glob("*/README.md"),
    ]
)

GUIDES = [REPOSITORY / "README.md", REPOSITORY / "PROTOCOL.md", *sorted((REPOSITORY / "docs" / "guides").glob("*.md"))]
MENTIONED = re.compile(r"(?<![\w./-])aftercommit(?:\.[A-Za-z_]\w*)+")


def imports_in(source: str) -> Iterator[tuple[str, str | None]]:
    """Every import of aftercommit: the module, and the name that is taken from it."""
    for node in ast.walk(ast.parse(textwrap.dedent(source).replace("…", "..."))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names if alias.name.split(".")[0] == "aftercommit")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "aftercommit":
            yield from ((node.module or "", alias.name) for alias in node.names)


def not_public(source: str) -> list[str]:
    """The imports that no user should write."""
    return [
        f"from {module} import {name}" if name else f"import {module}"
        for module, name in imports_in(source)
        if module not in public_names.PACKAGES or (name is not None and name not in public_names.exported(module))
    ]


def snippets(document: Path) -> list[str]:
    return BLOCK.findall(document.read_text(encoding="utf-8"))


def test_the_reference_is_what_the_code_says():
    assert reference.difference() == "", "run `make reference`"


def test_public_names_are_documented_and_their_signatures_name_public_types():
    assert public_names.problems() == []


@pytest.mark.thorough
def test_every_exception_is_still_needed(monkeypatch: pytest.MonkeyPatch):
    internal = public_names.INTERNAL_TYPES
    monkeypatch.setattr(public_names, "INTERNAL_TYPES", {})
    named = {problem.split(" names ")[1].split(",")[0] for problem in public_names.not_public_types()}

    assert named == set(internal)


def test_a_name_without_a_docstring_or_with_a_private_type_is_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(public_names, "PACKAGES", ("tests.support.undocumented",))
    monkeypatch.setattr(public_names, "ROOT", "tests.support.undocumented")
    public_names.public_names.cache_clear()
    try:
        found = public_names.problems()
    finally:
        public_names.public_names.cache_clear()

    assert found == [
        "tests.support.undocumented.Bare has no docstring",
        "tests.support.undocumented.Bare.go has no docstring",
        "tests.support.undocumented.LIMIT has no docstring",
        "tests.support.undocumented.make names Hidden, which no public package exports",
    ]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_snippets_use_public_names_only(document: Path):
    assert [line for snippet in snippets(document) for line in not_public(snippet)] == []


def test_systems_use_public_names_only():
    """A system is written as a user's service is."""
    files = sorted((REPOSITORY / "systems").rglob("*.py"))
    found = {str(path.relative_to(REPOSITORY)): not_public(path.read_text(encoding="utf-8")) for path in files}

    assert files
    assert {path: imports for path, imports in found.items() if imports} == {}


def test_a_package_that_is_not_public_is_closed_to_systems():
    """Whoever adds a room says in `pyproject.toml` whether systems may import it."""
    contracts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    (contract,) = [each for each in contracts["contracts"] if each["name"] == "systems use public packages"]
    folder = REPOSITORY / "src" / "aftercommit"
    rooms = {path.stem for path in folder.iterdir() if path.suffix in ("", ".py") and path.name[0] != "_"}
    public = {package.split(".")[1] for package in public_names.PACKAGES[1:]}

    assert {pattern.split(".")[1] for pattern in contract["forbidden_modules"]} == rooms - {"errors"}
    assert {pattern.split(".")[1] for pattern in contract["forbidden_modules"] if "*" not in pattern} == rooms - public


def test_a_deeper_import_in_a_snippet_is_found():
    snippet = "from aftercommit.feed.app import FeedApp\nfrom aftercommit import Database, no_such_name"

    assert not_public(snippet) == ["from aftercommit.feed.app import FeedApp", "from aftercommit import no_such_name"]


@pytest.mark.parametrize("document", GUIDES, ids=lambda path: path.name)
def test_names_that_guides_mention_are_public(document: Path):
    """`aftercommit.feed.service(…)` in a sentence is an import that somebody will write."""
    spans = re.findall(r"`[^`\n]+`", document.read_text(encoding="utf-8"))
    mentioned = [name for span in spans if "python -m" not in span for name in MENTIONED.findall(span)]

    assert [name for name in mentioned if not is_public(name)] == []


def is_public(dotted: str) -> bool:
    """Whether it is a public package, a name of one, or something that such a name has."""
    parts = dotted.split(".")
    package = max((each for each in public_names.PACKAGES if f"{dotted}.".startswith(f"{each}.")), key=len)
    rest = parts[package.count(".") + 1 :]
    return not rest or rest[0] in public_names.exported(package)


def test_modules_of_the_package_import_each_other():
    """A name comes from the module that defines it, so that import-linter sees which room is really used."""
    rooms = [f"aftercommit.{room}" for room in ("access", "feed", "http", "operate", "postgres", "redaction", "server")]
    exported = {(room, name) for room in rooms for name in public_names.exported(room)}
    found = [
        f"{path.relative_to(REPOSITORY)}: from {module} import {name}"
        for path in sorted((REPOSITORY / "src").rglob("*.py"))
        if any(f"from {room} import" in (text := path.read_text(encoding="utf-8")) for room in rooms)
        for module, name in imports_in(text)
        if (module, name) in exported
    ]

    assert found == []


def test_the_feed_of_the_readme_needs_two_imports_from_aftercommit():
    (feed,) = [snippet for snippet in snippets(REPOSITORY / "README.md") if "FeedApp(" in snippet]

    assert len({module for module, _ in imports_in(feed)}) <= 2


def test_what_an_extra_is_needed_for_is_imported_on_first_use():
    """Who declares feeds, and publishes, pays for neither JWT nor an HTTP server."""
    program = """
import sys
import aftercommit, aftercommit.access, aftercommit.feed, aftercommit.http, aftercommit.operate, aftercommit.server
print(sorted({name.partition(".")[0] for name in sys.modules} & {"jwt", "starlette", "uvicorn", "httpx", "pytest"}))
from aftercommit.feed import FeedApp, TokenKeys
print(FeedApp.__name__, TokenKeys.__name__)
try:
    from aftercommit.feed import Nothing
except ImportError as problem:
    print(problem.name)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert ran.stdout.splitlines() == ["[]", "FeedApp TokenKeys", "aftercommit.feed"], ran.stderr
