"""The machine and the versions that figures were taken with; nothing that names whose machine it is."""

import importlib.metadata
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import psycopg

PACKAGES = (
    *("aftercommit", "psycopg", "asyncpg", "SQLAlchemy", "Django", "msgspec"),
    *("uvicorn", "uvloop", "Starlette", "FastAPI"),
)


def describe() -> dict[str, str]:
    """Processor, memory and system."""
    return {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "memory": f"{psutil.virtual_memory().total / (1 << 30):.0f} GiB",
        "system": f"{_system()}, {platform.machine()}",
    }


def versions(connection: psycopg.Connection[Any]) -> dict[str, str]:
    """Of Python, PostgreSQL and the libraries that take part."""
    row = connection.execute("show server_version").fetchone()
    found = {"Python": platform.python_version(), "PostgreSQL": str(row[0]).split()[0] if row else "unknown"}
    for package in PACKAGES:
        found[package] = importlib.metadata.version(package)
    return found


def _processor() -> str:
    for line in [*_lines_of("lscpu"), *_read(Path("/proc/cpuinfo"))]:
        name, _, value = line.partition(":")
        if name.strip().lower() == "model name" and value.strip():
            return value.strip()
    return platform.processor() or "unknown"


def _system() -> str:
    for line in _read(Path("/etc/os-release")):
        if line.startswith("PRETTY_NAME="):
            return f"{line.partition('=')[2].strip().strip(chr(34))}, {platform.system()} {_kernel()}"
    return f"{platform.system()} {_kernel()}"


def _kernel() -> str:
    """The kernel's version without what its builder added."""
    return platform.release().partition("-")[0]


def _lines_of(program: str) -> list[str]:
    if shutil.which(program) is None:
        return []
    return subprocess.run([program], capture_output=True, text=True, check=False).stdout.splitlines()


def _read(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
