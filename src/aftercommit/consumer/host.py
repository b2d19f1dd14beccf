"""What the parts of a consumer's worker ask of it."""

from typing import Any, Protocol


class Host(Protocol):
    """A worker, as its parts see it."""

    def proceeds(self) -> bool:
        """Whether the consumer is neither stopping nor paused."""

    async def reach(self, point: str, **detail: Any) -> None:
        """Tell the probe that the work has reached a named point."""
