"""Our programs in processes that are forked: what they import takes half a second, and tests start them by the hundred.

`python -m tests.support.forked DESCRIPTOR` imports it once and then forks a process for each request on its socket,
with an environment, a folder and pipes of its own. Nothing but imports happens before the fork.
"""

import array
import gc
import importlib
import json
import math
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TextIO

REPOSITORY: Final = Path(__file__).resolve().parents[2]
# What our programs have in common, with what serves HTTP.
IMPORTED: Final = (
    "aftercommit.cli",
    "aftercommit.feed.app",
    "aftercommit.access.bearer",
    "aftercommit.feed.app.service",
    "aftercommit.server.http_server",
    "uvicorn.protocols.http.httptools_impl",
    "uvloop",
)
_LENGTH: Final = struct.Struct("!I")
_lock = threading.Lock()
_nursery: list[socket.socket] = []


class Forked:
    """A running program, with as much of `subprocess.Popen` as its users need."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        *,
        errors: int | None = None,
    ) -> None:
        """Start `python -m MODULE ARGUMENTS…`. Its stderr is a pipe too, unless `errors` says where it goes."""
        (out, told_out), (self._status, status) = os.pipe(), os.pipe()
        err, told_err = os.pipe() if errors is None else (os.open(os.devnull, os.O_RDONLY), os.dup(errors))
        request = {"module": module, "arguments": arguments, "folder": str(folder), "environment": dict(environment)}
        handed = array.array("i", [told_out, told_err, status])
        with _lock:
            if not _nursery:
                _nursery.append(_start())
            data = json.dumps(request).encode()
            _nursery[0].sendmsg([_LENGTH.pack(len(data))], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, handed)])
            _nursery[0].sendall(data)
        for end in handed:
            os.close(end)
        self.stdout: TextIO = os.fdopen(out)
        self.stderr: TextIO = os.fdopen(err)
        self.pid = int(self._line())
        self.returncode: int | None = None
        self._asking = threading.Lock()

    def close(self) -> None:
        """Read no more of what it says."""
        self.stdout.close()
        self.stderr.close()

    def poll(self) -> int | None:
        """Its exit status, once it has ended; negative when a signal ended it."""
        # One thread may wait for its end while another sends it a signal: what the keeper says is read once.
        with self._asking:
            if self.returncode is None and _is_readable(self._status, 0.0):
                self.returncode = int(self._line())
                os.close(self._status)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status; it has to end in time."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            # Another thread may have heard of it first.
            _is_readable(self._status, min(left, 1.0))
        return status

    def send_signal(self, number: int) -> None:
        """Unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _line(self) -> bytes:
        """What its keeper says next."""
        said = b""
        while not said.endswith(b"\n"):
            byte = os.read(self._status, 1)
            assert byte, "the program could not be forked: tests.support.forked has ended"
            said += byte
        return said


def _is_readable(descriptor: int, seconds: float) -> bool:
    """Whether there is something to be read within so long; of more descriptors than `select` has room for."""
    watched = select.poll()
    watched.register(descriptor, select.POLLIN)
    return bool(watched.poll(seconds * 1000))


def _start() -> socket.socket:
    """The process that programs are forked from; it ends when the last one who could ask it is gone."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "tests.support.forked", str(theirs.fileno())]
    with theirs:
        nursery = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
    # It is not waited for; without a return code Popen would warn about that.
    nursery.returncode = 0
    return ours


def serve(wire: socket.socket) -> dict[str, Any] | None:
    """Fork for each request. Returns in each program with its request, and in the end None."""
    for module in IMPORTED:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    # Keepers are not waited for.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        length, ancillary, _, _ = wire.recvmsg(_LENGTH.size, socket.CMSG_SPACE(3 * array.array("i").itemsize))
        if not length:
            return None
        data = wire.recv(_LENGTH.unpack(length)[0], socket.MSG_WAITALL)
        handed = array.array("i", b"".join(part for _, _, part in ancillary)).tolist()
        if os.fork() == 0:
            wire.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _keep(*handed)
            return {**json.loads(data), "out": handed[0], "err": handed[1]}
        for end in handed:
            os.close(end)


def _keep(out: int, err: int, status: int) -> None:
    """Fork once more, return in the child, and tell its end."""
    child = os.fork()
    if child == 0:
        os.close(status)
        return
    os.close(out)
    os.close(err)
    os.write(status, f"{child}\n".encode())
    # Told before it is reaped: as long as nobody has heard of its end, its number is nobody else's.
    how = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert how is not None
    ended = how.si_status if how.si_code == os.CLD_EXITED else -how.si_status
    os.write(status, f"{ended}\n".encode())
    os.waitpid(child, 0)
    os._exit(0)


def become(request: dict[str, Any]) -> None:
    """Be the program."""
    for descriptor, source in ((0, os.open(os.devnull, os.O_RDONLY)), (1, request["out"]), (2, request["err"])):
        os.dup2(source, descriptor)
        os.close(source)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    # As `python -m` has it.
    sys.path[0] = request["folder"]
    sys.argv = ["-m", *request["arguments"]]
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    asked = serve(socket.socket(fileno=int(sys.argv[1])))
    if asked is not None:
        become(asked)
