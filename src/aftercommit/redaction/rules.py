"""The rules that find secrets and personal data in a text, as spans of it. Pure.

Every rule is linear in the length of the text: a pattern either takes a run of characters whole (possessive
quantifiers give nothing back), or gives up after a fixed number of characters. It begins with what is rare, and looks
back from there. Possessive quantifiers follow single characters and classes only: behind a group, `re` before Python
3.11.5 is wrong about them.
"""

import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from aftercommit.redaction import prefilter
from aftercommit.redaction.addresses import (
    emails,
    ip_addresses,
    mac_addresses,
    spelled_emails,
    url_passwords,
)
from aftercommit.redaction.key_value import named_values
from aftercommit.redaction.numbers import Span, find_numbers, may_be_number
from aftercommit.redaction.patterns import LookBudget, beginning_of_word, by_first_letter
from aftercommit.redaction.prefilter import May
from aftercommit.redaction.prose import command_lines, may_be_spoken, spoken_values
from aftercommit.redaction.secret_names import LIKELY, MAYBE, SECRET, looks_secret

Find = Callable[[str, str, LookBudget], Iterator[Span]]


class RedactionRule(NamedTuple):
    """A search in a text, which is given as it is and in lower case. `kinds` are what it can find.

    `find` spends a look for each match that it checks; when none are left the text is withheld. `may` is its prefilter.
    """

    kinds: tuple[str, ...]
    find: Find
    may: May


# -- private keys ----------------------------------------------------------------------------------------------------

_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")


def private_keys(text: str, lowered: str, looks: LookBudget) -> Iterator[Span]:
    """From BEGIN to END, or to the end of the text: half a key is a secret, too."""
    place = 0
    while begin := _BEGIN.search(text, place):
        looks.spend()
        end = text.find("-----END", begin.end())
        close = text.find("-----", end + 8, end + 80) if end >= 0 else -1
        place = len(text) if end < 0 else (close + 5 if close >= 0 else end + 8)
        yield begin.start(), place, "private-key"


# -- tokens and keys with a known beginning ---------------------------------------------------------------------------

_KNOWN_PREFIXES = (
    # JWTs and any other JSON in base64, with the parts behind dots.
    ("eyJ", r"[A-Za-z0-9_-]{8,}+(?:\.[A-Za-z0-9_-]*+){0,4}"),
    ("act_", r"[A-Za-z0-9]{6,}+_[A-Za-z0-9]{16,}+"),
    *((prefix, "[A-Z0-9]{16}") for prefix in ("AKIA", "ASIA", "ABIA", "ACCA", "AGPA", "AIDA", "AROA")),
    ("gh[pousr]_", "[A-Za-z0-9]{20,}+"),
    ("github_pat_", "[A-Za-z0-9_]{20,}+"),
    ("gl(?:pat|ptt|dtt|rtt|soa)-", "[A-Za-z0-9_-]{16,}+"),
    *((f"{prefix}_(?:live|test)_", "[A-Za-z0-9]{10,}+") for prefix in ("sk", "pk", "rk", "rzp")),
    ("whsec_", "[A-Za-z0-9+/=]{16,}+"),
    ("sk-", "[A-Za-z0-9_-]{20,}+"),
    ("xox[abeoprs]-", "[A-Za-z0-9-]{10,}+"),
    ("xapp-", "[A-Za-z0-9-]{10,}+"),
    ("AIza", "[A-Za-z0-9_-]{35}"),
    (r"ya29\.", "[A-Za-z0-9_-]{20,}+"),
    (r"SG\.", r"[A-Za-z0-9_-]{16,64}+\.[A-Za-z0-9_-]{16,}+"),
    ("npm_", "[A-Za-z0-9]{30,}+"),
    ("pypi-", "[A-Za-z0-9_-]{30,}+"),
    ("dop_v1_", "[a-f0-9]{40,}+"),
    ("hf_", "[A-Za-z0-9]{20,}+"),
    ("shp(?:at|ca|pa|ss)_", "[a-fA-F0-9]{20,}+"),
    ("dckr_pat_", "[A-Za-z0-9_-]{20,}+"),
    (r"hv[sbr]\.", "[A-Za-z0-9_-]{20,}+"),
    ("lin_api_", "[A-Za-z0-9]{20,}+"),
    ("xkeysib-", "[a-f0-9]{40,}+"),
    ("key-", "[a-f0-9]{32}"),
    ("sq0(?:atp|csp)-", "[A-Za-z0-9_-]{20,}+"),
    ("AGE-SECRET-KEY-1", "[A-Z0-9]{40,}+"),
    ("AT[AC]TT3", "[A-Za-z0-9_=-]{20,}+"),
    ("gsk_", "[A-Za-z0-9]{20,}+"),
    ("r8_", "[A-Za-z0-9]{30,}+"),
    ("tvly-", "[A-Za-z0-9_-]{16,}+"),
    ("pplx-", "[A-Za-z0-9]{20,}+"),
    ("nvapi-", "[A-Za-z0-9_-]{20,}+"),
    ("glsa_", "[A-Za-z0-9_]{20,}+"),
    # Anyone who knows one of these URLs can post there.
    (r"hooks\.slack\.com/services/", "[A-Za-z0-9/]{10,}+"),
    (r"discord\.com/api/webhooks/", "[A-Za-z0-9/_-]{10,}+"),
)
_KNOWN = re.compile(by_first_letter(rf"{prefix}(?<![A-Za-z0-9]{prefix}){rest}" for prefix, rest in _KNOWN_PREFIXES))
# The token of a Telegram bot, behind its number.
_BOT = re.compile(r":AA[A-Za-z0-9_-]{32,}+")
# Hashes of passwords, as crypt writes them: weak passwords can be guessed from them.
_HASHED = re.compile(
    r"\$(?:2[abxy]\$\d\d\$[./A-Za-z0-9]{20,}+|argon2(?:id|i|d)\$[\w$=,+/.-]{20,}+|[156y]\$[\w$./]{20,}+)"
)


def known_tokens(text: str, lowered: str, looks: LookBudget) -> Iterator[Span]:
    """Tokens with a known beginning."""
    for match in _KNOWN.finditer(text):
        looks.spend()
        yield match.start(), match.end(), "jwt" if match[0].startswith("eyJ") else "key"
    for match in _BOT.finditer(text) if ":AA" in text else ():
        looks.spend()
        yield beginning_of_word(text, match.start()), match.end(), "key"
    for match in _HASHED.finditer(text) if "$" in text else ():
        looks.spend()
        yield *match.span(), "key"


_SCHEME = re.compile(
    r"(bearer|basic|digest|token|apikey|negotiate|hawk)(?:[ \t:=+]|%20){1,3}[\"']?([a-z0-9._~+/=-]{6,}+)"
)
# What follows the word in sentences about tokens.
_PROSE = frozenset(
    "token tokens authentication authorization authorisation header headers scheme schemes realm error missing invalid "
    "expired required format credential credentials challenge rejected accepted failed prefix string".split()
)


def bearer_tokens(text: str, lowered: str, looks: LookBudget) -> Iterator[Span]:
    """What follows `Bearer` and the like."""
    for match in _SCHEME.finditer(lowered):
        looks.spend()
        scheme, value = match[1], text[match.start(2) : match.end(2)]
        if match[2].rstrip(".") in _PROSE or lowered[match.start() - 1 : match.start()].isalnum():
            continue
        if scheme == "bearer" or looks_secret(value) or (scheme == "basic" and value.endswith("=")):
            yield match.start(2), match.end(2), "token"


# -- all rules --------------------------------------------------------------------------------------------------------


RULES: Final = (
    RedactionRule(("private-key",), private_keys, prefilter.private_keys),
    RedactionRule(
        (SECRET, MAYBE, LIKELY, "phone", "national-id", "card", "account"), named_values, prefilter.named_values
    ),
    RedactionRule((SECRET, "phone", "national-id"), spoken_values, may_be_spoken),
    RedactionRule(("password",), command_lines, prefilter.command_lines),
    RedactionRule(("jwt", "key"), known_tokens, prefilter.known_tokens),
    RedactionRule(("token",), bearer_tokens, prefilter.bearer_tokens),
    RedactionRule(("password",), url_passwords, prefilter.url_passwords),
    RedactionRule(("email",), emails, prefilter.emails),
    RedactionRule(("email",), spelled_emails, prefilter.spelled_emails),
    RedactionRule(("ip",), ip_addresses, prefilter.ip_addresses),
    RedactionRule(("mac",), mac_addresses, prefilter.mac_addresses),
    RedactionRule(("phone", "national-id", "card", "account"), find_numbers, may_be_number),
)
