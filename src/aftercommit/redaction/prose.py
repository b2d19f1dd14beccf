"""Rules for secrets behind their name and a space: in sentences and on command lines. Pure.

The word behind the name has to look like a secret: `password hunter2`, `cvv 123`, `tel. 0301234567`, but not
`password reset`, `pin 13`, `mobile 17.4`.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from aftercommit.redaction.numbers import Span
from aftercommit.redaction.patterns import LookBudget, by_first_letter
from aftercommit.redaction.secret_names import SECRET

_PASSWORDS = (
    *"password passwd passphrase passwort kennwort contrasena wachtwoord requirepass masterauth пароль".split(),
    "mot de passe",
)
_PHONES = "phone telephone telefon tel mobile mob fax whatsapp".split()
_LONG_ENOUGH = 8
_QUOTED = r"([\"'])(?P<quoted>[^\"'\r\n]{1,128}+)"
_BARE = r"(?P<bare>[^\s\"'`<>,;]{6,128}+)"
_SHORT_CODE = re.compile(r"(?P<number>\d{3,4})(?!\w|[.-]\d)")
_CODE = re.compile(r"(?P<number>\d{4,8})(?!\w|[.:-]\d)")
_PHONE = re.compile(r"(?P<number>\+?\(?\d(?:[ ().\-/]{0,2}\d){6,14})(?!\w)")
_NATIONAL = re.compile(r"(?P<number>\d(?:[ .-]?\d){7,8})(?!\w)")
# By name: the shape of the value, and its kind.
_VALUES: Final[Mapping[str, tuple[re.Pattern[str], str]]] = {
    **{name: (re.compile(f"{_QUOTED}|{_BARE}" if len(name) >= _LONG_ENOUGH else _BARE), SECRET) for name in _PASSWORDS},
    **dict.fromkeys("cvv cvv2 cvc cvc2 csc".split(), (_SHORT_CODE, SECRET)),
    **dict.fromkeys("otp pin passcode".split(), (_CODE, SECRET)),
    **dict.fromkeys(_PHONES, (_PHONE, "phone")),
    **dict.fromkeys(("ssn", "bsn", "burgerservicenummer", "social security number"), (_NATIONAL, "national-id")),
}
_SPOKEN = re.compile(
    rf"({by_first_letter(sorted(_VALUES, reverse=True))})(?:[ \t](?:is|was|to|number|no|nr|code))?[.#]?[ \t]{{1,2}}"
)
# What follows the word in sentences about passwords: algorithms, ticket numbers, times, settings.
_NO_PASSWORD = re.compile(
    r"(?:sha|md|utf|base|oauth|bcrypt|argon|scrypt|pbkdf)-?\d.*|[a-z]{1,10}-\d+[.:!?)]*|\d[\d.:tz+-]*"
)
_DATE = re.compile(r"(?:19|20)\d\d-\d\d-\d\d")


def may_be_spoken(text: str, lowered: str) -> bool:
    """A space, and one of the names."""
    return (" " in text or "\t" in text) and _SPOKEN.search(lowered) is not None


def spoken_values(text: str, lowered: str, looks: LookBudget) -> Iterator[Span]:
    """Passwords, codes and numbers behind their name."""
    place = 0
    while match := _SPOKEN.search(lowered, place):
        looks.spend()
        place = match.end()
        before = lowered[max(0, match.start() - 1) : match.start()]
        pattern, kind = _VALUES[match[1]]
        value = pattern.match(lowered, place)
        if value is None or before.isalnum() or not _is_said(value):
            continue
        begin, place = value.span(value.lastgroup or 0)
        yield begin, place, kind


def _is_said(value: re.Match[str]) -> bool:
    """Whether the value looks like what its name says."""
    if value.lastgroup == "number":
        return not _DATE.match(value["number"])
    if value.lastgroup == "quoted":
        return True
    written = value["bare"]
    if "=" in written or written.endswith(":") or _NO_PASSWORD.fullmatch(written):
        return False
    return any(map(str.isdigit, written)) and any(map(str.isalpha, written))


# -- command lines ---------------------------------------------------------------------------------------------------

_USER = re.compile(r"-(?<![^ \t\n]-)(?:u|-(?:proxy-)?user)[ \t=]{1,2}[\"']?([^\s:\"'@/]{0,64}+):(?![/\s])([^\s\"']++)")
_LETTER = re.compile(r"-(?<![^ \t\n]-)([apwP])([ \t]{0,2}+)[\"']?([^\s\"'-][^\s\"']*+)")
# Which programs take a password by which letter: directly behind it (False), or after a space (True).
_PROGRAMS: Final[Mapping[tuple[str, bool], tuple[str, ...]]] = {
    ("p", False): ("mysql", "mariadb", "sshpass"),
    ("p", True): ("sshpass", "docker login", "podman login", "registry login", "mongo", "oc login"),
    ("a", True): ("redis-cli",),
    ("w", True): ("ldapsearch", "ldapadd", "ldapmodify", "ldapwhoami"),
    ("P", True): ("sqlcmd", "zip", "bcp "),
}
# How far back the name of the program is searched for.
_LONGEST_COMMAND = 300
_ENDS_OF_COMMANDS = ("\n", "|", ";", "&&")


def command_lines(text: str, lowered: str, looks: LookBudget) -> Iterator[Span]:
    """`curl -u ada:password`, `mysql -ppassword`, and the like of other programs."""
    for match in _USER.finditer(text):
        looks.spend()
        # `docker run -u 1000:1000` and `node:node` are a user and a group.
        if match[1] != match[2] and not (match[1].isdigit() and match[2].isdigit()):
            yield *match.span(2), "password"
    for match in _LETTER.finditer(text):
        looks.spend()
        programs = _PROGRAMS.get((match[1], bool(match[2])), ())
        before = lowered[max(0, match.start() - _LONGEST_COMMAND) : match.start()]
        begin = max(map(before.rfind, _ENDS_OF_COMMANDS))
        if any(before.rfind(program) > begin for program in programs):
            yield *match.span(3), "password"
