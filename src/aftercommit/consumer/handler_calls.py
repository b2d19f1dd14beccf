"""Calls handlers under a watch that can give them up, and those that act outside the transaction."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from aftercommit.consumer.conversation import Conversation, cancelled, interruptions_as_failures, tell_of, too_long
from aftercommit.consumer.outcome import judge
from aftercommit.consumer.slices import Called, Calls, HandlerCall
from aftercommit.consumer.threads import in_thread
from aftercommit.event.correlation import told

# How many seconds to wait for something that was told to end.
GRACE: Final = 5.0


async def watched(calls: Coroutine[Any, Any, None], first: HandlerCall, talk: Conversation, timeout: float) -> None:
    """Run the handlers in a task, which can be given up."""
    now = asyncio.get_running_loop().time
    talk.call, talk.until = first, now() + timeout
    work = asyncio.create_task(calls, name="aftercommit handlers")
    try:
        while not work.done():
            await asyncio.wait({work}, timeout=max(0.0, talk.until - now()))
            if not work.done() and now() >= talk.until:
                raise too_long(talk.call, timeout)
        if work.cancelled():
            raise cancelled(talk.call)
        work.result()
    finally:
        await _end(work)


async def call_outside(step: Calls, called: Called, talk: Conversation, timeout: float, *, is_async: bool) -> None:
    """Call handlers that act outside the transaction; a blocking one in a thread, which can be left behind."""
    now = asyncio.get_running_loop().time
    task = asyncio.current_task()
    assert task is not None
    stop_at = talk.stop_at(now())
    with told(), interruptions_as_failures(talk):
        for index, call in enumerate(step.calls):
            talk.call, began = call, now()
            talk.until = until = began + timeout
            tell_of(call)
            judge(await (call.handler.function(call.events[0]) if is_async else _in_own_thread(call)))
            ended = now()
            if ended >= until:
                raise too_long(call, timeout)
            if task.cancelling():
                raise cancelled(call)
            called.took(call, ended - began)
            if ended > stop_at and step.may_stop_after(index):
                return


async def _in_own_thread(call: HandlerCall) -> Any:
    function, event = call.handler.function, call.events[0]

    def run() -> Any:
        try:
            return function(event)
        except StopIteration as error:
            # A future cannot hold it.
            raise RuntimeError("the handler raised StopIteration") from error

    return await in_thread(run)


async def _end(work: "asyncio.Task[Any]") -> None:
    """Cancel the handlers. One that goes on in spite of that is left behind without a connection."""
    if not work.done():
        work.cancel()
        await asyncio.wait({work}, timeout=GRACE)
    if work.done() and not work.cancelled():
        # Or asyncio complains about an error that nobody has seen.
        work.exception()
