"""What the bot is told: by its environment and the command line, and for other feeds by a file of TOML."""

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import quote, urljoin, urlsplit

import msgspec

from aftercommit.client import TASKS, Pace, Wire
from aftercommit.contrib.telegram.markup import placeholders
from aftercommit.contrib.telegram.redaction import without_userinfo
from aftercommit.contrib.telegram.texts import Texts
from aftercommit.embedded import default_folder
from aftercommit.errors import DeclarationError

TELEGRAM: Final = "https://api.telegram.org"
TOKEN: Final = "AFTERCOMMIT_BOT_TOKEN"
CREDENTIAL: Final = "AFTERCOMMIT_BOT_CREDENTIAL"
FEED: Final = "AFTERCOMMIT_BOT_FEED"
STATE: Final = "AFTERCOMMIT_BOT_STATE"
STATE_FILE: Final = "bot.sqlite"
# Each of these is an option as well, and may stand in the file.
VARIABLES: Final[Mapping[str, str]] = {
    "token": TOKEN,
    "api": "AFTERCOMMIT_BOT_API",
    "feed": FEED,
    "credential": CREDENTIAL,
    "state": STATE,
    "redeem": "AFTERCOMMIT_BOT_REDEEM",
    "page": "AFTERCOMMIT_BOT_PAGE",
    "health_user": "AFTERCOMMIT_BOT_HEALTH_USER",
}
_SECRET: Final = ("token", "credential")
_TOKEN: Final = re.compile(r"[A-Za-z0-9:_-]{1,256}")
# Asked more often than others ask: people look at their telephones.
PACE: Final = Pace(poll=2.0, idle_longest=10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedNames:
    """What a feed calls things. `{user}` in its address or in a header stands for the user who is linked.

    Of the numbers of events per page, `limit` is for polls, `health_limit` for the question at start-up, `largest` the
    most there may be.
    """

    wire: Wire = TASKS
    event_type: str = "event_type"
    headers: Mapping[str, str] = field(default_factory=lambda: {"X-User-Id": "{user}"})
    limit: int = 20
    health_limit: int = 1
    largest: int = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class BotSettings:
    """The settings of one bot.

    `feed` is the address of the events, `credential` what the backend knows the bot by, `state` a file of SQLite or an
    address of PostgreSQL. `redeem` takes one-time codes (None: only those of `aftercommit bot code`), `page` is the
    address of an item's page. `health_user` asks at start-up as long as nobody is linked. `turns` chats have their turn
    side by side, `polls` of them ask the backend at a time, and all together no more often than `polls_per_second`.
    """

    token: str = field(repr=False)
    feed: str
    state: str = field(default="", repr=False)
    api: str = TELEGRAM
    credential: str | None = field(default=None, repr=False)
    redeem: str | None = None
    page: str | None = None
    health_user: str = "1"
    names: FeedNames = field(default_factory=FeedNames)
    texts: Texts = field(default_factory=Texts, repr=False)
    pace: Pace = PACE
    health_seconds: float = 10.0
    update_seconds: int = 25
    send_seconds: float = 30.0
    connect_seconds: float = 5.0
    failures_days: float = 90.0
    turns: int = 200
    polls: int = 8
    polls_per_second: float = 50.0

    def __post_init__(self) -> None:
        """Refuse what cannot work, without showing a secret."""
        if not _TOKEN.fullmatch(self.token):
            raise DeclarationError(
                f"the bot's token is not one: set {TOKEN} to what @BotFather gave you, as in 123:ABC…"
            )
        for name in ("feed", "api", "redeem"):
            _check_address(name, getattr(self, name))
        if self.credential is not None and not (self.credential.isascii() and self.credential.isprintable()):
            raise DeclarationError(f"{CREDENTIAL} holds characters that cannot be sent: give a token as it was printed")
        if not self.state:
            object.__setattr__(self, "state", default_state())

    def feed_url(self, user: str) -> str:
        """The address of a user's events."""
        return self.feed.replace("{user}", quote(user, safe=""))

    def feed_headers(self, user: str) -> dict[str, str]:
        """What says for whom is asked."""
        return {name: value.replace("{user}", user) for name, value in self.names.headers.items()}

    def told(self, **given: Any) -> Self:
        """The same with what was said more closely; None says nothing."""
        return replace(self, **{name: value for name, value in given.items() if value is not None})


def default_state() -> str:
    """Where the state is when nothing else is said: a file in `AFTERCOMMIT_HOME`."""
    return str(default_folder() / STATE_FILE)


def bot_settings(
    given: Mapping[str, str | None] | None = None,
    config: str | os.PathLike[str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> BotSettings:
    """What was given, else what the environment says, else the file; DeclarationError when something is missing."""
    told = read_config(config) if config is not None else {}
    values = {**_plain(told), **_from_environment(environment), **{k: v for k, v in (given or {}).items() if v}}
    for name in ("token", "feed"):
        if not values.get(name):
            raise DeclarationError(f"the bot's {name} is not known: set {VARIABLES[name]}, or give --{name}")
    if "redeem" not in values and "wire" not in told:
        values["redeem"] = urljoin(values["feed"], "../link-codes/redeem")
    if values.get("redeem") == "none":
        values["redeem"] = None
    texts = Texts(told.get("texts"), values=_value_paths(told), page=values.get("page"))
    return BotSettings(
        **values,
        names=_names(told.get("wire", {})),
        texts=texts,
        pace=_structure(Pace, told.get("pace", {}), "pace", PACE),
    )


def read_config(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a file says; DeclarationError when it cannot be read or says what is not known."""
    try:
        told = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        said = problem.strerror if isinstance(problem, OSError) else problem
        raise DeclarationError(f"the bot's configuration {os.fspath(path)!r} cannot be read: {said}") from problem
    known = {*VARIABLES, "wire", "values", "texts", "pace"} - {*_SECRET}
    for name in told:
        if name in _SECRET:
            raise DeclarationError(f"{name} stands in {os.fspath(path)!r}: keep secrets in {VARIABLES[name]}")
        if name not in known:
            raise DeclarationError(
                f"{name!r} in {os.fspath(path)!r} is not known: there are {', '.join(sorted(known))}"
            )
    return told


def _plain(told: Mapping[str, Any]) -> dict[str, Any]:
    values = {name: told[name] for name in VARIABLES if name in told}
    for name, value in values.items():
        if not isinstance(value, str):
            raise DeclarationError(f"{name} = {value!r:.60} in the bot's configuration: write a text")
    return values


def _from_environment(environment: Mapping[str, str] | None) -> dict[str, Any]:
    variables = os.environ if environment is None else environment
    return {name: variables[variable] for name, variable in VARIABLES.items() if variables.get(variable)}


def _names(told: Mapping[str, Any]) -> FeedNames:
    limits = ("limit", "health_limit", "largest")
    ours = ("event_type", "headers", *limits)
    wire = _structure(Wire, {name: value for name, value in told.items() if name not in ours}, "wire", TASKS)
    chosen = {name: told[name] for name in ours if name in told}
    for name in limits:
        if not isinstance(chosen.get(name, 1), int) or not 1 <= chosen.get(name, 1) <= 1000:
            raise DeclarationError(f"wire.{name} = {chosen[name]!r:.40}: write a number from 1 to 1000")
    headers = chosen.get("headers", {})
    if not isinstance(headers, dict) or not all(isinstance(value, str) for value in headers.values()):
        raise DeclarationError(
            f"wire.headers = {headers!r:.60}: write names and texts, as in {{X-User-Id = '{{user}}'}}"
        )
    return FeedNames(wire=wire, **chosen)


def _structure(kind: Any, told: Mapping[str, Any], where: str, base: Any) -> Any:
    known = set(kind.__struct_fields__)
    for name in told:
        if name not in known:
            raise DeclarationError(f"{where}.{name} is not known: there are {', '.join(sorted(known))}")
    try:
        return msgspec.convert({**msgspec.structs.asdict(base), **told}, kind)
    except msgspec.ValidationError as problem:
        raise DeclarationError(f"{where} in the bot's configuration: {problem}") from problem


def _value_paths(told: Mapping[str, Any]) -> dict[str, Sequence[str]]:
    paths: dict[str, Sequence[str]] = {}
    for name, given in told.get("values", {}).items():
        listed = [given] if isinstance(given, str) else given
        if not isinstance(listed, list) or not all(isinstance(path, str) and path for path in listed):
            raise DeclarationError(f"values.{name} = {given!r:.60}: write a path as in payload.title, or several")
        paths[name] = tuple(listed)
    return paths


def _check_address(name: str, address: str | None) -> None:
    if address is None:
        return
    try:
        parts = urlsplit(address)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        shown = without_userinfo(address)
        raise DeclarationError(f"{name}={shown!r:.100} is no address: give one that begins with http:// or https://")
    if name == "feed" and placeholders(address) - {"user"}:
        raise DeclarationError(f"feed={without_userinfo(address)!r:.100}: only {{user}} can stand in braces there")
