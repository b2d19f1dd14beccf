"""Where `aftercommit dead edit` gets the new payload from: a file, stdin, or the operator's editor."""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import click
import msgspec

from aftercommit.cli.output import message, printable
from aftercommit.errors import ContractViolation, InvalidPayload, UnreadableEvent


def read_payload(source: str) -> bytes:
    """A payload that was prepared elsewhere; `-` is stdin."""
    return sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()


def edit_payload(payload: str, check: Callable[[bytes], None]) -> bytes | None:
    """What the operator made of a payload; None when nothing was changed.

    What `check` refuses is shown with the reason and can be edited further; nothing that was typed is lost.
    """
    before = msgspec.json.format(payload, indent=2)
    text = before
    while True:
        edited = _edited(text)
        if edited is None or edited.strip() == before.strip():
            return None
        try:
            # Indented for the eye alone: stored is what a publisher would have written.
            new = msgspec.json.format(edited.encode(), indent=-1) if _is_json(edited) else edited.encode()
            check(new)
        except (ContractViolation, UnreadableEvent) as problem:
            message(printable(str(problem)))
            if not _asks_again():
                message(
                    f"what you wrote is kept in {_kept(edited.encode())}: correct it there, and give it with --payload"
                )
                raise
            text = edited
        else:
            return new


def _edited(text: str) -> str | None:
    try:
        return click.edit(text, extension=".json")
    except UnicodeDecodeError as problem:
        kept = _kept(problem.object)
        raise InvalidPayload(
            f"what the editor saved is not UTF-8 ({problem.reason} at byte {problem.start}): it is kept in {kept}; "
            "save it as UTF-8 there, and give it with --payload"
        ) from problem


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _asks_again() -> bool:
    try:
        return click.confirm("Open the editor again?", default=True, err=True)
    except click.Abort:
        # Nobody is there to ask, or they have had enough.
        return False


def _kept(written: bytes) -> Path:
    with tempfile.NamedTemporaryFile(prefix="payload-", suffix=".json", delete=False) as file:
        file.write(written)
    return Path(file.name)
