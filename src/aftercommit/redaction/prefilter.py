"""Cheap tests that tell that a rule of redaction cannot find anything in a text. Pure.

Most texts have nothing to find, and a test costs a fraction of its rule. It looks for what every match of the rule has,
so it may say yes too often, but must not say no where there is a match. If you change a rule, check its test;
`tests/unit/test_redaction_prefilter.py` compares them.
"""

import re
from collections.abc import Callable
from typing import Final

May = Callable[[str, str], bool]

# Nothing shorter than this is found.
LEAST: Final = 3
# A text of this length has at most a short address, or a value behind a name of two or three letters: `pw=x`.
_TINY: Final = 5
_IN_TINY = re.compile("[:/pPcCoOsSjJ][:/wWiIvVsStTaA]")
# A text of this length without signs has nothing: tokens, numbers, IP addresses and flags without a space are longer.
_SHORT: Final = 10
_PLAIN = re.compile(rf"[^@=:>%\d(\[{{-]{{0,{_SHORT}}}|[^@=:>%.\s]{{0,8}}|[^@=:>%-]{{0,6}}")
# UUIDs and times.
_PLAIN_AS_WHOLE = re.compile(
    r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
    r"|(?:19|20)\d\d-(?:0\d|1[0-2])-(?:[0-2]\d|3[01])[T ]\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)?"
)
# The rarest part of each known token: a line or a dot with a long rest behind it, or capital letters.
_KNOWN = re.compile(
    r"[_\-.JA](?:(?<=[_-])[A-Za-z0-9+/=_-]{10}|(?<=\.)[A-Za-z0-9_-]{16}|(?<=eyJ)"
    r"|(?<=A)(?:[A-Z]{2}A[A-Z0-9]|Iza|T[AC]TT3|A[A-Za-z0-9_-]{16}))"
)
_LETTER = re.compile(r"-(?<![^ \t\n]-)[-apuwP]")
_PAIRS = re.compile(r"[:-](?:[0-9a-f]{2}[:-]){4}")
_LEAST_MAC: Final = 17


def is_plain(text: str) -> bool:
    """Whether no rule can find anything in it, by its length or its whole shape. True for most values of a log."""
    if len(text) < LEAST:
        return True
    if not text.isascii():
        return False
    if len(text) <= _TINY and not _IN_TINY.search(text):
        return True
    pattern = _PLAIN if len(text) <= _SHORT else _PLAIN_AS_WHOLE
    return pattern.fullmatch(text) is not None


def private_keys(text: str, lowered: str) -> bool:
    """Every private key begins so."""
    return "-----BEGIN " in text


def named_values(text: str, lowered: str) -> bool:
    """What separates a name from its value, or begins a flag."""
    between = ":" in text or "=" in text or ">" in text or "%3" in text
    return between or "--" in text or "'," in text or '",' in text


def command_lines(text: str, lowered: str) -> bool:
    """A flag by which some program takes a password."""
    flagged = " -" in text or "\n-" in text or "\t-" in text or text.startswith("-")
    return flagged and _LETTER.search(text) is not None


def known_tokens(text: str, lowered: str) -> bool:
    """Some of their first characters, and the least that follows."""
    if ("$" in text and text.count("$") >= 2) or "hooks.slack.com/" in text or "/webhooks/" in text:
        return True
    return _KNOWN.search(text) is not None


def bearer_tokens(text: str, lowered: str) -> bool:
    """One of the words. Written out, because that is several times as fast as a loop or a pattern."""
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
    """A URL, or Oracle's form of one."""
    return "//" in text or ("@" in text and ("oracle:" in lowered or "sqlplus" in lowered))


def emails(text: str, lowered: str) -> bool:
    """An @, plain or escaped."""
    if "@" in text or ("&" in text and ("&#64;" in text or "&commat;" in text)):
        return True
    return "40" in text and ("%" in text or "x40" in text or "X40" in text or "u0040" in text)


def spelled_emails(text: str, lowered: str) -> bool:
    """The word before the last part of a domain."""
    return " dot " in lowered


def ip_addresses(text: str, lowered: str) -> bool:
    """Three dots, or many colons, or a host that is named after its address."""
    if ("." in text and text.count(".") >= 3) or (":" in text and may_be_v6(text)):
        return True
    return "-" in text and may_be_host(lowered)


def may_be_host(lowered: str) -> bool:
    """The beginning of a host name that contains an address."""
    return "ip-" in lowered or "ec2-" in lowered or "host-" in lowered


def mac_addresses(text: str, lowered: str) -> bool:
    """Many lines or colons, and pairs between them."""
    if len(text) < _LEAST_MAC or (text.count(":") < 5 and text.count("-") < 5):
        return False
    return _PAIRS.search(lowered) is not None


def may_be_v6(text: str) -> bool:
    """A double colon or six of them: fewer are a time or the name of a method."""
    return "::" in text or text.count(":") >= 6
