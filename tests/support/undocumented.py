"""A package as it must not be: what the check of public names has to find."""

LIMIT = 10


class Hidden:
    """A type that is not exported."""


class Bare:
    def go(self) -> None:
        pass


def make(hidden: Hidden) -> None:
    """Name a type that nobody can import."""


__all__ = ["LIMIT", "Bare", "make"]
