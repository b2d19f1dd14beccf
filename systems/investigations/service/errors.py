"""The errors of this system. Each becomes a response with the common error body."""

from aftercommit.http import Problem


class NotThere(Problem):
    """The investigation does not exist."""

    def __init__(self, investigation_id: str) -> None:
        super().__init__(404, f"Investigation {investigation_id:.100} not found")


class AlreadyThere(Problem):
    """The id of a new investigation is taken."""

    def __init__(self, investigation_id: str) -> None:
        super().__init__(
            409,
            f"Investigation {investigation_id} already exists: choose another investigation_id, or leave it out",
            details={"investigation_id": investigation_id},
        )


class Closed(Problem):
    """The investigation is closed and accepts no new logs."""

    def __init__(self, investigation_id: str) -> None:
        super().__init__(
            409,
            f"Investigation {investigation_id} is closed and accepts no more logs: open a new one",
            details={"investigation_id": investigation_id},
        )


class BadLog(Problem):
    """One line of a request is invalid, so none of its lines was stored."""

    def __init__(self, index: int, field: str | None, reason: str) -> None:
        place = f"log {index}" if field is None else f"log {index}, {field}"
        super().__init__(
            400, f"Invalid log: {place}: {reason}", details={"index": index, "field": field, "reason": reason}
        )
