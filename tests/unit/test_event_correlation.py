"""The story an event belongs to travels with the context of the code that publishes it."""

import asyncio
import contextlib
import contextvars
import threading
from uuid import uuid4

import pytest

from aftercommit.errors import InvalidEnvelope
from aftercommit.event.correlation import correlation, current_story, tell, told


def test_there_is_no_story_unless_somebody_tells_one():
    assert current_story() == (None, None)


def test_the_inner_story_ends_where_its_block_ends_even_by_an_error():
    with correlation("outer"):
        with contextlib.suppress(ZeroDivisionError), correlation("inner"):
            assert current_story()[0] == "inner"
            _ = 1 / 0
        assert current_story()[0] == "outer"
    assert current_story()[0] is None


def test_an_event_being_handled_is_the_cause_of_what_is_published_inside():
    event_id = uuid4()
    with correlation("outer"):
        with told():
            tell(event_id, "story")
            assert current_story() == ("story", event_id)
        assert current_story() == ("outer", None)


@pytest.mark.parametrize("value", ["", "x" * 256, "nul\x00", "\ud800", None, 5, b"bytes"])
def test_what_cannot_be_stored_is_refused_where_it_is_set(value):
    with pytest.raises(InvalidEnvelope, match="1 to 255"), correlation(value):
        pass
    assert current_story()[0] is None


@pytest.mark.parametrize("value", ["x" * 255, "☃" * 255, "a story"])
def test_what_can_be_stored_is_taken(value):
    with correlation(value):
        assert current_story()[0] == value


async def test_tasks_do_not_hear_each_others_stories():
    both_inside = asyncio.Barrier(2)

    async def tell(story: str) -> str | None:
        with correlation(story):
            await both_inside.wait()
            return current_story()[0]

    first, second = await asyncio.gather(tell("one"), tell("two"))
    assert (first, second) == ("one", "two")
    assert current_story()[0] is None


async def test_a_task_and_a_thread_of_asyncio_go_on_with_the_story_they_were_started_in():
    async def read() -> str | None:
        return current_story()[0]

    with correlation("story"):
        task = asyncio.create_task(read())
        in_thread = await asyncio.to_thread(current_story)
    assert (await task, in_thread[0]) == ("story", "story")


def test_a_plain_thread_starts_without_a_story_and_takes_one_along_when_given_the_context():
    heard: list[str | None] = []

    def listen() -> None:
        heard.append(current_story()[0])

    with correlation("story"):
        context = contextvars.copy_context()
        for target in (listen, lambda: context.run(listen)):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()
    assert heard == [None, "story"]
