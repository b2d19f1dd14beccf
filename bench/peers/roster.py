"""Who is asked to take part, and how each is had."""

from dataclasses import dataclass

from bench.peers import environment
from bench.peers.peer import Peer, PeerFailed, Peers
from bench.stage import Stage, tell


@dataclass(frozen=True, slots=True)
class Candidate:
    """A peer that may take part; `backlog` is how much of a backlog it gets, lest a slow one takes for ever."""

    name: str
    program: str
    beside: tuple[str, ...]
    python: bool = True
    backlog: float = 1.0
    wanted: str = ""


_PYTHON = ("uvloop", "asyncpg", "psycopg[binary,pool]", "sqlalchemy[asyncio]")
ROSTER = (
    Candidate("faststream-outbox", "faststream_outbox_peer", _PYTHON, backlog=0.4),
    Candidate("pgqueuer", "pgqueuer_peer", _PYTHON, backlog=0.5),
    Candidate("procrastinate", "procrastinate_peer", _PYTHON, backlog=0.03),
    Candidate("eventsourcing", "eventsourcing_peer", _PYTHON, backlog=0.1),
    Candidate("graphile-worker", "graphile_worker_peer.mjs", ("pg",), python=False),
    # Later majors have another interface and ask for a newer Node.
    Candidate("pg-boss", "pg_boss_peer.mjs", ("pg",), python=False, wanted="@10"),
)


def assemble(stage: Stage) -> Peers:
    """Install and start everybody who can be had."""
    peers = Peers()
    for candidate in ROSTER:
        try:
            peer = _python(candidate) if candidate.python else _node(candidate)
            peer.open(stage)
        except (environment.NotInstalled, PeerFailed) as problem:
            peers.absent[candidate.name] = str(problem)
            tell(f"  {candidate.name}: absent, {problem}")
        else:
            peers.present.append(peer)
            tell(f"  {peer.name} {peer.version}")
    return peers


def _python(candidate: Candidate) -> Peer:
    version = environment.python_package(candidate.name, *candidate.beside)
    command = [str(environment.PYTHON), "-m", f"bench.peers.programs.{candidate.program}"]
    return Peer(candidate.name, version, command, language="python", backlog=candidate.backlog)


def _node(candidate: Candidate) -> Peer:
    version = environment.node_package(candidate.name, candidate.wanted, *candidate.beside)
    command = [environment.node(), str(environment.PROGRAMS / candidate.program), str(environment.NODE_HOME)]
    return Peer(candidate.name, version, command, language="node", backlog=candidate.backlog)
