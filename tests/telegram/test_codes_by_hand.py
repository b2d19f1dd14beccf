"""Codes as people type them, who see one on a screen and write it on a telephone."""

from datetime import timedelta
from pathlib import Path

import pytest

from aftercommit.contrib.telegram.linking import issue_code
from tests.telegram.bots import stage


@pytest.mark.parametrize("written", ["/start\n{code}", "/start   {code}  ", "/start {small}", "/start {parted}"])
@pytest.mark.thorough
async def test_a_code_of_the_bot_is_read_as_people_write_it(tmp_path: Path, written: str):
    async with stage(tmp_path) as scene:
        store = scene.store()
        code = issue_code(store, "17", "Ada", timedelta(minutes=10))
        store.close()
        ada = scene.telegram.open_chat("Ada")
        async with scene.bot():
            said = written.format(code=code, small=code.lower(), parted=f"{code[:5]} {code[5:]}")
            assert (await scene.says(ada, said)).startswith("Linked to Ada.")


async def test_the_backend_is_shown_a_code_without_the_blanks_between_its_groups(tmp_path: Path):
    async with stage(tmp_path) as scene:
        scene.backend.codes["K7QM3TXA"] = (17, "Ada Lovelace")
        ada = scene.telegram.open_chat("Ada")
        async with scene.bot():
            assert (await scene.says(ada, "/start K7QM 3TXA")).startswith("Linked to Ada Lovelace.")
