"""How quickly messages may go to Telegram: 30 a second overall, one a second to a chat, 20 a minute to a group. Pure.

Telegram counts when a message arrives, which is some time between sending it and having its answer. So a message counts
from the moment it is sent until a whole interval after its answer: however long either took on its way, no window of
Telegram's has more than the limit.
"""

from collections import deque
from typing import Final

SECOND: Final = 1.0
OVERALL: Final = 30
# Groups have negative numbers. Twenty a minute there.
GROUP_SECONDS: Final = 3.0
# Where nobody waits any more, a chat need not be remembered.
_REMEMBERED: Final = 1000
_SUSPICION: Final = 60.0


class Pacing:
    """When the next message may go, by what went before. Times are of one clock that never runs backwards."""

    def __init__(
        self,
        overall: int = OVERALL,
        chat_seconds: float = SECOND,
        group_seconds: float = GROUP_SECONDS,
        *,
        since: float = float("-inf"),
    ) -> None:
        """Nothing was sent since then; what another life sent just before is not known, and waited for."""
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
        """Seconds until this chat may have a message."""
        ready = self._ready.get(chat_id, self._since + self._interval(chat_id))
        return max(0.0, ready - now)

    def overall_wait(self, now: float) -> float | None:
        """Seconds until any chat may; None when that depends on an answer which is not there yet."""
        if self._held > now:
            return self._held - now
        while self._answered and self._answered[0] + SECOND <= now:
            self._answered.popleft()
        if self._under_way + len(self._answered) < self._overall:
            return 0.0
        return self._answered[0] + SECOND - now if self._answered else None

    def sent(self, chat_id: int) -> None:
        """A message is on its way; nobody else sends to this chat until its answer is here."""
        self._under_way += 1

    def answered(self, chat_id: int, now: float) -> None:
        """Its answer is here, or it was given up."""
        self._under_way -= 1
        self._answered.append(now)
        self._wait_until(chat_id, now + self._interval(chat_id))
        self._forget(now)

    def withdrawn(self) -> None:
        """A message that was to go did not."""
        self._under_way -= 1

    def limited(self, chat_id: int, seconds: float, now: float) -> bool:
        """Telegram asks to wait, and does not say who: this chat, or the bot. True if all have to.

        One chat waits alone, so that it does not hold up the others. Two that are told so at a time mean the bot; and
        for a minute after that, so does every one.
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
