"""What the guide and the protocol show is so: examples run against a feed, their options exist, their JSON is JSON."""

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from aftercommit.client import Options
from tests.clients.cases import CONFORMANCE
from tests.clients.scripted_feed import scripted_feed
from tests.feed.journal import Journal

REPOSITORY = Path(__file__).parents[2]
GUIDE = (REPOSITORY / "docs" / "guides" / "following.md").read_text(encoding="utf-8")
PROTOCOL = (REPOSITORY / "PROTOCOL.md").read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def functions(example: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {}
    exec(compile(example, "following.md", "exec"), namespace)  # noqa: S102 - our own page, and the point of the test
    return namespace


async def run_example(work: Callable[[str], Any], lines: int, printed: Callable[[], str]) -> str:
    """Run an example against a feed until it has printed so many lines."""
    async with scripted_feed(events=lines) as feed:
        running = asyncio.ensure_future(work(feed.url))
        told = ""
        while told.count("\n") < lines and not running.done():
            await asyncio.sleep(0.01)
            told += printed()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return told


async def test_the_first_example_prints_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    example = blocks(GUIDE, "python")[0]

    async def work(url: str) -> None:
        here = re.sub(r'"http://127[^"]*"', json.dumps(url), example).replace('event.data["level"]', '"-"')
        await functions(here)["watch"]("token")

    async with asyncio.timeout(90):
        assert await run_example(work, 2, lambda: capsys.readouterr().out) == "1 - line 1\n2 - line 2\n"
    assert (tmp_path / "INV-123.cursor").exists()


async def test_the_example_with_gaps_prints_events(capsys: pytest.CaptureFixture[str]):
    async with asyncio.timeout(90):
        told = await run_example(functions(blocks(GUIDE, "python")[1])["copy"], 2, lambda: capsys.readouterr().out)
    assert "'message': 'line 2'" in told


async def test_the_example_that_reads_a_part_comes_to_an_end(journal: Journal, capsys: pytest.CaptureFixture[str]):
    await journal.write("deployed 1", "broken", "deployed 2", "fine", level="WARN")
    example = blocks(GUIDE, "python")[2].replace('["message"]', '["text"]')
    async with asyncio.timeout(90), journal.served() as reading:
        await functions(example)["look"](f"{reading.server.url}/books/b-1/lines", journal.token())
    *told, last = capsys.readouterr().out.splitlines()
    assert told == ["deployed 1", "broken", "deployed 2", "fine"]
    assert last.startswith("last deployed at 20")


def test_the_blocking_example_is_a_program():
    assert callable(functions(blocks(GUIDE, "python")[3])["watch"])


def test_the_guide_names_every_option_and_no_other():
    table = GUIDE.split("## Options")[1].split("##")[0]
    named = {name for cell in re.findall(r"^\| (.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", cell)}
    assert named == set(get_type_hints(Options))


def test_every_json_of_the_protocol_is_json():
    examples = blocks(PROTOCOL, "json")
    assert len(examples) >= 2
    for example in examples:
        json.loads(example)


def test_the_links_of_the_protocol_and_the_cases_lead_somewhere():
    for page in (REPOSITORY / "PROTOCOL.md", CONFORMANCE / "README.md"):
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
