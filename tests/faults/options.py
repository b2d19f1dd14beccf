"""What a run is asked for, and what it must have done to count."""

from dataclasses import dataclass, field

# Points at which a process of each kind can be killed. A test compares them with those in the source.
RELAY_POINTS = (
    "relay.ready",
    "relay.read",
    "relay.deliver",
    "relay.delivered",
    "relay.counted",
    "relay.appended",
    "relay.failed",
    "relay.gathering",
    "relay.idle",
    "relay.measured",
    "relay.outage",
    "relay.fenced",
    "relay.stopped",
)
WORKER_POINTS = (
    "consumer.active",
    "consumer.read",
    "consumer.handled",
    "consumer.failed",
    "consumer.retrying",
    "consumer.retried",
    "consumer.joined",
    "consumer.suspect",
    "consumer.heartbeat",
    "consumer.idle",
    "consumer.paused",
    "consumer.standing_by",
    "consumer.fenced",
    "consumer.handed_over",
    "consumer.stopped",
)
# All programs of a run know the same versions, so nobody waits for newer code there.
NEWER_CODE_POINTS = ("consumer.waiting", "consumer.put_back")
LISTENER_POINTS = ("listener.working", "listener.deaf")
HANDLER_POINTS = ("handler.begun", "handler.written")
POINTS = {
    "relay": (*RELAY_POINTS, *LISTENER_POINTS, *HANDLER_POINTS),
    "worker": (*WORKER_POINTS, *LISTENER_POINTS, *HANDLER_POINTS),
}

# Within so many seconds of PostgreSQL's return events must flow again.
FLOW_LIMIT = 5.0

FAULTS = (
    "kills",
    "crashes",
    "zombies",
    "connections",
    "network",
    "exhaustion",
    "disk",
    "clock",
    "pooler",
    "storms",
    "restarts",
    "pauses",
    "handlers",
    "restores",
)


@dataclass(frozen=True)
class Options:
    """How much is to happen. Counts are for the whole run, which is played in scenes of `scene_seconds`."""

    kills: int = 300
    crashes: int = 20
    zombies: int = 20
    restores: int = 2
    seconds: float = 600.0
    seed: int = 0
    only: frozenset[str] = frozenset(FAULTS)
    points: tuple[str, ...] = ()
    lease: float = 1.0
    scene_seconds: float = 120.0
    drain_seconds: float = 90.0
    keep: bool = False
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def takeover_limit(self) -> float:
        """Within so many seconds of a kill somebody else must have what the dead process held."""
        return self.lease + 1.0

    @property
    def scenes(self) -> int:
        return max(1, round(self.seconds / self.scene_seconds))

    def target(self, fault: str, scene: int) -> int:
        """How much of it there must have been by the end of a scene."""
        return -(-self.counted[fault] * scene // self.scenes) if self.has(fault) else 0

    @property
    def counted(self) -> dict[str, int]:
        """The faults of which a number is asked for."""
        return {"kills": self.kills, "crashes": self.crashes, "zombies": self.zombies, "restores": self.restores}

    def has(self, fault: str) -> bool:
        return fault in self.only and fault not in self.missing and self.counted.get(fault, 1) > 0


def minimum(options: Options) -> dict[str, int]:
    """Counts below which a run is void: it has not shown anything."""
    seconds = options.seconds
    wanted = {"events": int(20 * seconds), "operations": int(8 * seconds), "polled": int(10 * seconds)}
    wanted |= {f"{kind} transactions": max(1, int(seconds / 10)) for kind in ("rollback", "savepoint", "late")}
    wanted |= {name: count for name, count in options.counted.items() if options.has(name)}
    if options.has("zombies") and options.zombies >= 5:
        wanted["fenced"] = options.zombies // 5
    each_minute = ("connections", "network", "exhaustion", "disk", "clock", "pooler", "storms", "restarts", "pauses")
    if seconds >= 100:
        wanted |= {fault: int(seconds / 60) for fault in each_minute if options.has(fault)}
        wanted["unknown outcomes"] = int(seconds / 60)
    if seconds >= 20 and options.has("handlers"):
        wanted["hostile calls"] = int(seconds / 10)
    return {name: count for name, count in wanted.items() if count > 0}


def unreached(options: Options, reached: set[str]) -> list[str]:
    """Points at which nobody was killed, in a run that is long enough to reach all of them."""
    if not options.has("kills") or options.kills < 300 or options.points:
        return []
    wanted = {point for points in POINTS.values() for point in points}
    if not options.has("pooler"):
        wanted.discard("listener.deaf")
    if not options.has("zombies"):
        wanted -= {"relay.fenced", "consumer.fenced"}
    if not options.has("pauses"):
        wanted.discard("consumer.paused")
    if not options.has("restarts"):
        wanted -= {"relay.stopped", "consumer.stopped"}
    return sorted(wanted - reached)
