"""Stores chats and messages in a file of JSON lines, so that they survive the process.

A message is in the file before the bot gets its answer. A killed process leaves at most one incomplete line.
"""

import fcntl
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from aftercommit.contrib.telegram.local_api.messenger import Messenger, Past, Seen
from aftercommit.contrib.telegram.local_api.records import Chat, Message, Update
from aftercommit.telemetry import log_event

logger = logging.getLogger("aftercommit.bot_api")

MESSAGES_KEPT: Final = 500
_MOST_LINES: Final = 20_000
_encode: Final = msgspec.json.Encoder().encode


class Line(msgspec.Struct, omit_defaults=True):
    """One change. A chat that is not `there` was deleted."""

    chat: Chat | None = None
    there: bool = True
    blocked: bool = False
    message: Message | None = None
    update: Update | None = None
    seen: int | None = None


class Journal:
    """Restores a messenger from the file, and writes its changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock: IO[bytes] | None = None
        self._file: IO[bytes] | None = None
        self._lines = 0

    def open(self, messenger: Messenger) -> None:
        """Restore the messenger and start writing. A file that another server uses is left alone."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        lock = self._path.with_suffix(".lock").open("wb")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            remedy = "these chats are kept in memory only; stop the other server, or use another folder"
            log_event(logger, logging.WARNING, "chats_in_use", file=str(self._path), remedy=remedy)
            return
        self._lock = lock
        messenger.restore(_past(self._read()))
        self._rewrite(messenger)
        messenger.changes.listeners.append(lambda changed: self._write(messenger, changed))

    def close(self) -> None:
        """Close the file."""
        for each in (self._file, self._lock):
            if each is not None:
                each.close()
        self._file = self._lock = None

    def _read(self) -> Iterator[Line]:
        if not self._path.exists():
            return
        decode = msgspec.json.Decoder(Line).decode
        with self._path.open("rb") as file:
            for number, text in enumerate(file, start=1):
                try:
                    yield decode(text)
                except (msgspec.DecodeError, UnicodeDecodeError) as problem:
                    log_event(logger, logging.WARNING, "chat_line_unreadable", line=number, error=str(problem)[:200])

    def _rewrite(self, messenger: Messenger) -> None:
        """Compact the file; the old one stays until the new one is complete."""
        draft = self._path.with_suffix(".new")
        lines = list(_lines_of(messenger))
        with draft.open("wb") as file:
            file.writelines(_encode(line) + b"\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self._path)
        if self._file is not None:
            self._file.close()
        self._file = self._path.open("ab", buffering=0)
        self._lines = len(lines)

    def _write(self, messenger: Messenger, changed: Sequence[object]) -> None:
        lines = [line for each in changed if (line := _line_of(messenger, each)) is not None]
        if self._file is None or not lines:
            return
        self._file.write(b"".join(_encode(line) + b"\n" for line in lines))
        self._lines += len(lines)
        if self._lines > _MOST_LINES:
            self._rewrite(messenger)


def _line_of(messenger: Messenger, changed: object) -> Line | None:
    match changed:
        case Chat():
            there = changed.chat_id in messenger.chats
            return Line(chat=changed, there=there, blocked=changed.chat_id in messenger.blocked)
        case Message():
            return Line(message=changed)
        case Update():
            return Line(update=changed)
        case Seen():
            return Line(seen=changed.before)
    return None


def _lines_of(messenger: Messenger) -> Iterator[Line]:
    for chat_id, chat in messenger.chats.items():
        yield Line(chat=chat, blocked=chat_id in messenger.blocked)
        yield from (Line(message=message) for message in messenger.messages(chat_id)[-MESSAGES_KEPT:])
    yield from (Line(update=update) for update in messenger.updates)
    yield Line(seen=messenger.updates[0].update_id if messenger.updates else messenger.next_update)


def _past(lines: Iterator[Line]) -> Past:
    """The state after all lines."""
    past = Past()
    messages: dict[int, dict[int, Message]] = past.messages
    for line in lines:
        if line.chat is not None:
            _take_chat(past, line)
        if line.message is not None:
            messages.setdefault(line.message.chat_id, {})[line.message.message_id] = line.message
        if line.update is not None:
            past.updates.append(line.update)
        if line.seen is not None:
            past.updates = [update for update in past.updates if update.update_id >= line.seen]
            past.next_update = max(past.next_update, line.seen)
    return past


def _take_chat(past: Past, line: Line) -> None:
    chat: Any = line.chat
    if not line.there:
        past.chats.pop(chat.chat_id, None)
        past.messages.pop(chat.chat_id, None)
        past.blocked.discard(chat.chat_id)
        return
    past.chats[chat.chat_id] = chat
    (past.blocked.add if line.blocked else past.blocked.discard)(chat.chat_id)
