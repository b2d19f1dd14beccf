"""The bot dies wherever it dies: nothing is lost or out of order, and at most the message in flight comes twice."""

from pathlib import Path

import pytest

from aftercommit.contrib.telegram import Bot
from aftercommit.testing import SimulatedCrash
from tests.telegram.bots import quick_pacing, stage
from tests.telegram.kills import POINTS, campaign

pytestmark = pytest.mark.contract("T12")


@pytest.mark.thorough
@pytest.mark.parametrize("state", ["sqlite", "postgres"])
async def test_a_bot_that_is_killed_at_every_point_loses_nothing(
    state: str, tmp_path: Path, request: pytest.FixtureRequest
):
    where = request.getfixturevalue("database") if state == "postgres" else None
    async with stage(tmp_path, state=where) as scene:
        made = await campaign(scene, 2 * len(POINTS), seed=1)
        assert made.problems == []
        assert sum(made.kills.values()) == 2 * len(POINTS)


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.thorough
async def test_a_message_is_repeated_only_when_its_place_was_not_kept(point: str, after: int, tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        scene.link(ada, 17)
        scene.backend.publish(17, count=5)
        scene.points.crash_at(point, after=after if point != "bot.fetched" else 0)
        with pytest.raises(SimulatedCrash):
            await Bot(scene.settings(), pacing=quick_pacing(), probe=scene.points).run()
        scene.points.require_reached("in the first life")
        async with scene.bot():
            await scene.points.until(lambda: scene.place(ada) == "5", "the place did not come to 5")
        told = [int(text.splitlines()[0].rpartition(" ")[2]) for text in scene.texts(ada)]
        in_flight = after + 1
        expected = [1, 2, 3, 4, 5]
        if point == "bot.sent":
            expected.insert(in_flight, in_flight)
        assert told == expected


@pytest.mark.parametrize("point", ["bot.update", "bot.linked", "bot.answered"])
async def test_a_chat_whose_linking_was_cut_off_is_linked_once_and_told_so(point: str, tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        scene.backend.codes["CODE"] = (17, "Ada")
        scene.backend.publish(17, count=3)
        scene.telegram.write(ada, "/start CODE")
        scene.points.crash_at(point)
        with pytest.raises(SimulatedCrash):
            await Bot(scene.settings(), pacing=quick_pacing(), probe=scene.points).run()
        async with scene.bot():
            await scene.telegram.until(lambda: any("Linked to Ada" in text for text in scene.texts(ada)) or None)
            scene.backend.publish(17)
            await scene.telegram.until(lambda: any("task 4" in text for text in scene.texts(ada)) or None)
        # History is not told, and linking at most twice: the answer that was in flight.
        assert next(text for text in scene.texts(ada) if "Linked to Ada" not in text).startswith("🆕 task 4")
        assert len(scene.texts(ada)) <= 3
