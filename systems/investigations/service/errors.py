"""What can be wrong with a request to this system; each is answered with the error body that all systems share."""

from aftercommit.http import Problem


class NotThere(Problem):
    """There is no such investigation."""

    def __init__(self, investigation_id: str) -> None:
        super().__init__(404, f"Investigation {investigation_id:.100} not found")


class AlreadyThere(Problem):
    """The name of a new investigation is taken."""

    def __init__(self, investigation_id: str) -> None:
        super().__init__(
            409,
            f"Investigation {investigation_id} exists already: choose another investigation_id, or leave it out",
            details={"investigation_id": investigation_id},
        )


class Closed(Problem):
    """Logs came for an investigation that is closed."""

    def __init__(self, investigation_id: str) -> None:
        super().__init__(
            409,
            f"Investigation {investigation_id} is closed and takes no more logs: open a new one",
            details={"investigation_id": investigation_id},
        )


class BadLog(Problem):
    """One line of a request is wrong, and nothing of the request was stored."""

    def __init__(self, index: int, field: str | None, reason: str) -> None:
        place = f"log {index}" if field is None else f"log {index}, {field}"
        super().__init__(
            400, f"Invalid log: {place}: {reason}", details={"index": index, "field": field, "reason": reason}
        )
