"""One name, one meaning: no class name twice, a unit in every setting, and a module called after its only class."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "src" / "aftercommit"

TWICE = {
    "Body": "the form of a page in feeds, and the JSON that a system is sent",
    "Entry": "an event in a feed, and a line of a task's history: no file uses both",
    "Link": "a chat that follows a user, and a link on a system's start page: no file uses both",
    "MigrateOutbox": "the same operation, for Alembic and for Django",
    "Migration": "Django prescribes it, one in each file",
    "NotThere": "each system has its own, in errors.py",
    "People": "the table of users, and the part of it that routing needs",
    "State": "the state of a follower, and of a task: no file uses both",
    "Story": "each system has its own",
    "Traffic": "each system has its own, in sample.py",
    "Wire": "the same thing at both ends: what a feed declares, and what its client is told",
}

# A unit, a rate, or a word that says what is counted: `max_strands`, `carriers`, `max_payload_bytes`.
UNIT = re.compile(
    r"(^|_)(seconds|days|ms|milliseconds|bytes|count|factor|size|timeout)$|(^|_)per_|(?<!s)s$",
)
SETTINGS = re.compile(r"(Settings|Options|Times|Limits|Caps|Pace|Pacing)$")
NUMBER = re.compile(r"\b(int|float)\b")
# Numbers that measure nothing.
NO_MEASURE = {
    "after",
    "index",
    "number",
    "of",
    "offset",
    "port",
    "seed",
    "since",
    "started_at",
    "status",
    "to",
    "version",
}

WITHOUT_UNIT = {
    "BotApiLimits.burst": "messages, like the two beside it; Telegram's own word",
    "BotApiLimits.overall": "messages in a window",
    "Cors.max_age": "the header's own name, Access-Control-Max-Age",
    "Count.least": "a bound of whatever the option counts",
    "Count.most": "a bound of whatever the option counts",
    "FeedAddress.limit": "the query parameter's own name",
    "Limits.default": "items of a page; the query parameter is called limit",
    "Limits.least": "items of a page",
    "Limits.most": "items of a page",
    "LookBudget.length": "of a text, as len() has it",
    "Number.least": "a bound of whatever the option measures",
    "Number.most": "a bound of whatever the option measures",
    "Pacing.overall": "messages in a second, as Telegram's limits are told",
    "ReadOptions.limit": "the query parameter's own name",
    "RecentLines.least": "a level of logging",
    "ReplayOptions.expected": "the number of items that the operator saw",
    "ReplayPace.chunk": "items fed in one transaction",
    "ReplayPace.fed": "items so far: what is counted, not a setting",
    "ReplayPace.most_under_way": "items",
    "ReplayPace.most_untried": "items",
    "Seconds.least": "in the name of the class",
    "Seconds.most": "in the name of the class",
    "Trickle.rate": "events in a second, for the example alone",
}
# The cases of conformance/machine.yaml, which every client runs, call the fields of a pace so. All are seconds.
PACE_IN_SECONDS = {"answer", "backoff", "bye", "bye_longest", "bye_shortest", "first_bytes", "idle_longest", "jitter"}
PACE_IN_SECONDS |= {"limited_longest", "longest", "poll", "probe", "silence", "spread", "steady"}

CALLED_OTHERWISE = {
    "contrib/django/apps.py": "Django prescribes it",
    "contrib/django/management/commands/aftercommit.py": "Django calls a command by its file",
    "outbox/declaration.py": "an outbox is declared there; the package is called after the class",
    "postgres/listen.py": "PostgreSQL's LISTEN",
    "schema/lock_retry.py": "the retrier of locks",
    "testing/outbox_suite.py": "the suite of an outbox, beside transport_suite",
}


@cache
def trees(folder: str) -> list[tuple[Path, ast.Module]]:
    files = sorted((REPOSITORY / folder).rglob("*.py"))
    return [(path, ast.parse(path.read_text(encoding="utf-8"))) for path in files]


def test_a_class_name_means_one_thing():
    places = defaultdict(list)
    for path, tree in [*trees("src"), *trees("systems")]:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(path.relative_to(REPOSITORY).as_posix())

    assert {name: where for name, where in places.items() if len(where) > 1 and name not in TWICE} == {}


def numbers_of(node: ast.ClassDef) -> Iterator[str]:
    """What one sets with a number: fields of settings, and parameters of a constructor."""
    for part in node.body:
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name) and SETTINGS.search(node.name):
            if is_number(part.annotation):
                yield part.target.id
        elif isinstance(part, ast.FunctionDef) and part.name == "__init__":
            for given in (*part.args.args, *part.args.kwonlyargs):
                if given.annotation is not None and is_number(given.annotation):
                    yield given.arg


def is_number(annotation: ast.expr) -> bool:
    """`int`, `float` or one of them or None; not what only has a number in it."""
    said = ast.unparse(annotation)
    return NUMBER.search(said) is not None and not re.search(r"[\[(]|Literal", said)


def test_a_setting_says_its_unit():
    found = {
        f"{node.name}.{name}"
        for path, tree in trees("src")
        if path.name != "errors.py"
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and not is_error(node)
        for name in numbers_of(node)
        if not UNIT.search(name) and name not in NO_MEASURE and not name.endswith("_id")
        if not (node.name == "Pace" and name in PACE_IN_SECONDS)
    }

    assert found == WITHOUT_UNIT.keys()


def is_error(node: ast.ClassDef) -> bool:
    """An error is given what happened; there is nothing to set."""
    return any(re.search(r"(Error|Exception|Problem|Failed)$", ast.unparse(base)) for base in node.bases)


@pytest.mark.parametrize(("name", "is_said"), [("lease", False), ("lease_seconds", True), ("most_strands", True)])
def test_a_unit_is_recognised(name: str, is_said: bool):
    assert bool(UNIT.search(name)) is is_said


def test_a_module_with_one_class_is_called_after_it():
    """Or after a part of its name, where the package says the other: `repair/session.py` has RepairSession."""
    found = {
        path.relative_to(PACKAGE).as_posix(): classes[0]
        for path, tree in trees("src")
        if path.is_relative_to(PACKAGE) and path.name != "__init__.py" and "migrations" not in path.parts
        if len(classes := public_classes(tree)) == 1 and not is_called_after(path.stem, classes[0])
    }

    assert found.keys() == CALLED_OTHERWISE.keys()


def public_classes(tree: ast.Module) -> list[str]:
    """Those of a module that has nothing else to offer; a module of functions is called after what they do."""
    public = [
        node
        for node in tree.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_")
    ]
    return [node.name for node in public] if all(isinstance(node, ast.ClassDef) for node in public) else []


def is_called_after(stem: str, name: str) -> bool:
    words = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
    return words == stem or words.startswith(f"{stem}_") or words.endswith(f"_{stem}")
