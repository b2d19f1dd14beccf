"""What is left of a run when nobody is there to end it: its server, its mount, its folder.

A warden waits beside every run (`python -m tests.faults.cleanup DESCRIPTOR FOLDER`). It holds one end of a pipe; when
the other end is gone, so is the harness, however it died, and whatever is still there is removed.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from aftercommit.embedded.postmaster import find_postmaster

REPOSITORY = Path(__file__).resolve().parents[2]
SMALL_DISK = "small-disk"
PATIENCE = 60.0


@contextmanager
def warded(folder: Path) -> Iterator[None]:
    """While this block runs, somebody watches over the folder; at its end, too, everything in it is ended."""
    theirs, ours = os.pipe()
    warden = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.cleanup", str(theirs), folder],
        cwd=REPOSITORY,
        pass_fds=[theirs],
        stdin=subprocess.DEVNULL,
        # An interrupt from the keyboard is for the harness alone.
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield
    finally:
        end(folder)
        os.close(ours)
        warden.wait(60)


def end(folder: Path) -> None:
    """Kill the server, unmount the small disk, remove the folder."""
    # While a server is made, its files are not yet what they will be.
    with contextlib.suppress(ValueError, IndexError):
        for data in folder.glob("server/postgres-*"):
            server = find_postmaster(data)
            if server is not None:
                shutil.rmtree(server.socket_folder, ignore_errors=True)
    for process in psutil.process_iter(["cmdline"]):
        words = " ".join(process.info["cmdline"] or ())
        if f"{folder}/server" in words:
            _kill(process)
    if os.path.ismount(folder / SMALL_DISK):
        subprocess.run(["umount", "--lazy", folder / SMALL_DISK], check=False)
    shutil.rmtree(folder, ignore_errors=True)


def _kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        family = [process, *process.children(recursive=True)]
        for one in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(family, timeout=20)


def main() -> None:
    """Wait for the end of the harness, and clear up after it."""
    descriptor, folder = int(sys.argv[1]), Path(sys.argv[2])
    with contextlib.suppress(KeyboardInterrupt):
        os.read(descriptor, 1)
    deadline = time.monotonic() + PATIENCE
    # Whatever was about to start when the harness died may write for a moment yet.
    while folder.exists() and time.monotonic() < deadline:
        end(folder)
        time.sleep(0.1)


if __name__ == "__main__":
    main()
