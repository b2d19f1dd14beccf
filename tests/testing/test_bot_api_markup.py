"""Telegram's HTML: what is taken, what it becomes, and what is said about the rest."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aftercommit.contrib.telegram.local_api.markup import (
    CannotParse,
    Entity,
    checked_link,
    formatted,
    parse_html,
    utf16_length,
)


@pytest.mark.parametrize(
    ("source", "text", "entities"),
    [
        ("plain", "plain", []),
        ("<b>a</b><strong>b</strong>", "ab", [("bold", 0, 1), ("bold", 1, 1)]),
        ("<i>a</i><em>b</em>", "ab", [("italic", 0, 1), ("italic", 1, 1)]),
        ("<u>a</u><ins>b</ins>", "ab", [("underline", 0, 1), ("underline", 1, 1)]),
        ("<s>a</s><strike>b</strike><del>c</del>", "abc", [("strikethrough", n, 1) for n in range(3)]),
        ("<tg-spoiler>a</tg-spoiler>", "a", [("spoiler", 0, 1)]),
        ("<span class='tg-spoiler'>a</span>", "a", [("spoiler", 0, 1)]),
        ("<blockquote>a</blockquote>", "a", [("blockquote", 0, 1)]),
        ("<blockquote expandable>a</blockquote>", "a", [("blockquote", 0, 1)]),
        ("<code>a</code>", "a", [("code", 0, 1)]),
        ("<pre>a</pre>", "a", [("pre", 0, 1)]),
        ('<pre><code class="language-python">a</code></pre>', "a", [("pre", 0, 1, "python")]),
        ('<code class="language-python"><pre>a</pre></code>', "a", [("pre", 0, 1, "python")]),
        ("<tg-emoji emoji-id='53683241'>👍</tg-emoji>", "👍", [("custom_emoji", 0, 2, "53683241")]),
        ("<a href='https://example.org'>a</a>", "a", [("text_link", 0, 1, "https://example.org/")]),
        (
            '<a href="https://example.org/?a=1&amp;b=2">a</a>',
            "a",
            [("text_link", 0, 1, "https://example.org/?a=1&b=2")],
        ),
        ("<a>example.org</a>", "example.org", [("text_link", 0, 11, "http://example.org/")]),
        ("<a href='http://localhost:8090/x'>a</a>", "a", []),
        ("<a href='javascript:alert(1)'>a</a>", "a", []),
        ("<a href='http://127.0.0.1:8090/x'>a</a>", "a", [("text_link", 0, 1, "http://127.0.0.1:8090/x")]),
        ("<b>a<i>b<u>c</u></i></b>", "abc", [("bold", 0, 3), ("italic", 1, 2), ("underline", 2, 1)]),
        ("<B>a</B >", "a", [("bold", 0, 1)]),
        ("<b>a</>", "a", [("bold", 0, 1)]),
        ("<b></b>a", "a", []),
        ("😀<b>😀</b>", "😀😀", [("bold", 2, 2)]),
        ("  <b> a </b>  ", "a", [("bold", 0, 1)]),
        ("&lt;b&gt; &amp; &quot; &#65; &#x1F600; &lt", '<b> & " A 😀 <', []),
        ("&#55357;&#56832;<b>x</b>", "😀x", [("bold", 2, 1)]),
        ("&nbsp; &copy; &ltx &; & &#0; &#99999999;", "&nbsp; &copy; &ltx &; & &#0; &#99999999;", []),
        ("a > b", "a > b", []),
    ],
)
def test_html_is_read_as_telegram_reads_it(source: str, text: str, entities: list[tuple[object, ...]]):
    parsed = parse_html(source)
    found = formatted(parsed.text, parsed.entities)
    assert found.text == text
    assert [tuple(entity)[: len(wanted)] for entity, wanted in zip(found.entities, entities, strict=True)] == entities


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("<b>x", "Can't find end tag corresponding to start tag b"),
        ("<b><i>x</b></i>", 'Unmatched end tag at byte offset 7, expected "</i>", found "</b>"'),
        ("x</b>", "Unexpected end tag at byte offset 1"),
        ("<b>x</b", "Unclosed end tag at byte offset 4"),
        ("1 < 2", 'Unsupported start tag "" at byte offset 2'),
        ("1 <2", "Unclosed start tag at byte offset 2"),
        ("é<kahn@example.org>", 'Unsupported start tag "kahn@example.org" at byte offset 2'),
        ("<script>x</script>", 'Unsupported start tag "script" at byte offset 0'),
        ("<br>", 'Unsupported start tag "br" at byte offset 0'),
        ("<img src=x onerror=alert(1)>", 'Unsupported start tag "img" at byte offset 0'),
        ("<span>x</span>", 'Tag "span" must have class "tg-spoiler" at byte offset 0'),
        ("<a href>x</a>", 'Expected equal sign in declaration of an attribute of the tag "a" at byte offset 0'),
        ("<a =x>x</a>", 'Empty attribute name in the tag "a" at byte offset 0'),
        ("<a href=https://example.org>x</a>", "Unexpected end of name token at byte offset 8"),
        ("<a href='x", 'Unclosed start tag "a" at byte offset 0'),
        ("<a href=", 'Unclosed start tag "a" at byte offset 0'),
        ("<a ", 'Unclosed start tag "a" at byte offset 0'),
        ("<tg-emoji>x</tg-emoji>", "Invalid custom emoji identifier specified"),
        ("&#xD800;", "Text contains invalid Unicode characters after decoding HTML entities"),
        ("<a href='&#xD800;'>x</a>", "Text contains invalid Unicode characters after decoding HTML entities"),
    ],
)
def test_what_is_not_telegrams_html_is_refused_with_its_words(source: str, said: str):
    with pytest.raises(CannotParse) as caught:
        parse_html(source)
    assert str(caught.value).startswith(said)


@given(st.text(alphabet="<>/b i='\"&;#xa\U0001f600\n-", max_size=60))
def test_any_text_is_taken_or_refused_and_entities_lie_within_it(source: str):
    try:
        parsed = parse_html(source)
    except CannotParse:
        return
    found = formatted(parsed.text, parsed.entities)
    length = utf16_length(found.text)
    for entity in found.entities:
        assert 0 <= entity.offset < entity.offset + entity.length <= length
    assert list(found.entities) == sorted(found.entities, key=lambda each: (each.offset, -each.length))


@given(st.text(max_size=200))
def test_an_escaped_text_comes_back_as_it_was(text: str):
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    assert parse_html(escaped).text == text


@pytest.mark.parametrize(
    "source",
    ["<b>" * 5000, "<b>x" * 4000 + "</b>" * 4000, "&" * 30_000, "<a " + "x='y' " * 5000, "<" * 30_000, "</b>" * 7000],
)
def test_hostile_texts_are_dealt_with(source: str):
    with suppress(CannotParse):
        formatted(*parse_html(source))


def test_no_more_entities_than_telegram_keeps():
    parsed = parse_html("<b>x</b> " * 150)
    assert len(formatted(parsed.text, parsed.entities).entities) == 100


def test_entities_are_told_as_the_bot_api_does():
    assert Entity("pre", 0, 1, "python").told() == {"offset": 0, "length": 1, "type": "pre", "language": "python"}
    assert Entity("bold", 0, 1).told() == {"offset": 0, "length": 1, "type": "bold"}


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("example.org", "http://example.org/"),
        ("https://user:pw@example.org:8443/a@b?c#d", "https://user:pw@example.org:8443/a@b?c#d"),
        ("tg://resolve?domain=x", "tg://resolve?domain=x"),
        ("http://[::1]:8090/", "http://[::1]:8090/"),
        ("ftp://example.org", None),
        ("http://localhost", None),
        ("http://a b.org", None),
        ("data:text/html,x", None),
        ("", None),
    ],
)
def test_only_addresses_that_telegram_makes_links_of_are_kept(url: str, kept: str | None):
    assert checked_link(url) == kept
