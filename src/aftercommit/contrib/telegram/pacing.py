"""Rate limits for Telegram: 30 messages per second overall, one per second to a chat, 20 per minute to a group. Pure.

Telegram counts a message when it arrives, at some time between the request and its answer. So a message counts here
from the request until one interval after the answer. This keeps the limit however slow the network is.
"""

from collections import deque
from typing import Final

SECOND: Final = 1.0
OVERALL: Final = 30
# Groups have negative ids; twenty messages per minute.
GROUP_SECONDS: Final = 3.0
# Above this number of chats, those that need not wait are forgotten.
_REMEMBERED: Final = 1000
_SUSPICION: Final = 60.0


class Pacing:
    """When the next message may be sent. Times are monotonic."""

    def __init__(
        self,
        overall: int = OVERALL,
        chat_seconds: float = SECOND,
        group_seconds: float = GROUP_SECONDS,
        *,
        since: float = float("-inf"),
    ) -> None:
        """`since` is the start time: messages of an earlier process are unknown, so the limits start full."""
        self._since = since
        self._overall = overall
        self._chat_seconds = chat_seconds
        self._group_seconds = group_seconds
        self._under_way = 0
        self._answered: deque[float] = deque()
        self._ready: dict[int, float] = {}
        self._limited: dict[int, float] = {}
        self._held = float("-inf")

    def chat_wait(self, chat_id: int, now: float) -> float:
        """Seconds until this chat may get a message."""
        ready = self._ready.get(chat_id, self._since + self._interval(chat_id))
        return max(0.0, ready - now)

    def overall_wait(self, now: float) -> float | None:
        """Seconds until any chat may; None if that depends on an answer that has not arrived."""
        if self._held > now:
            return self._held - now
        while self._answered and self._answered[0] + SECOND <= now:
            self._answered.popleft()
        if self._under_way + len(self._answered) < self._overall:
            return 0.0
        return self._answered[0] + SECOND - now if self._answered else None

    def sent(self, chat_id: int) -> None:
        """A message is on its way. The caller sends nothing else to this chat until the answer."""
        self._under_way += 1

    def answered(self, chat_id: int, now: float) -> None:
        """The answer arrived, or the request was given up."""
        self._under_way -= 1
        self._answered.append(now)
        self._wait_until(chat_id, now + self._interval(chat_id))
        self._forget(now)

    def withdrawn(self) -> None:
        """The message was not sent after all."""
        self._under_way -= 1

    def limited(self, chat_id: int, seconds: float, now: float) -> bool:
        """Telegram asks to wait, without saying whether it means this chat or the whole bot. True if all must wait.

        The first limited chat waits alone. If a second one is limited at the same time, the whole bot waits; for a
        minute after that, every limit applies to the whole bot.
        """
        self._wait_until(chat_id, now + seconds)
        self._limited = {chat: until for chat, until in self._limited.items() if until > now}
        self._limited[chat_id] = now + seconds
        if len(self._limited) < 2 and now > self._held + _SUSPICION:
            return False
        self._held = max(self._held, now + seconds)
        return True

    def _interval(self, chat_id: int) -> float:
        return self._group_seconds if chat_id < 0 else self._chat_seconds

    def _wait_until(self, chat_id: int, moment: float) -> None:
        self._ready[chat_id] = max(self._ready.get(chat_id, moment), moment)

    def _forget(self, now: float) -> None:
        if len(self._ready) > _REMEMBERED:
            self._ready = {chat: moment for chat, moment in self._ready.items() if moment > now}
