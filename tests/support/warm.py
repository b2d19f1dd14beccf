"""A warm interpreter, for Python programs that tests run by the dozen: the imports that they share are done once.

`python -m tests.support.warm MODULE…` imports the modules and then forks a process for each line of JSON, which says
what to run, where and how, and is answered by a line with the exit status. So each program still has a process, an
environment and modules of its own; only what takes most of a second, again and again, is shared.
"""

import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

REPOSITORY = Path(__file__).resolve().parents[2]


class Warm:
    """An interpreter that has imported some modules, and runs programs as `python` would."""

    def __init__(self, *modules: str) -> None:
        """Started at once; what it needs of the environment comes with each program."""
        command = [sys.executable, "-m", "tests.support.warm", *modules]
        self._zygote = subprocess.Popen(
            command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def run(self, *command: str, folder: Path, environment: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
        """What `python COMMAND` prints and how it ends; the command is a file, or `-m` and a module, with arguments."""
        assert self._zygote.stdin is not None
        assert self._zygote.stdout is not None
        with tempfile.TemporaryDirectory(prefix="aftercommit-warm-") as printed:
            out, err = Path(printed, "out"), Path(printed, "err")
            request = {"command": command, "folder": str(folder), "environment": dict(environment)}
            self._zygote.stdin.write(json.dumps({**request, "out": str(out), "err": str(err)}) + "\n")
            self._zygote.stdin.flush()
            answer = self._zygote.stdout.readline()
            assert answer, "the warm interpreter has ended: one of its modules cannot be imported"
            return subprocess.CompletedProcess(command, int(answer), out.read_text(), err.read_text())

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Gone, with a program that may still run in it."""
        os.killpg(self._zygote.pid, signal.SIGKILL)
        self._zygote.communicate()


def serve(modules: list[str]) -> dict[str, Any] | None:
    """Fork for each request until there are no more. Returns twice: in each child with its request, at the end None."""
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        child = os.fork()
        if child == 0:
            return request
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        sys.stdout.write(f"{status}\n")
        sys.stdout.flush()
    return None


def become(request: dict[str, Any]) -> None:
    """Run the program in this process; like any other it ends by coming to its end."""
    for descriptor, path in ((0, os.devnull), (1, request["out"]), (2, request["err"])):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), descriptor)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[0] = request["folder"]
    program, *arguments = request["command"]
    if program == "-m":
        sys.argv = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [program, *arguments]
        runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    asked = serve(sys.argv[1:])
    if asked is not None:
        become(asked)
