"""Pages of figures of several processes as one: valid for Prometheus, each sample with its worker."""

import asyncio
import os
import socket
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from aftercommit.server import shared_figures
from aftercommit.server.shared_figures import (
    ANSWERS,
    FOLDER,
    WORKER,
    SharedFigures,
    merged,
    remove_shared_folder,
    shared_folder,
)
from tests.feed.journal import until

FIRST = """\
# HELP feed_streams_open Streams that are open.
# TYPE feed_streams_open gauge
feed_streams_open 2
# HELP feed_pages_total Polls, by status.
# TYPE feed_pages_total counter
feed_pages_total{feed="a } b \\"c\\"",status="200"} 7
# HELP latency_ms How long.
# TYPE latency_ms histogram
latency_ms_bucket{le="1.0"} 1.0
latency_ms_bucket{le="+Inf"} 2.0
latency_ms_count 2.0
latency_ms_sum 3.5
"""
SECOND = """\
# HELP feed_streams_open Streams that are open.
# TYPE feed_streams_open gauge
feed_streams_open 40
# HELP only_here A figure of one process.
# TYPE only_here gauge
only_here{} 1e+06
"""


def test_each_metric_is_there_once_and_each_sample_says_whose_it_is():
    families = {family.name: family for family in text_string_to_metric_families(merged({"1": FIRST, "2": SECOND}))}
    opened = {sample.labels["worker"]: sample.value for sample in families["feed_streams_open"].samples}
    assert opened == {"1": 2, "2": 40}
    pages = families["feed_pages"].samples
    assert [(sample.labels, sample.value) for sample in pages] == [
        ({"worker": "1", "feed": 'a } b "c"', "status": "200"}, 7)
    ]
    assert [sample.name for sample in families["latency_ms"].samples] == [
        "latency_ms_bucket",
        "latency_ms_bucket",
        "latency_ms_count",
        "latency_ms_sum",
    ]
    assert families["only_here"].samples[0].labels == {"worker": "2"}


def test_what_is_told_about_a_metric_stands_before_its_samples_and_once():
    lines = merged({"1": FIRST, "2": SECOND}).splitlines()
    assert lines.count("# TYPE feed_streams_open gauge") == 1
    assert lines.index('feed_streams_open{worker="2"} 40') == lines.index('feed_streams_open{worker="1"} 2') + 1


async def test_a_process_without_others_tells_its_figures_as_they_are(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(FOLDER, raising=False)
    async with SharedFigures(lambda: FIRST) as figures:
        assert await figures.page() == FIRST


async def test_whoever_is_asked_tells_the_figures_of_all(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(FOLDER, raising=False)
    with shared_folder():
        monkeypatch.setenv(WORKER, "1")
        one = SharedFigures(lambda: FIRST)
        monkeypatch.setenv(WORKER, "2")
        other = SharedFigures(lambda: SECOND)
        async with one, other:
            await both_tell(one)
            assert await one.page() == await other.page()
        assert ANSWERS in await one.page()


async def test_a_process_that_was_killed_is_shown_as_silent_until_another_takes_its_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv(FOLDER, str(tmp_path))
    left = await asyncio.start_unix_server(lambda reader, writer: None, tmp_path / "2")
    left.close()
    (tmp_path / "2").touch()
    async with SharedFigures(lambda: FIRST, "1") as one:
        assert f'{ANSWERS}{{worker="2"}} 0\n' in await one.page()
        async with SharedFigures(lambda: SECOND, "2"):
            await both_tell(one)


async def test_a_process_that_does_not_answer_does_not_hold_up_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.setattr(shared_figures, "ANSWER_SECONDS", 0.05)

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_unix_server(hang, tmp_path / "2"), SharedFigures(lambda: FIRST, "1") as one:
        page = await one.page()
    assert 'feed_streams_open{worker="1"} 2\n' in page
    assert f'{ANSWERS}{{worker="2"}} 0\n' in page


async def test_a_folder_that_cannot_be_used_is_said_and_readers_are_served(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setenv(FOLDER, str(tmp_path / ("x" * 150)))
    async with SharedFigures(lambda: FIRST, "1") as one:
        assert await one.page() == FIRST
    assert "figures_not_shared" in [record.message for record in caplog.records]


def test_a_folder_that_holds_what_is_not_ours_is_left_with_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv(FOLDER, str(tmp_path))
    (tmp_path / "somebody's").write_text("own")
    with socket.socket(socket.AF_UNIX) as ours:
        ours.bind(str(tmp_path / "1"))
    remove_shared_folder()
    assert [each.name for each in tmp_path.iterdir()] == ["somebody's"]
    assert FOLDER not in os.environ


def test_a_folder_of_ours_is_gone_afterwards(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(FOLDER, raising=False)
    with shared_folder():
        folder = Path(os.environ[FOLDER])
        with socket.socket(socket.AF_UNIX) as ours:
            ours.bind(str(folder / "1"))
    assert not folder.exists()


async def both_tell(figures: SharedFigures) -> None:
    async def other_tells() -> bool:
        return f'{ANSWERS}{{worker="2"}} 1\n' in await figures.page()

    await until(other_tells)
