"""A process that has imported everything and makes new ones by fork, in milliseconds: so kills are cheap.

Speaks JSON lines on the socket it is given. `{"play": part}` is answered by `{"id", "started": pid}`; deaths and stops
are told as `{"pid", "died": status}` and `{"pid", "stopped": true}`. When the other end is gone it kills all it made.
"""

import ctypes
import gc
import json
import logging
import os
import selectors
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

from tests.faults.actors import Part, play

PR_SET_PDEATHSIG = 1


class Brief(logging.Formatter):
    """Of a traceback the last line: most errors here were asked for."""

    def formatException(self, ei: Any) -> str:
        return "".join(traceback.format_exception_only(ei[1])).strip()


class Zygote:
    """The loop: requests from the socket, news from the kernel."""

    def __init__(self, wire: socket.socket) -> None:
        self._wire = wire
        self._children: set[int] = set()
        self._buffer = b""

    def run(self) -> None:
        news, bell = os.pipe()
        for end in (news, bell):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(bell, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # An interrupt from the keyboard is for the harness, which ends us in order.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # Orders may come before a child listens to them, or to one that takes none.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        gc.freeze()
        with selectors.DefaultSelector() as selector:
            selector.register(self._wire, selectors.EVENT_READ)
            selector.register(news, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is self._wire:
                        if not self._requests():
                            return
                    else:
                        os.read(news, 4096)
                        self._reap()

    def end(self) -> None:
        """Nobody is left who could want the children."""
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)
        for pid in self._children:
            os.waitpid(pid, 0)

    def _requests(self) -> bool:
        data = self._wire.recv(1 << 16)
        self._buffer += data
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            request = json.loads(line)
            self._tell({"id": request["id"], "started": self._fork(request["play"])})
        return bool(data)

    def _fork(self, part: dict[str, Any]) -> int:
        pid = os.fork()
        if pid:
            self._children.add(pid)
            return pid
        status = 1
        try:
            self._become(part)
            status = 0
        except BaseException:  # noqa: BLE001 - the last that this process does is to say why
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)

    def _become(self, part: dict[str, Any]) -> None:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._wire.close()
        told = Path(part["folder"], f"{part['name']}.log")
        descriptor = os.open(told, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        handler = logging.StreamHandler()
        handler.setFormatter(Brief("%(asctime)s %(process)d %(name)s %(message)s"))
        logging.basicConfig(level=logging.WARNING, handlers=[handler])
        parts: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in part.items()
        }
        play(Part(**parts))

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            if pid == 0:
                return
            if os.WIFSTOPPED(status):
                self._tell({"pid": pid, "stopped": True})
            else:
                self._children.discard(pid)
                self._tell({"pid": pid, "died": os.waitstatus_to_exitcode(status)})

    def _tell(self, message: dict[str, Any]) -> None:
        self._wire.sendall(json.dumps(message).encode() + b"\n")


def main() -> None:
    """`python -m tests.faults.zygote DESCRIPTOR`."""
    zygote = Zygote(socket.socket(fileno=int(sys.argv[1])))
    try:
        zygote.run()
    finally:
        zygote.end()


if __name__ == "__main__":
    main()
