"""What tells quickly that a text has nothing in it that a rule of redaction finds. Pure.

Most texts have nothing, and there are many of them: a test here costs a fraction of its rule. It looks for what all
that the rule finds has in it, so it may say yes too often, and never no where there is something. Whoever changes a
rule looks at its test; `tests/unit/test_redaction_prefilter.py` compares them.
"""

import re
from collections.abc import Callable
from typing import Final

from aftercommit.redaction.numbers import may_be_number

May = Callable[[str, str], bool]

# Nothing that is found is shorter than this.
LEAST: Final = 3
# In what is as short as this there is at most a short address, or the value of a name of two or three letters: `pw=x`.
_TINY: Final = 5
_IN_TINY = re.compile("[:/pPcCoOsSjJ][:/wWiIvVsStTaA]")
# Without signs, what is as short as this: tokens are longer, as are numbers, addresses of machines, and flags without a
# space.
_SHORT: Final = 10
_PLAIN = re.compile(rf"[^@=:>%\d(\[{{-]{{0,{_SHORT}}}|[^@=:>%.\s]{{0,8}}|[^@=:>%-]{{0,6}}")
# UUIDs and points in time.
_PLAIN_AS_WHOLE = re.compile(
    r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
    r"|(?:19|20)\d\d-(?:0\d|1[0-2])-(?:[0-2]\d|3[01])[T ]\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)?"
)
# What is rarest in each of the known tokens: a line or a dot with a long rest behind it, or large letters.
_KNOWN = re.compile(
    r"[_\-.JA](?:(?<=[_-])[A-Za-z0-9+/=_-]{10}|(?<=\.)[A-Za-z0-9_-]{16}|(?<=eyJ)"
    r"|(?<=A)(?:[A-Z]{2}A[A-Z0-9]|Iza|T[AC]TT3|A[A-Za-z0-9_-]{16}))"
)
_LETTER = re.compile(r"-(?<![^ \t\n]-)[-apuwP]")
_PAIRS = re.compile(r"[:-](?:[0-9a-f]{2}[:-]){4}")
_LEAST_MAC: Final = 17


def is_plain(text: str) -> bool:
    """Whether no rule can find anything in it, by its length or as a whole. Most of a context is."""
    if len(text) < LEAST:
        return True
    if not text.isascii():
        return False
    if len(text) <= _TINY and not _IN_TINY.search(text):
        return True
    pattern = _PLAIN if len(text) <= _SHORT else _PLAIN_AS_WHOLE
    return pattern.fullmatch(text) is not None


def always(text: str, lowered: str) -> bool:
    """Whatever the text is, the rule has to be asked."""
    return True


def private_keys(text: str, lowered: str) -> bool:
    """Every one begins so."""
    return "-----BEGIN " in text


def named_values(text: str, lowered: str) -> bool:
    """What stands between a name and its value, or before a flag."""
    between = ":" in text or "=" in text or ">" in text or "%3" in text
    return between or "--" in text or "'," in text or '",' in text


def command_lines(text: str, lowered: str) -> bool:
    """A flag that some program takes a password by."""
    flagged = " -" in text or "\n-" in text or "\t-" in text or text.startswith("-")
    return flagged and _LETTER.search(text) is not None


def known_tokens(text: str, lowered: str) -> bool:
    """A part of their first characters, and the least that has to follow."""
    if ("$" in text and text.count("$") >= 2) or "hooks.slack.com/" in text or "/webhooks/" in text:
        return True
    return _KNOWN.search(text) is not None


def bearer_tokens(text: str, lowered: str) -> bool:
    """One of the words. Asked one by one, which is several times as quick as a loop or a pattern."""
    return (
        "bearer" in lowered
        or "basic" in lowered
        or "digest" in lowered
        or "token" in lowered
        or "apikey" in lowered
        or "negotiate" in lowered
        or "hawk" in lowered
    )


def url_passwords(text: str, lowered: str) -> bool:
    """There is a URL, or what Oracle has for one."""
    return "//" in text or ("@" in text and ("oracle:" in lowered or "sqlplus" in lowered))


def emails(text: str, lowered: str) -> bool:
    """What stands before the domain."""
    if "@" in text or ("&" in text and ("&#64;" in text or "&commat;" in text)):
        return True
    return "40" in text and ("%" in text or "x40" in text or "X40" in text or "u0040" in text)


def spelled_emails(text: str, lowered: str) -> bool:
    """The word before the last part of a domain."""
    return " dot " in lowered


def ip_addresses(text: str, lowered: str) -> bool:
    """Three dots, or many colons, or a host that is called after its address."""
    if ("." in text and text.count(".") >= 3) or (":" in text and may_be_v6(text)):
        return True
    return "-" in text and may_be_host(lowered)


def may_be_host(lowered: str) -> bool:
    """What stands before its address."""
    return "ip-" in lowered or "ec2-" in lowered or "host-" in lowered


def mac_addresses(text: str, lowered: str) -> bool:
    """Many lines or colons, and pairs between them."""
    if len(text) < _LEAST_MAC or (text.count(":") < 5 and text.count("-") < 5):
        return False
    return _PAIRS.search(lowered) is not None


def may_be_v6(text: str) -> bool:
    """Fewer colons, and none of them double, are a time or the name of a method."""
    return "::" in text or text.count(":") >= 6


def numbers(text: str, lowered: str) -> bool:
    """Enough digits together, or some behind a large letter."""
    return may_be_number(text)
