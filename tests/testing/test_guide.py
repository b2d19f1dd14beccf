"""The guide's examples are programs: each runs as it stands, in a pytest that is not ours."""

import os
import re
import subprocess
import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from aftercommit.testing.postgres import PostgresServerForTests

REPOSITORY = Path(__file__).resolve().parents[2]
GUIDE = REPOSITORY / "docs" / "guides" / "testing.md"
MYPY_CACHE = REPOSITORY / ".mypy_cache" / "guide"
BLOCK = re.compile(r"^```(\w+)(?: (file|output-of)=(\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Examples that show what goes wrong, or that want a plugin which must not be there for the others.
FAILING = "failing_test.py"
WITH_ASYNCIO = "test_asyncio.py"
WITH_ANYIO = "test_anyio.py"
SERVERS_OF_THEIR_OWN = ("test_my_transport.py", "test_my_connection.py", "test_without_fixtures.py", "test_network.py")

# Each of these tests is a whole run of pytest or mypy.
PATIENCE = 600
pytestmark = pytest.mark.timeout(PATIENCE)


def blocks(kind: str) -> dict[str, str]:
    """The guide's blocks that are files, or the output of one, by name."""
    return {name: text for _, found, name, text in BLOCK.findall(GUIDE.read_text()) if found == kind}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every file of the guide, as a reader would copy them."""
    folder = tmp_path_factory.mktemp("guide")
    for name, text in blocks("file").items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return folder


def run(project: Path, *arguments: str, server: PostgresServerForTests | None = None) -> "CompletedProcess[str]":
    """A pytest of its own, with nothing of ours in its environment but the server, where one is given."""
    ours = ("PYTEST_", "AFTERCOMMIT_", "DATABASE_URL", "COV_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    if server is not None:
        environment["AFTERCOMMIT_TEST_DSN"] = server.dsn
    # Plugins that are there for other tests of ours take longer to load than these tests take to run.
    without = [f"-pno:{name}" for name in ("cacheprovider", "randomly", "schemathesis", "faker")]
    command = [sys.executable, "-m", "pytest", *without, "-q", *arguments]
    return subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, timeout=PATIENCE - 10, check=False
    )


def passes(project: Path, *arguments: str, server: PostgresServerForTests | None = None) -> str:
    ran = run(project, *arguments, server=server)
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]
    return ran.stdout


def test_every_example_is_a_file_that_is_run() -> None:
    """Nothing in the guide that looks like code is left out of these tests."""
    unnamed = [text for language, kind, _, text in BLOCK.findall(GUIDE.read_text()) if not kind and language != "sh"]
    assert unnamed == []


@pytest.mark.thorough
def test_ordinary_examples_run_without_any_plugin_for_coroutines(project: Path) -> None:
    others = {FAILING, WITH_ASYNCIO, WITH_ANYIO, *SERVERS_OF_THEIR_OWN}
    names = [name for name in blocks("file") if name.startswith("test_") and name not in others]
    assert len(names) >= 6
    passes(project, "-p", "no:asyncio", "-p", "no:anyio", *names)


@pytest.mark.thorough
def test_the_django_example_runs(project: Path) -> None:
    passes(project, "-p", "no:asyncio", "django_project")


@pytest.mark.thorough
def test_examples_with_a_world_of_their_own_run(project: Path) -> None:
    said = passes(project, "-p", "no:asyncio", "-rA", *SERVERS_OF_THEIR_OWN)
    assert [name for name in SERVERS_OF_THEIR_OWN if f"PASSED {name}" not in said] == []


@pytest.mark.thorough
def test_the_example_for_pytest_asyncio_runs(project: Path, postgres_server: PostgresServerForTests) -> None:
    assert "1 passed" in passes(project, "-p", "no:anyio", WITH_ASYNCIO, server=postgres_server)


@pytest.mark.thorough
def test_the_example_for_anyio_runs(project: Path, postgres_server: PostgresServerForTests) -> None:
    assert "1 passed" in passes(project, "-p", "no:asyncio", WITH_ANYIO, server=postgres_server)


@pytest.mark.thorough
def test_a_failing_assertion_says_what_the_guide_says(project: Path, postgres_server: PostgresServerForTests) -> None:
    ran = run(project, FAILING, server=postgres_server)
    assert ran.returncode == 1, ran.stdout
    said = "\n".join(line.removeprefix("E").strip() for line in ran.stdout.splitlines())
    (expected,) = blocks("output-of").values()
    for line in expected.strip().splitlines():
        assert re.search(".+".join(map(re.escape, line.strip().split("…"))), said), f"{line!r} is not in:\n{said}"


@pytest.mark.thorough
def test_the_examples_have_complete_types(project: Path) -> None:
    """A user's mypy --strict finds nothing to say about code that uses the kit."""
    names = [name for name in blocks("file") if name.endswith(".py") and "django" not in name]
    # Kept from run to run: what the examples import is most of the work.
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(MYPY_CACHE), *names]
    ran = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=PATIENCE - 10, check=False)
    assert ran.returncode == 0, ran.stdout
