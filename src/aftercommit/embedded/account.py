"""Chooses the account that runs the embedded server, because PostgreSQL refuses to run as root.

For root, the first choice is a user namespace: inside it root looks like `nobody`, while the files still belong to root
and no permissions change. If namespaces are not allowed, the server runs as the system user `aftercommit`. A data
folder that belongs to an ordinary user is served as that user. For other users than root, nothing is changed.
"""

import functools
import logging
import os
import pwd
import shutil
import stat
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from aftercommit.errors import EmbeddedPostgresError

SYSTEM_USER = "aftercommit"

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Account:
    """Runs programs as the account that owns the data."""

    prefix: tuple[str, ...] = ()
    uid: int | None = None
    gid: int | None = None

    def spawn(self, command: Sequence[str | Path], output: IO[bytes] | int) -> "subprocess.Popen[bytes]":
        """Start a program as this account, detached from our terminal, with its output going to `output`."""
        return subprocess.Popen(
            [*self.prefix, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            user=self.uid,
            group=self.gid,
            extra_groups=None if self.uid is None else [],
            # Ctrl-C should reach only us: we stop the server in order.
            start_new_session=True,
            # The account may not have access to our working folder.
            cwd="/",
            env=_environment(),
        )

    def run(self, command: Sequence[str | Path]) -> tuple[int, str]:
        """Run a program as this account to its end; returns its exit status and output."""
        process = self.spawn(command, subprocess.PIPE)
        output, _ = process.communicate()
        return process.returncode, output.decode(errors="replace").strip()

    def take_over(self, folder: Path) -> None:
        """Make this account the owner of the folder and everything in it."""
        if self.uid is None or self.gid is None:
            return
        os.chown(folder, self.uid, self.gid)
        for parent, folders, files in os.walk(folder):
            for name in [*folders, *files]:
                os.chown(Path(parent, name), self.uid, self.gid, follow_symlinks=False)


def choose_account(data_folder: Path, binaries: Path) -> Account:
    """The account for this data folder; as root, makes the folders above it traversable if needed."""
    if os.geteuid() != 0:
        return Account()
    paths = (data_folder, binaries)
    if data_folder.exists() and (owner := data_folder.stat()).st_uid != 0:
        account = Account(uid=owner.st_uid, gid=_group_of(owner.st_uid, owner.st_gid))
    # In the namespace, root has no privileges, so it cannot pass through a folder that is closed to others.
    elif user_namespaces_work() and not closed_parents(paths, uid=0, gid=0):
        return Account(prefix=_namespace_prefix())
    else:
        account = _system_user()
    _open_parents(paths, account)
    return account


@functools.cache
def user_namespaces_work() -> bool:
    """Whether we can run a program as `nobody` in a user namespace here."""
    try:
        command = [*_namespace_prefix(), "true"]
        return subprocess.run(command, capture_output=True, timeout=30, check=False).returncode == 0
    except (KeyError, OSError, subprocess.TimeoutExpired):
        return False


def closed_parents(paths: Iterable[Path], uid: int, gid: int) -> list[Path]:
    """The folders above the paths that an account cannot pass through, from the root down."""
    parents = {parent for path in paths for parent in path.parents if parent.exists()}
    return sorted(parent for parent in parents if not _passable(parent.stat(), uid, gid))


def _open_parents(paths: Iterable[Path], account: Account) -> None:
    assert account.uid is not None
    assert account.gid is not None
    for parent in closed_parents(paths, account.uid, account.gid):
        parent.chmod(stat.S_IMODE(parent.stat().st_mode) | stat.S_IXOTH)
        _logger.warning(
            "made %s traversable for others (o+x), because the embedded PostgreSQL runs as uid %s and needs to pass "
            "through it; others still cannot list it",
            parent,
            account.uid,
        )


def _passable(folder: os.stat_result, uid: int, gid: int) -> bool:
    if folder.st_uid == uid:
        return bool(folder.st_mode & stat.S_IXUSR)
    if folder.st_gid == gid:
        return bool(folder.st_mode & stat.S_IXGRP)
    return bool(folder.st_mode & stat.S_IXOTH)


def _namespace_prefix() -> tuple[str, ...]:
    # initdb looks its user up, so the user must have a passwd entry.
    nobody = pwd.getpwnam("nobody")
    program = shutil.which("unshare") or "unshare"
    return (program, "--user", f"--map-user={nobody.pw_uid}", f"--map-group={nobody.pw_gid}", "--")


def _system_user() -> Account:
    try:
        entry = pwd.getpwnam(SYSTEM_USER)
    except KeyError:
        _create_system_user()
        entry = pwd.getpwnam(SYSTEM_USER)
    return Account(uid=entry.pw_uid, gid=entry.pw_gid)


def _create_system_user() -> None:
    program = shutil.which("useradd", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    options = ["--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin"]
    command = [program or "useradd", *options, SYSTEM_USER]
    try:
        subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        return
    except subprocess.CalledProcessError as error:
        reason = error.stderr.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = str(error)
    raise EmbeddedPostgresError(
        "PostgreSQL refuses to run as root, user namespaces are not available here (unshare --user), and the "
        f"system user {SYSTEM_USER!r} could not be created: {reason}. Run as an ordinary user, or create it: "
        f"useradd --system {SYSTEM_USER}"
    )


def _group_of(uid: int, otherwise: int) -> int:
    try:
        return pwd.getpwuid(uid).pw_gid
    except KeyError:
        return otherwise


def _environment() -> dict[str, str]:
    # Variables like PGPORT would change the server's settings, and a broken LC_ALL would stop initdb. With TZ set,
    # initdb does not have to search the time zone folder.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return inherited | {"LC_ALL": "C", "TZ": "UTC"}
