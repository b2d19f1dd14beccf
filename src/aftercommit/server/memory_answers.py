"""Answers from memory: those of one turn of the event loop are made one after the other, and written together.

A write wakes its client. Where each answer is written as soon as it is made, a client or proxy on the same machine may
fall asleep between two of them, and waking it each time costs the server more than a batch (decision 0031).
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final
from weakref import WeakKeyDictionary

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from aftercommit.http.from_memory import AnswersFromMemory, WholeAnswer, lines_of
from aftercommit.telemetry import log_event

logger = logging.getLogger("aftercommit.server")

# So much is written together at most: it stays in the processor's cache until then.
MOST_BYTES: Final = 256 * 1024
_LINE_END: Final = b"\r\n"
_of_loops: "WeakKeyDictionary[asyncio.AbstractEventLoop, MemoryAnswers]" = WeakKeyDictionary()


class MemoryAnswers:
    """The requests of one event loop that an application may be able to answer from memory."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._asked: list[tuple[RequestResponseCycle, AnswersFromMemory, Callable[[], None]]] = []
        self._made: list[tuple[RequestResponseCycle, WholeAnswer]] = []
        self._made_bytes = 0

    def ask(self, cycle: RequestResponseCycle, app: AnswersFromMemory, otherwise: Callable[[], None]) -> None:
        """Answer this request soon; call `otherwise` if the application does not have the answer."""
        if not self._asked:
            self._loop.call_soon(self._answer_all)
        self._asked.append((cycle, app, otherwise))

    def _answer_all(self) -> None:
        asked, self._asked = self._asked, []
        for cycle, app, otherwise in asked:
            answer = _answer_of(cycle, app)
            if answer is None:
                otherwise()
                continue
            self._made.append((cycle, answer))
            self._made_bytes += len(answer.body)
            if self._made_bytes > MOST_BYTES:
                self._write()
        self._write()

    def _write(self) -> None:
        made, self._made, self._made_bytes = self._made, [], 0
        for cycle, answer in made:
            cycle.response_started = cycle.response_complete = True
            head = b"".join((STATUS_LINE[answer.status], lines_of(cycle.default_headers), answer.lines, _LINE_END))
            has_body = answer.body and cycle.scope["method"] != "HEAD"
            cycle.transport.writelines((head, answer.body) if has_body else (head,))
            cycle.on_response()


def memory_answers_of(loop: asyncio.AbstractEventLoop) -> MemoryAnswers:
    """The one of this event loop."""
    return _of_loops.get(loop) or _of_loops.setdefault(loop, MemoryAnswers(loop))


def _answer_of(cycle: RequestResponseCycle, app: AnswersFromMemory) -> WholeAnswer | None:
    """The answer to a request that is usual in every way, if the application has it."""
    if not cycle.keep_alive or cycle.disconnected or cycle.flow.write_paused or cycle.access_log:
        return None
    try:
        return app.answer_from_memory(cycle.scope)  # type: ignore[arg-type]
    except Exception as problem:  # noqa: BLE001 - a bug; the usual way answers the client
        log_event(logger, logging.ERROR, "answer_from_memory_failed", problem, error=repr(problem)[:300])
        return None
