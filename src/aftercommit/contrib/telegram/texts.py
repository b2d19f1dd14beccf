"""The bot's texts as tables, one per language: built in, or from the configuration.

A text is a list of lines with values in braces. A line with a missing value is left out, so that one table works for
events with more and with fewer fields.
"""

import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any, Final
from urllib.parse import quote

import msgspec

from aftercommit.contrib.telegram.markup import Html, Values, check_line, escape, is_seen, link, placeholders, render
from aftercommit.errors import DeclarationError

FALLBACK: Final = "en"
OTHER: Final = "other"
# Names of values, and their paths in an event; the first path that exists is used.
VALUES: Final[Mapping[str, tuple[str, ...]]] = {
    "title": ("payload.title", "task_id", "event_id"),
    "actor": ("payload.actor_name", "actor_user_id"),
    "assignee": ("payload.assignee_name", "payload.assignee_user_id"),
    "previous_assignee": ("payload.previous_assignee_name", "payload.previous_assignee_user_id"),
    "state": ("payload.state",),
    "note": ("payload.note", "payload.reason", "payload.comment", "payload.report"),
}
_KINDS: Final = ("events", "messages", "commands", "words")


class Table(msgspec.Struct, frozen=True):
    """The texts of one language."""

    events: Mapping[str, Sequence[str]]
    messages: Mapping[str, Sequence[str]]
    commands: Mapping[str, str]
    words: Mapping[str, str]


class Texts:
    """The texts of all languages; turns events into messages."""

    def __init__(
        self,
        own: Mapping[str, Mapping[str, Mapping[str, Any]]] | None = None,
        *,
        values: Mapping[str, Sequence[str]] | None = None,
        page: str | None = None,
    ) -> None:
        """`own` replaces texts or adds languages; `page` is the address of an item's page."""
        given = own or {}
        languages = sorted({*built_in(), *given})
        self.tables = {language: _table(language, given.get(language, {})) for language in languages}
        self._values = {**VALUES, **(values or {})}
        self._page = page

    def language(self, code: str | None) -> str:
        """The language for a Telegram language code: `de` for `de-AT`, and English if there is no table."""
        short = (code or "").lower().replace("_", "-").partition("-")[0]
        return short if short in self.tables else FALLBACK

    def event(self, language: str, event_type: str, item: Mapping[str, Any]) -> str:
        """The message for an event."""
        table = self.tables[self.language(language)]
        lines = table.events.get(event_type) or table.events[OTHER]
        # Telegram refuses blank messages.
        return render(lines, self._of(table, event_type, item, lines)).strip() or escape(event_type).strip() or "·"

    def message(self, language: str, name: str, /, **values: str | Html | None) -> str:
        """One of the bot's own messages."""
        return render(self.tables[self.language(language)].messages[name], values)

    def word(self, language: str, name: str) -> str:
        """A word for use in messages."""
        return self.tables[self.language(language)].words[name]

    def page(self, item: Mapping[str, Any]) -> str:
        """The address of an item's page; empty if there is none."""
        if self._page is None:
            return ""
        address = self._page
        for name in placeholders(address):
            paths = (*self._values.get(name, ()), name)
            found = next((text for path in paths if (text := _text(_at(item, path))) is not None), None)
            if found is None:
                return ""
            address = address.replace(f"{{{name}}}", quote(found, safe=""))
        return address

    def _of(self, table: Table, event_type: str, item: Mapping[str, Any], lines: Sequence[str]) -> Values:
        names = {name for line in lines for name in placeholders(line)}
        values: dict[str, str | Html | None] = {
            name: _worded(table, item, self._values.get(name, (name,))) for name in names
        }
        values["event_type"] = event_type.replace("_", " ")
        title = _worded(table, item, self._values["title"]) or ""
        untitled = table.words.get("untitled", event_type)
        values["linked"] = link(self.page(item), title if is_seen(title) else untitled)
        return values


@cache
def built_in() -> dict[str, dict[str, Any]]:
    """The built-in tables by language."""
    folder = resources.files("aftercommit.contrib.telegram") / "tables"
    return {
        entry.name.removesuffix(".toml"): tomllib.loads(entry.read_text(encoding="utf-8"))
        for entry in folder.iterdir()
        if entry.name.endswith(".toml")
    }


def _table(language: str, own: Mapping[str, Mapping[str, Any]]) -> Table:
    known = built_in()
    for kind in own:
        if kind not in _KINDS:
            raise DeclarationError(f"unknown name texts.{language}.{kind}: use {', '.join(_KINDS)}")
    base = known.get(language, {})
    merged: dict[str, dict[str, Any]] = {
        kind: {**known[FALLBACK][kind], **base.get(kind, {}), **own.get(kind, {})} for kind in _KINDS
    }
    lines = {
        kind: {name: _lines(text, f"texts.{language}.{kind}.{name}") for name, text in merged[kind].items()}
        for kind in ("events", "messages")
    }
    unknown = sorted(merged["messages"].keys() - known[FALLBACK]["messages"].keys())
    if unknown:
        raise DeclarationError(
            f"unknown message texts.{language}.messages.{unknown[0]}: use "
            f"{', '.join(sorted(known[FALLBACK]['messages']))}"
        )
    for kind in ("commands", "words"):
        for name, text in merged[kind].items():
            if not isinstance(text, str):
                raise DeclarationError(f"texts.{language}.{kind}.{name} = {text!r:.60} must be a string")
    return Table(lines["events"], lines["messages"], merged["commands"], merged["words"])


def _lines(text: Any, where: str) -> tuple[str, ...]:
    lines = (text,) if isinstance(text, str) else text
    if not isinstance(lines, list | tuple) or not lines or not all(isinstance(line, str) for line in lines):
        raise DeclarationError(f"{where} = {text!r:.60} must be a string or a list of lines")
    for line in lines:
        check_line(line, where)
    return tuple(lines)


def _worded(table: Table, item: Mapping[str, Any], paths: Sequence[str]) -> str | None:
    """The first value that exists, in the table's words for it: `state.reported`, `actor_user_id`."""
    for path in paths:
        text = _text(_at(item, path))
        if text is not None:
            name = path.rpartition(".")[2]
            worded = table.words.get(f"{name}.{text}") or table.words.get(name, "{value}")
            return worded.replace("{value}", text)
    return None


def _at(item: Mapping[str, Any], path: str) -> Any:
    found: Any = item
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _text(value: Any) -> str | None:
    """A string or number as text; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    return str(value) or None
