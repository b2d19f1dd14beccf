"""Text that can be stored and shown whatever it came from."""

MAX_ERROR_LENGTH = 2000


def storable_error(error: BaseException) -> str:
    """The error as text that PostgreSQL can store: bounded, and without NUL or lone surrogates."""
    text = str(error) or type(error).__name__
    text = text.encode("utf-8", "replace").decode().replace("\x00", "\N{REPLACEMENT CHARACTER}")
    return text[:MAX_ERROR_LENGTH]
