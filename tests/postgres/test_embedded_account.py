"""As whom the embedded PostgreSQL runs: as the user; for root as somebody else, without opening folders."""

import logging
import os
import pwd
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from aftercommit.embedded import EmbeddedPostgres, account
from aftercommit.errors import EmbeddedPostgresError

# On servers of their own, of versions of their own: nothing here asks for the one that the other tests run on.
pytestmark = pytest.mark.newest
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root needs another account: run as root")

NO_SYNC = {"fsync": "off"}


@pytest.fixture
def closed_folder() -> Iterator[Path]:
    """A folder that only its owner may enter, in the temporary folder that everybody may enter."""
    with tempfile.TemporaryDirectory(prefix="aftercommit-account-") as folder:
        yield Path(folder).resolve()


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def run(server: EmbeddedPostgres, statement: str) -> object:
    with closing(psycopg.connect(server.dsn, autocommit=True)) as connection:
        cursor = connection.execute(statement.encode())
        row = cursor.fetchone() if cursor.description else None
        return row[0] if row else None


@pytest.mark.needs("unshare")
def test_an_ordinary_user_starts_kills_restarts_and_stops_it(closed_folder: Path) -> None:
    """In a user namespace the interpreter itself is not root, and still reaches wherever root keeps it."""
    script = """
        import os, sys
        from pathlib import Path
        from aftercommit.errors import EmbeddedPostgresError
        from aftercommit.embedded import EmbeddedPostgres
        assert os.geteuid() != 0
        with EmbeddedPostgres(Path(sys.argv[1]), settings={"fsync": "off"}) as server:
            server.kill()
            server.start()
            print(server.is_running())
        print(server.is_running())
        os.chmod(sys.argv[1], 0o500)
        try:
            EmbeddedPostgres(Path(sys.argv[1], "closed")).start()
        except EmbeddedPostgresError as error:
            print(error)
        os.chmod(sys.argv[1], 0o700)
    """
    nobody = pwd.getpwnam("nobody")
    as_user = ["unshare", "--user", f"--map-user={nobody.pw_uid}", f"--map-group={nobody.pw_gid}", "--"]
    if os.geteuid() != 0:
        as_user = []
    elif not account.user_namespaces_work():
        pytest.skip("user namespaces are not allowed here: run the tests as an ordinary user too")
    command = [*as_user, sys.executable, "-c", textwrap.dedent(script), str(closed_folder)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    running, stopped, error = result.stdout.splitlines()
    assert (running, stopped) == ("True", "False")
    assert "closed: Permission denied. Give this user access to it" in error


@only_root
@pytest.mark.needs("unshare")
def test_for_root_nothing_changes_hands_and_nothing_is_opened(closed_folder: Path) -> None:
    if not account.user_namespaces_work():
        pytest.skip("user namespaces are not allowed here")
    with EmbeddedPostgres(closed_folder / "home", settings=NO_SYNC) as server:
        assert run(server, "select 1") == 1
        assert {path.stat().st_uid for path in (closed_folder / "home").rglob("*")} == {0}
        assert (mode(closed_folder), mode(closed_folder / "home"), mode(server.cluster.data)) == (0o700,) * 3


@only_root
@pytest.mark.needs("useradd")
def test_without_namespaces_root_hands_the_data_to_a_system_user(
    closed_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = EmbeddedPostgres(closed_folder / "home", settings=NO_SYNC)
    with server:
        run(server, "create table kept as select 1 as one")
    monkeypatch.setattr(account, "user_namespaces_work", lambda: False)
    with caplog.at_level(logging.WARNING), server:
        assert run(server, "select one from kept") == 1
        owner = pwd.getpwnam(account.SYSTEM_USER).pw_uid
        assert {path.stat().st_uid for path in server.cluster.data.rglob("*")} == {owner}
        assert mode(server.cluster.data) == 0o700
        server.kill()
        server.start()
    assert f"made {closed_folder} traversable for others (o+x)" in caplog.text
    assert (mode(closed_folder), mode(closed_folder / "home")) == (0o701, 0o701)
    monkeypatch.undo()
    with server:
        assert run(server, "select one from kept") == 1
        assert server.cluster.data.stat().st_uid == owner, "data that has an owner keeps it"


@only_root
def test_a_system_user_that_cannot_be_created_is_an_error_with_a_remedy(
    closed_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(account, "user_namespaces_work", lambda: False)
    monkeypatch.setattr(account, "SYSTEM_USER", "not a name:")
    with pytest.raises(EmbeddedPostgresError, match=r"refuses to run as root.*useradd --system"):
        EmbeddedPostgres(closed_folder).start()
