"""Reads the new payload for `aftercommit dead edit` from a file, from stdin, or from the operator's editor."""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import click
import msgspec

from aftercommit.cli.output import message, printable
from aftercommit.errors import ContractViolation, InvalidPayload, UnreadableEvent


def read_payload(source: str) -> bytes:
    """Read a payload from a file; `-` is stdin."""
    return sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()


def edit_payload(payload: str, check: Callable[[bytes], None]) -> bytes | None:
    """Let the operator edit a payload; None when it was not changed.

    If `check` refuses the new payload, the operator sees the reason and can edit further; if they do not, the text is
    saved in a file.
    """
    before = msgspec.json.format(payload, indent=2)
    text = before
    while True:
        edited = _edited(text)
        if edited is None or edited.strip() == before.strip():
            return None
        try:
            # The editor shows it indented; the database gets it compact, as a publisher would have written it.
            new = msgspec.json.format(edited.encode(), indent=-1) if _is_json(edited) else edited.encode()
            check(new)
        except (ContractViolation, UnreadableEvent) as problem:
            message(printable(str(problem)))
            if not _asks_again():
                message(f"your text is saved in {_kept(edited.encode())}: correct it there, then give it as --payload")
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
            f"the editor did not save UTF-8 ({problem.reason} at byte {problem.start}). Your text is in {kept}: save "
            "it as UTF-8, then give it as --payload"
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
        # There is no terminal, or the operator has pressed Ctrl-C.
        return False


def _kept(written: bytes) -> Path:
    with tempfile.NamedTemporaryFile(prefix="payload-", suffix=".json", delete=False) as file:
        file.write(written)
    return Path(file.name)
