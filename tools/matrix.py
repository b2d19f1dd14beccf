"""Runs the tests on every Python and PostgreSQL that the README promises. CI calls it after the whole suite.

`make test-all` runs the whole suite on one of each (WHOLE). Here the tests in FOLDERS run on the others (PARTS): each
interpreter and each server once. Of an interpreter the oldest patch release that is found on this machine is taken,
because bugs are fixed in later ones. What is promised and not found is a failure.

    .venv/bin/python -m tools.matrix            all of them
    .venv/bin/python -m tools.matrix 3.12       one of them
"""

import hashlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import click

from aftercommit.embedded.account import choose_account
from aftercommit.testing.postgres import SETTINGS_FOR_TESTS

ROOT: Final = Path(__file__).resolve().parents[1]
ENVIRONMENTS: Final = ROOT / "build" / "matrix"
FOLDERS: Final = ("tests/unit", "tests/contracts", "tests/feed")
# Both come with the embedded package; others are servers of the machine.
EMBEDDED: Final = (16, 18)
NEWEST: Final = max(EMBEDDED)
WORKERS: Final = "4"

Version = tuple[int, ...]


class Run(NamedTuple):
    """An interpreter and a server that tests run on together."""

    python: str
    postgres: int


class Missing(Exception):
    """The machine lacks something that is promised."""


WHOLE: Final = Run("3.11", 18)
PARTS: Final = (Run("3.11", 15), Run("3.12", 16), Run("3.13", 18))


def interpreters() -> dict[Version, Path]:
    """Every Python 3 on this machine, by its version: those on the path, the system's own and those of pyenv."""
    folders = [*os.get_exec_path(), "/usr/bin", "/usr/local/bin"]
    found = [path for folder in folders for path in Path(folder).glob("python3*")]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    found += sorted((pyenv / "versions").glob("*/bin/python3"))
    known: dict[Version, Path] = {}
    for path in dict.fromkeys(found):
        # A script of pyenv runs whatever is chosen in this folder; an environment has packages of its own.
        if path.name.rstrip("0123456789.") != "python" or path.parent.name == "shims" or _in_environment(path):
            continue
        if version := _version_of(path):
            known.setdefault(version, path)
    return known


def _in_environment(path: Path) -> bool:
    return (path.parent.parent / "pyvenv.cfg").exists()


def _version_of(path: Path) -> Version | None:
    asked = [str(path), "-c", "import sys; print(*sys.version_info[:3])"]
    try:
        told = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True).stdout
        return tuple(map(int, told.split()))
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def oldest(python: str, known: Mapping[Version, Path]) -> tuple[Version, Path]:
    """The oldest release of `3.12` that there is."""
    wanted = tuple(map(int, python.split(".")))
    fitting = [version for version in known if version[: len(wanted)] == wanted]
    if not fitting:
        raise Missing(f"Python {python} is promised and not installed on this machine")
    return min(fitting), known[min(fitting)]


def environment_for(version: Version, interpreter: Path) -> Path:
    """A virtual environment with what requirements/dev.lock pins, made once; its Python."""
    folder = ENVIRONMENTS / ".".join(map(str, version))
    python, stamp = folder / "bin" / "python", folder / "installed"
    pinned = b"".join((ROOT / name).read_bytes() for name in ("requirements/dev.lock", "pyproject.toml"))
    fresh = hashlib.sha256(pinned).hexdigest()
    if stamp.exists() and stamp.read_text() == fresh:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    # Debian's own Python comes without pip; ours installs for it.
    subprocess.run([str(interpreter), "-m", "venv", "--without-pip", str(folder)], check=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "--python", str(python), "install"]
    subprocess.run([*pip, "--require-hashes", "-r", "requirements/dev.lock"], cwd=ROOT, check=True)
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", "-e", "."], cwd=ROOT, check=True)
    stamp.write_text(fresh)
    return python


@contextmanager
def server(version: int) -> Iterator[dict[str, str]]:
    """A server of this version while the block runs, as the environment variables that lead tests to it."""
    if version in EMBEDDED:
        yield {"AFTERCOMMIT_TEST_POSTGRES": str(version)}
        return
    programs = next(iter(Path("/usr/lib/postgresql").glob(f"{version}/bin")), None)
    if programs is None:
        raise Missing(f"PostgreSQL {version} is promised and not installed: apt install postgresql-{version}")
    folder = Path(tempfile.mkdtemp(prefix="aftercommit-matrix-"))
    folder.chmod(0o755)
    data = folder / "data"
    data.mkdir(mode=0o700)
    # PostgreSQL refuses to run as root.
    account = choose_account(data, programs)
    account.take_over(data)
    port = _free_port()
    settings = {**SETTINGS_FOR_TESTS, "listen_addresses": "127.0.0.1", "unix_socket_directories": "", "port": str(port)}
    options = " ".join(f"-c {name}={value!r}" for name, value in settings.items())
    control: list[str | Path] = [programs / "pg_ctl", "-D", data, "-w"]
    try:
        _must(account.run([programs / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-N", "-E", "UTF8"]))
        _must(account.run([*control, "-l", data / "log", "-o", options, "start"]))
        try:
            yield {"DATABASE_URL": f"postgresql://postgres@127.0.0.1:{port}/postgres"}
        finally:
            account.run([*control, "-m", "immediate", "stop"])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _must(answer: tuple[int, str]) -> None:
    status, told = answer
    if status:
        raise Missing(f"PostgreSQL does not start: {told.strip()[-500:]}")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def calls(postgres: int) -> Iterator[Sequence[str]]:
    """What pytest is asked to run on this server: on others than the newest, all that depends on the server too."""
    yield (*FOLDERS, "-m", "not long")
    if postgres != NEWEST:
        yield ("tests/postgres", "-m", "not long and not newest")


def passes(run: Run, known: Mapping[Version, Path]) -> bool:
    """Run the tests of one part; whether all passed."""
    version, interpreter = oldest(run.python, known)
    click.echo(f"Python {'.'.join(map(str, version))} ({interpreter}) with PostgreSQL {run.postgres}")
    python = environment_for(version, interpreter)
    inherited = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    passed = True
    for arguments in calls(run.postgres):
        # A server of its own for each: what one call leaves behind does not slow the other down.
        with server(run.postgres) as address:
            variables = {**inherited, **address, "PYTHONDONTWRITEBYTECODE": ""}
            command = [str(python), "-m", "pytest", "-q", "-n", WORKERS, "--dist", "worksteal", *arguments]
            passed &= subprocess.run(command, cwd=ROOT, env=variables, check=False).returncode == 0
    return passed


@click.command()
@click.argument("pythons", nargs=-1)
def main(pythons: Sequence[str]) -> None:
    """Run the parts, or those of some PYTHONS, one after another; end with 1 if one failed."""
    chosen = [run for run in PARTS if not pythons or run.python in pythons]
    known, lines = interpreters(), []
    if "{}.{}".format(*sys.version_info) != WHOLE.python:
        lines.append(f"the whole suite is promised on Python {WHOLE.python} and runs on {sys.version.split()[0]}")
    for run in chosen:
        begin = time.monotonic()
        try:
            outcome = "" if passes(run, known) else "failed"
        except Missing as missing:
            outcome = str(missing)
        if outcome:
            lines.append(f"Python {run.python} with PostgreSQL {run.postgres}: {outcome}")
        click.echo(f"Python {run.python} with PostgreSQL {run.postgres}: {(time.monotonic() - begin) / 60:.1f} minutes")
    for line in lines:
        click.echo(line, err=True)
    sys.exit(1 if lines else 0)


if __name__ == "__main__":
    main()
