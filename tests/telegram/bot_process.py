"""Makes bots that die where they are told: `python -m tests.telegram.bot_process` reads a line and forks a bot.

Each line is an environment in JSON, from which the bot takes its settings as `aftercommit bot` does;
AFTERCOMMIT_CRASH_AT names the point at which it is killed (SIGKILL). Answered with the bot's process id, and when it
has ended with its status. Everything was imported before, so that a life begins in milliseconds.
"""

import asyncio
import json
import os
import signal
import sys
import traceback
from dataclasses import replace

from aftercommit.client import Pace
from aftercommit.contrib.telegram import Bot, Pacing, bot_settings
from aftercommit.contrib.telegram.api import trust
from aftercommit.testing.points import crash_from_environment

QUICK = Pace(poll=0.05, idle_longest=0.1)


async def run() -> None:
    pacing = Pacing(overall=1000, chat_seconds=0.0)
    bot = Bot(replace(bot_settings(), pace=QUICK), pacing=pacing, probe=crash_from_environment())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, bot.stopping.set)
    await bot.start()
    await bot.wait()


def life(environment: dict[str, str]) -> int:
    os.environ.update(environment)
    try:
        asyncio.run(run())
    except Exception:  # noqa: BLE001 - a forked life ends here and nowhere else
        traceback.print_exc()
        return 1
    return 0


def main() -> None:
    trust()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            os._exit(life(json.loads(line)))
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
