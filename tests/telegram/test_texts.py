"""What the bot says reads well and cannot be broken by what it quotes: escaped, in the reader's language, and short."""

import html
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aftercommit.contrib.telegram import Texts
from aftercommit.contrib.telegram.commands import COMMANDS
from aftercommit.contrib.telegram.local_api.markup import parse_html, utf16_length
from aftercommit.contrib.telegram.markup import (
    CUT,
    LONGEST_MESSAGE,
    check_line,
    escape,
    placeholders,
    render,
    visible_length,
)
from aftercommit.contrib.telegram.texts import VALUES, built_in
from aftercommit.errors import DeclarationError
from systems.tasks.events import EVENTS

PAGE = "https://tasks.example/tasks/board/{task_id}"
TEXTS = Texts(page=PAGE)


def event(**payload: Any) -> dict[str, Any]:
    return {
        "event_id": 42,
        "task_id": 7,
        "event_type": "task_created",
        "actor_user_id": 1,
        "payload": {"title": "Count the chairs", "actor_name": "Ada", **payload},
    }


def test_an_event_is_told_with_its_title_its_page_and_who_did_it():
    assert TEXTS.event("en", "report_rejected", event(note="too <few>")) == (
        '↩️ <a href="https://tasks.example/tasks/board/7">Count the chairs</a>\n'
        "Ada rejected the report.\n"
        "<blockquote>too &lt;few&gt;</blockquote>"
    )


def test_a_line_whose_value_is_missing_is_left_out():
    assert TEXTS.event("en", "report_approved", event()).splitlines()[1:] == ["Ada approved the report."]


def test_without_a_page_the_title_is_bold():
    assert Texts().event("en", "task_created", event()).startswith("🆕 <b>Count the chairs</b>")


def test_who_has_no_name_in_the_event_is_known_by_number():
    item = event(actor_name=None)
    assert "User 1 created this task." in TEXTS.event("en", "task_created", item)
    assert "Nutzer 1 hat diese Aufgabe angelegt." in TEXTS.event("de", "task_created", item)


@pytest.mark.parametrize(
    ("code", "language"), [("de", "de"), ("de-AT", "de"), ("RU", "ru"), ("pt-br", "en"), (None, "en"), ("", "en")]
)
def test_the_language_is_the_one_telegram_tells_or_english(code: str | None, language: str):
    assert TEXTS.language(code) == language


@pytest.mark.parametrize("language", ["en", "de", "ru"])
def test_every_language_says_everything_that_english_says(language: str):
    table, english = built_in()[language], built_in()["en"]
    assert set(table) == set(english)
    for kind in english:
        assert set(table[kind]) == set(english[kind]), kind
    assert set(EVENTS) <= set(table["events"])
    assert set(table["commands"]) == set(COMMANDS)
    for name, lines in english["messages"].items():
        assert {word for line in lines for word in placeholders(line)} == {
            word for line in table["messages"][name] for word in placeholders(line)
        }, name


@pytest.mark.parametrize("language", ["en", "de", "ru"])
def test_events_name_only_values_that_there_are(language: str):
    for lines in built_in()[language]["events"].values():
        for line in lines:
            assert placeholders(line) <= {*VALUES, "linked", "event_type"}


def test_an_event_of_an_unknown_type_is_told_in_general_words():
    text = TEXTS.event("en", "task_painted_green", event())
    assert text.splitlines()[1:] == ["task painted green", "Ada"]


@pytest.mark.parametrize("item", [{}, {"payload": None}, {"payload": [1]}, {"payload": {"title": {"a": 1}}}])
def test_an_event_that_says_nothing_is_told_all_the_same(item: dict[str, Any]):
    assert visible_length(TEXTS.event("en", "", item)) > 0
    assert visible_length(TEXTS.event("de", "withheld", {"event_id": 7, "withheld": "why", **item})) > 0


@given(
    st.text(max_size=300), st.text(max_size=60), st.sampled_from(["en", "de", "ru"]), st.sampled_from([*EVENTS, "x"])
)
def test_whatever_a_value_is_the_message_can_be_read_by_telegram(title: str, name: str, language: str, kind: str):
    text = TEXTS.event(language, kind, event(title=title, actor_name=name, note=title + name))
    parsed = parse_html(json.loads(json.dumps(text)))
    assert 0 < utf16_length(parsed.text) <= LONGEST_MESSAGE


@given(st.text(max_size=200))
def test_an_escaped_value_is_shown_as_it_is(value: str):
    shown = html.unescape(escape(value))
    assert shown.split() == "".join(c if c.isprintable() or c in "\u200c\u200d" else " " for c in value).split()


def test_what_joins_an_emoji_or_parts_a_word_is_kept():
    assert escape("👩\u200d💻 می\u200cخواهم") == "👩\u200d💻 می\u200cخواهم"


@pytest.mark.parametrize("title", ["", "   ", "\u200d", "\u200b \u200c"])
def test_a_title_of_which_nothing_is_seen_is_named_all_the_same(title: str):
    assert "<b></b>" not in (text := TEXTS.event("en", "task_created", event(title=title)))
    assert parse_html(text).text.strip()


@pytest.mark.parametrize("unit", ["a", "<", "&", "😀", "\n", "ä", '"'])
def test_a_message_that_is_too_long_is_cut_where_it_is_long_and_says_so(unit: str):
    text = TEXTS.event("en", "report_submitted", event(title=unit * 5000, note="x" + unit * 100_000))
    parsed = parse_html(text)
    assert utf16_length(parsed.text) <= LONGEST_MESSAGE
    assert unit == "\n" or CUT in text
    assert "Ada submitted a report." in text
    assert 'href="https://tasks.example/tasks/board/7"' in text


def test_hundreds_of_lines_are_a_part_of_them_rather_than_nothing():
    text = render(["<b>line</b> {value}"] * 900, {"value": "<b>&" * 15})
    assert 0 < visible_length(text) <= LONGEST_MESSAGE
    assert not parse_html(text).entities


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("<b>open", "<b> is not closed"),
        ("<b><i>x</b></i>", "has no matching start tag"),
        ("<table>x</table>", "Telegram does not know <table>"),
        ("a < b", "a bare <"),
        ("{Title}", "a brace outside a {value}"),
        ("{title", "a brace outside a {value}"),
    ],
)
def test_a_table_that_telegram_would_not_understand_is_refused_when_it_is_read(line: str, problem: str):
    with pytest.raises(DeclarationError, match=problem):
        Texts({"en": {"events": {"task_created": [line]}}})


def test_own_tables_say_it_otherwise_and_bring_other_languages():
    texts = Texts({"en": {"events": {"task_created": "New: {title}"}}, "fr": {"messages": {"hint": "Bonjour"}}})
    assert texts.event("en", "task_created", event()) == "New: Count the chairs"
    assert texts.message("fr", "hint") == "Bonjour"
    assert "created this task" in texts.event("fr", "task_created", event())


@pytest.mark.parametrize(
    ("own", "problem"),
    [
        ({"en": {"event": {}}}, "unknown name texts.en.event"),
        ({"en": {"messages": {"hullo": "x"}}}, "unknown message texts.en.messages.hullo"),
        ({"en": {"events": {"a": 7}}}, "texts.en.events.a = 7"),
        ({"en": {"words": {"a": 7}}}, "texts.en.words.a = 7"),
    ],
)
def test_a_table_that_cannot_be_meant_is_refused(own: Any, problem: str):
    with pytest.raises(DeclarationError, match=problem):
        Texts(own)


def test_the_lines_of_the_built_in_tables_can_be_read():
    for language, table in built_in().items():
        for kind in ("events", "messages"):
            for name, lines in table[kind].items():
                for line in lines:
                    check_line(line, f"{language}.{kind}.{name}")
