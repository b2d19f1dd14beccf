"""The README is short, its programs run as they stand, and links in the docs lead somewhere."""

import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO

import pytest

from tests.support.programs import CLEANED, kept_port, running

README = Path(__file__).parents[2] / "README.md"
OPERATING = README.parent / "docs" / "guides" / "operating.md"
MOST_WORDS = 700


def blocks(language: str, page: Path = README) -> list[str]:
    """The fenced blocks of one language, in order."""
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def test_the_readme_is_short_before_its_map() -> None:
    """Code counts too: a newcomer reads all of it."""
    before_the_map, heading, _ = README.read_text().partition("## Map of the tree")
    assert heading
    assert len(before_the_map.split()) <= MOST_WORDS


def run(program: Path, **environment: str) -> str:
    """What a program prints that a newcomer has saved and runs where it lies."""
    inherited = {key: value for key, value in os.environ.items() if key not in CLEANED}
    ran = subprocess.run(
        [sys.executable, str(program)],
        cwd=program.parent,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.thorough
def test_the_first_event_prints_what_the_readme_says_and_up_handles_one_more(tmp_path: Path) -> None:
    """A newcomer pastes the blocks into files: the first handles its own events, the other leaves that to `up`."""
    home = str(tmp_path / "home")
    first, more = tmp_path / "first.py", tmp_path / "more.py"
    first.write_text(blocks("python")[0])
    (publishing,) = [block for block in blocks("python", OPERATING) if "from first import OrderPlaced" in block]
    more.write_text(publishing)

    assert run(first, AFTERCOMMIT_HOME=home) == blocks("text")[0]
    with running("up", "--app", "first:outbox", "--interval", "0.2", folder=tmp_path, AFTERCOMMIT_HOME=home) as up:
        up.line("pending=", up.stdout)
        run(more, AFTERCOMMIT_HOME=home)
        up.line("handled o-4 of acme at position 3", up.stdout)
        up.send(signal.SIGTERM)
        assert up.ends() == 0, up


@pytest.mark.thorough
@pytest.mark.needs("make")
def test_a_terminated_make_up_leaves_nothing_running(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with kept_port(neighbours=2) as port:
        # What is installed and built is taken as it is.
        told = [f"BIN={Path(sys.executable).parent}", f"ARGS=--port {port} --rate 0", "-o", "web"]
        make = subprocess.Popen(
            ["make", "up", *told, "-o", ".venv/.installed-run"],
            cwd=README.parent,
            env={
                **{key: value for key, value in os.environ.items() if key not in CLEANED},
                "AFTERCOMMIT_HOME": str(home),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert make.stdout is not None
        with make.stdout as printed:
            seen = []
            for line in printed:
                seen.append(line)
                if "pending=" in line:
                    break
            started = _started_by(make.pid)
            try:
                make.terminate()
                # The end of the output is the end of everybody who could write to it.
                seen += _rest_of(printed, started)
            finally:
                make.wait(60)
        assert "PostgreSQL has stopped" in "".join(seen), "".join(seen)
        assert not list(home.rglob("postmaster.pid"))


def _started_by(process: int) -> list[int]:
    """The processes that this one has started, and those that they have."""
    children = [int(each) for each in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    return [each for child in children for each in (child, *_started_by(child))]


def _rest_of(printed: IO[str], started: list[int]) -> list[str]:
    """The lines to the end; if it does not come, the programs that were left are ended."""
    rest: list[str] = []
    reader = threading.Thread(target=lambda: rest.extend(printed), daemon=True)
    reader.start()
    reader.join(30)
    if reader.is_alive():
        for each in started:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGTERM)
        reader.join(60)
        pytest.fail("a program was left running")
    return rest


def test_every_link_of_the_docs_leads_somewhere() -> None:
    """Relative links name files that exist, and headings that the files have."""
    root = README.parent
    for page in [README, *root.glob("docs/**/*.md"), root / "CONTRIBUTING.md", root / "PROTOCOL.md"]:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for target, heading in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", text):
            if "://" in target:
                continue
            file = page.parent / target if target else page
            assert file.exists(), f"{page.name} links to {target}"
            assert not heading or heading in headings(file), f"{page.name} links to {target}#{heading}"


def headings(page: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them."""
    found = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in found}


def test_every_source_file_that_the_docs_name_exists() -> None:
    """A path in backticks starts at the root or in the package; a name without a folder may be an example's."""
    root = README.parent
    for page in [README, *root.glob("docs/**/*.md"), root / "CONTRIBUTING.md", root / "PROTOCOL.md"]:
        for path in re.findall(r"`([\w./-]+/[\w.-]+\.(?:py|sql|toml|lock))`", page.read_text()):
            found = any((folder / path).exists() for folder in (root, root / "src" / "aftercommit"))
            assert found or "NNNN" in path, f"{page.name} names {path}"
