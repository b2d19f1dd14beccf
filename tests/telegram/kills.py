"""Kills the bot at every point between fetch, send and save, again and again, and looks at what its chats were told.

`make bot-kills` runs the campaign: `python -m tests.telegram.kills --kills 300`. It needs no database: the state is in
SQLite (`--state postgresql://…` for the other). Nothing may be missing, nothing out of order, and of the message in
flight at most one copy more per kill.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aftercommit.contrib.telegram.local_api import Chat
from aftercommit.testing.points import crash_environment
from tests.support.programs import REPOSITORY
from tests.telegram.bots import Stage, stage

POINTS = ("bot.fetched", "bot.send", "bot.sent", "bot.saved")
USERS = (17, 18, 19)
PATIENCE = 60.0


@dataclass
class Campaign:
    """What was done and what came of it."""

    kills: Counter[str] = field(default_factory=Counter)
    published: int = 0
    repeats: int = 0
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def report(self) -> str:
        by_point = ", ".join(f"{point} {count}" for point, count in sorted(self.kills.items()))
        lines = [
            f"{sum(self.kills.values())} kills in {self.seconds:.0f} s: {by_point}",
            f"{self.published} events to {len(USERS)} users, {self.repeats} messages repeated, "
            f"{len(self.problems)} problems",
        ]
        return "\n".join([*lines, *self.problems])


class Nursery:
    """Makes bots by fork out of a process that has imported everything: so kills are cheap."""

    def __init__(self, process: asyncio.subprocess.Process, scene: Stage) -> None:
        self._process = process
        self._environment = {
            "AFTERCOMMIT_BOT_TOKEN": scene.telegram.token,
            "AFTERCOMMIT_BOT_API": scene.telegram.url,
            "AFTERCOMMIT_BOT_FEED": scene.backend.feed,
            "AFTERCOMMIT_BOT_STATE": scene.state,
        }

    async def begin(self, **further: str) -> int:
        """A new bot; its process id."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({**self._environment, **further}).encode() + b"\n")
        return await self._number()

    async def ended(self) -> int:
        """The status with which it ended; negative by a signal."""
        return await self._number()

    async def _number(self) -> int:
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), PATIENCE)
        return int(line)


@asynccontextmanager
async def nursery(scene: Stage) -> AsyncIterator[Nursery]:
    """One, while the block runs."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.telegram.bot_process", cwd=REPOSITORY,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield Nursery(process, scene)
    finally:
        # Nothing more to do; and to the end of what it says, so that its pipes are closed before the loop is.
        await asyncio.wait_for(process.communicate(b""), PATIENCE)


async def campaign(scene: Stage, kills: int, seed: int) -> Campaign:
    """Kill so many times at points that a seed chooses, then let it finish, and compare."""
    chance = random.Random(seed)
    made, begun = Campaign(), time.monotonic()
    chats = {user: scene.telegram.open_chat(f"User {user}") for user in USERS}
    for user, chat in chats.items():
        scene.link(chat, user)
    async with nursery(scene) as bots:
        for number in range(kills):
            point = POINTS[number % len(POINTS)]
            for _ in range(chance.randint(1, 4)):
                made.published += len(scene.backend.publish(*chance.sample(USERS, chance.randint(1, 3))))
            await killed_at(bots, point, after=chance.randint(0, 1) if point != "bot.fetched" else 0)
            made.kills[point] += 1
        await finish(scene, bots)
    compare(scene, chats, made)
    made.seconds = time.monotonic() - begun
    return made


async def killed_at(bots: Nursery, point: str, after: int = 0) -> None:
    """One life, which ends at the point."""
    await bots.begin(**crash_environment(point, after=after))
    status = await bots.ended()
    if status != -signal.SIGKILL:
        raise AssertionError(f"the bot ended by itself with {status} and not at {point}")


async def idle(scene: Stage) -> None:
    """Until every user's newest event has been asked past: the bot has nothing left to do."""
    wanted = {str(user): events[-1]["event_id"] for user, events in scene.backend.events.items() if events}
    begun = len(scene.backend.requests)

    def is_idle() -> bool:
        places = {poll.user: int(poll.query.get("after_id", "-1")) for poll in scene.backend.polls()[begun:]}
        return all(places.get(user, -1) >= newest for user, newest in wanted.items())

    await scene.backend.until(is_idle, PATIENCE)


async def finish(scene: Stage, bots: Nursery) -> None:
    """One more life, which is not killed before everything is told."""
    pid = await bots.begin()
    await idle(scene)
    os.kill(pid, signal.SIGTERM)
    status = await bots.ended()
    if status != 0:
        raise AssertionError(f"the bot was asked to stop, and ended with {status}")


def compare(scene: Stage, chats: Mapping[int, Chat], made: Campaign) -> None:
    """Every event told, in order; repeats only of the message that was in flight, and no more of them than kills."""
    for user, chat in chats.items():
        told = [int(text.splitlines()[0].rpartition(" ")[2]) for text in scene.texts(chat)]
        wanted = [event["event_id"] for event in scene.backend.events[str(user)]]
        once = [each for number, each in enumerate(told) if number == 0 or told[number - 1] != each]
        if once != wanted:
            missing, strange = sorted({*wanted} - {*told}), sorted({*told} - {*wanted})
            made.problems.append(f"user {user}: missing {missing}, not theirs {strange}, or not in order: {once[:200]}")
        repeats = len(told) - len(once)
        made.repeats += repeats
        # Of each chat one message may be in flight when the bot is killed, and only that one comes again.
        if repeats > sum(made.kills.values()):
            made.problems.append(f"user {user}: {repeats} repeats by {sum(made.kills.values())} kills")


async def main() -> int:
    parser = argparse.ArgumentParser(prog="make bot-kills", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--state", help="an address of PostgreSQL; default: a file of SQLite")
    given = parser.parse_args()
    print(f"{given.kills} kills, seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        async with stage(Path(folder), state=given.state) as scene:
            made = await campaign(scene, given.kills, given.seed)
    print(made.report())
    return 1 if made.problems else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
