"""Rules for addresses: mailboxes, IP and MAC addresses, and passwords in URLs. Pure, and linear in the text."""

import re
from collections.abc import Iterable, Iterator

from aftercommit.redaction import prefilter
from aftercommit.redaction.numbers import Span
from aftercommit.redaction.patterns import LookBudget, beginning_of_word

_AUTHORITY = re.compile(r"/{2,}+([^\s/?#\"'<>\\]*+)")
_PORT = re.compile(r":\d*\Z|\]\Z")
_BROKEN = re.compile(r"[\s\"'<>]")
# `ada/password@` of Oracle.
_ORACLE = re.compile(r"(?:oracle:[a-z0-9]{2,8}:|sqlplus[ \t]{1,2})([^\s/@:\"']{1,64}+/[^\s@\"']{1,128}+)@")


def url_passwords(text: str, lowered: str, looks: LookBudget) -> Iterator[Span]:
    """`user:password` before the @ of a URL, even if the password has characters that must be escaped in a URL."""
    for match in _AUTHORITY.finditer(text):
        begin, authority = match.start(1), match[1]
        if not authority:
            continue
        looks.spend()
        end = begin + authority.rfind("@")
        if text[match.start() - 1 : match.start()] != ":":
            # Without a scheme it may be a comment: `//joe@example.com` is a mailbox.
            if end > begin and ":" in text[begin:end]:
                yield begin, end, "password"
            continue
        if end < begin and ":" in authority and not _PORT.search(authority):
            end = text.find("@", match.end(), match.end() + 200)
            if end < 0 or _BROKEN.search(text, begin, end):
                continue
        if end > begin:
            yield begin, end, "password"
    if "oracle:" in lowered or "sqlplus" in lowered:
        for match in _ORACLE.finditer(lowered):
            looks.spend()
            yield *match.span(1), "password"


# Plain, or escaped as in URLs, HTML and JSON.
_WRITTEN_AT = r"@|%(?:25)?40|&#(?:64|[xX]40);|&commat;|\\{1,2}(?:u0040|x40)"
_DOMAIN = r"(?:([\w-]++(?:\.[\w-]++)+)|\[[0-9A-Fa-f:.]++\]|(?:[Ll]ocalhost|LOCALHOST)(?![\w.-]))"
_MAIL = re.compile(rf"(?<![\w.+!#$*^~-])[\w.+!#$*^~-]++({_WRITTEN_AT}){_DOMAIN}")
_QUOTED_MAIL = re.compile(rf"\"[^\"\r\n@]{{1,64}}+\"@{_DOMAIN}")
_AT = re.compile(_WRITTEN_AT)
_USERINFO = re.compile(r"://[^\s/?#\"'<>]*+\Z")
_VERSION = re.compile(r"\d++\.\d++(?:\.|\Z)")
# At `localhost` these are programs.
_SERVICES = frozenset(
    "root postgres mysql mariadb redis rabbit rabbitmq celery beam node git nobody daemon admin user app www-data "
    "nginx apache ubuntu debian vagrant docker jenkins airflow kafka elastic".split()
)
_SPELLED = re.compile(
    r" at [\w-]{1,63}+(?: dot [\w-]{1,63}){0,3} dot "
    r"(?:com|org|net|edu|gov|info|io|dev|app|de|fr|uk|ru|br|cn|jp|eu|nl|es|pl|ch|ca|au)(?![\w-])"
)
_FILES = frozenset("png jpg jpeg gif svg webp ico css js mjs map ts json html".split())


def emails(text: str, lowered: str, looks: LookBudget) -> Iterator[Span]:
    """E-mail addresses, in any script, but not `react@18.2.0` and `logo@2x.png`."""
    if '"@' in text:
        for quoted in _QUOTED_MAIL.finditer(text):
            looks.spend()
            if _is_mailbox(quoted[1]):
                yield *quoted.span(), "email"
    place = 0
    while at := _AT.search(text, place):
        # The address begins behind the last space: the words before that need no search.
        match = _MAIL.search(text, max(place, text.rfind(" ", place, at.start()) + 1))
        if match is None:
            return
        looks.spend()
        place = match.end()
        if _is_persons(match) and not _USERINFO.search(text, max(0, match.start(1) - 300), match.start(1)):
            yield match.start(), place, "email"


def spelled_emails(text: str, lowered: str, looks: LookBudget) -> Iterator[Span]:
    """`ann at example dot com`. Folding has already replaced `(at)` and `[dot]`."""
    for match in _SPELLED.finditer(lowered):
        looks.spend()
        begin = beginning_of_word(lowered, match.start())
        if begin < match.start():
            yield begin, match.end(), "email"


def _is_persons(match: re.Match[str]) -> bool:
    """Whether it is a mailbox, and not a program at `localhost`."""
    if match[0][-1] in "tT" and match[2] is None:
        return match[0][: match.start(1) - match.start()].lower() not in _SERVICES
    return _is_mailbox(match[2])


def _is_mailbox(domain: str | None) -> bool:
    if domain is None:
        # An IP address in brackets.
        return True
    last = domain.rpartition(".")[2]
    return not (len(last) < 2 or last.isdigit() or last.lower() in _FILES or _VERSION.match(domain))


_V4 = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}")
# From the first dot on, which is rarer than digits; then the digits before it.
_V4_DOTS = re.compile(r"\.\d{1,3}\.\d{1,3}\.\d{1,3}(?!\w|\.\d)")
_V4_FIRST = re.compile(r"(?<![\d.])\d{1,3}\Z")
_V6 = re.compile(r"(?<![\w:.])[0-9a-f]{0,4}+:[0-9a-f:.]{1,41}+(?![\w:.])")
_V6_GROUP = re.compile(r"[0-9a-f]{1,4}")
# Hosts are often named after their address. A MAC address has six pairs.
_V4_HOST = re.compile(r"(?:ip|ec2|host)-(\d{1,3})-(\d{1,3})-(\d{1,3})-(\d{1,3})(?![\w-])")
_MAC = re.compile(r"([:-])(?<=[0-9a-f]{2}[:-])[0-9a-f]{2}(?:\1[0-9a-f]{2}){4}(?![\w:-])")
# Next to a letter, a smaller first number means a version.
_LEAST_TOUCHING = 100
_PRERELEASE = re.compile(
    r"[-+](?:alpha|beta|rc|dev|snapshot|release|final|preview|pre|post|ga|build|hotfix|patch|nightly|stable)"
)
_SOFTWARE = re.compile(r"(?:version|ver\.?|release|chrome|edg|opr|firefox|safari|webkit|build)[ :=/]{0,3}\Z")


def ip_addresses(text: str, lowered: str, looks: LookBudget) -> Iterator[Span]:
    """IP addresses, but not loopback (127.0.0.1, ::1) and not versions of software."""
    for match in _V4_DOTS.finditer(text):
        looks.spend()
        first = _V4_FIRST.search(text, max(0, match.start() - 3), match.start())
        if first is None:
            continue
        begin, parts = first.start(), [int(part) for part in (first[0] + match[0]).split(".")]
        if _is_machine(parts) and not _is_version(lowered, begin, match.end(), parts[0]):
            yield begin, match.end(), "ip"
    for match in _V4_HOST.finditer(lowered) if prefilter.may_be_host(lowered) else ():
        looks.spend()
        if not lowered[max(0, match.start() - 1) : match.start()].isalnum() and _is_machine(map(int, match.groups())):
            yield match.start(1), match.end(), "ip"
    if prefilter.may_be_v6(text):
        yield from _of_six(lowered, looks)


def _is_machine(parts: Iterable[int]) -> bool:
    first, *rest = parts
    return first != 127 and max(first, *rest) < 256 and any((first, *rest))


def _is_version(lowered: str, begin: int, end: int, first: int) -> bool:
    if first < _LEAST_TOUCHING and first != 10 and _PRERELEASE.match(lowered, end):
        return True
    before = lowered[max(0, begin - 1) : begin]
    if before.isalpha() or before == "_":
        return first < _LEAST_TOUCHING and (first != 10 or before == "v")
    return _SOFTWARE.search(lowered, max(0, begin - 16), begin) is not None


def _of_six(lowered: str, looks: LookBudget) -> Iterator[Span]:
    for match in _V6.finditer(lowered):
        if match[0].count(":") < 2 or match[0] == "::1":
            continue
        looks.spend()
        written = match[0].rstrip(".")
        written = written[:-1] if written.endswith(":") and not written.endswith("::") else written
        if _is_v6(written):
            yield match.start(), match.start() + len(written), "ip"


def mac_addresses(text: str, lowered: str, looks: LookBudget) -> Iterator[Span]:
    """Addresses of network cards. Pairs of digits alone are a time."""
    for match in _MAC.finditer(lowered):
        looks.spend()
        begin = match.start() - 2
        before, pairs = lowered[max(0, begin - 1) : begin], lowered[begin : match.end()].replace(match[1], "")
        if not before.isalnum() and before not in ("_", ":", "-") and not pairs.isdigit():
            yield begin, match.end(), "mac"


def _is_v6(written: str) -> bool:
    head, dots, tail = written.rpartition(":")
    if "." in tail:
        # The last two groups, written as an IPv4 address.
        if not _V4.fullmatch(tail):
            return False
        written = f"{head}{dots}0:1"
    before, doubled, after = written.partition("::")
    groups = [group for part in (before, after) if part for group in part.split(":")]
    whole = len(groups) < 8 if doubled else len(groups) == 8
    digits = any(character.isdigit() for character in written)
    return whole and digits and written != "::1" and all(_V6_GROUP.fullmatch(group) for group in groups)
