"""The bot's settings: from the command line, the environment, and a TOML file for other feeds."""

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
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
# Each of these is an option as well, and can be in the file.
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
# Faster than the default pace, because people expect chat messages soon.
PACE: Final = Pace(poll=2.0, idle_longest=10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedNames:
    """The names and sizes of a feed. `{user}` in its address or in a header stands for the linked user.

    Events per page: `limit` for polls, `health_limit` for the check at start, `largest` for finding the newest event.
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

    `feed` is the address of the events, `credential` the bot's token for the backend, `state` an SQLite file or a
    PostgreSQL address. `redeem` is the address that redeems link codes (None: only codes of `aftercommit bot code`
    work), `page` the address of an item's page. The check at start asks for `health_user` if nobody is linked.
    `turns` chats are handled in parallel and `polls` of them poll at once, at most `polls_per_second` in total.
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
        """Check the settings; errors show no secrets."""
        if not _TOKEN.fullmatch(self.token):
            raise DeclarationError(
                f"the bot's token is not valid: set {TOKEN} to the token from @BotFather, such as 123:ABC…"
            )
        for name in ("feed", "api", "redeem"):
            _check_address(name, getattr(self, name))
        if self.credential is not None and not (self.credential.isascii() and self.credential.isprintable()):
            raise DeclarationError(f"{CREDENTIAL} has characters that cannot be sent: set the token as it was printed")
        if not self.state:
            object.__setattr__(self, "state", default_state())

    def feed_url(self, user: str) -> str:
        """The address of a user's events."""
        return self.feed.replace("{user}", quote(user, safe=""))

    def feed_headers(self, user: str) -> dict[str, str]:
        """The headers that name the user."""
        return {name: value.replace("{user}", user) for name, value in self.names.headers.items()}


def default_state() -> str:
    """The default state: a file in `AFTERCOMMIT_HOME`."""
    return str(default_folder() / STATE_FILE)


def bot_settings(
    given: Mapping[str, str | None] | None = None,
    config: str | os.PathLike[str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> BotSettings:
    """Settings from `given`, the environment and the file, in this order. Raises DeclarationError."""
    told = read_config(config) if config is not None else {}
    values = {**_plain(told), **_from_environment(environment), **{k: v for k, v in (given or {}).items() if v}}
    for name in ("token", "feed"):
        if not values.get(name):
            raise DeclarationError(f"the bot's {name} is missing: set {VARIABLES[name]}, or pass --{name}")
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
    """Read a configuration file; DeclarationError if it cannot be read or has unknown names."""
    try:
        told = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        said = problem.strerror if isinstance(problem, OSError) else problem
        raise DeclarationError(f"cannot read the bot's configuration {os.fspath(path)!r}: {said}") from problem
    known = {*VARIABLES, "wire", "values", "texts", "pace"} - {*_SECRET}
    for name in told:
        if name in _SECRET:
            raise DeclarationError(f"{name} is in {os.fspath(path)!r}: put secrets into {VARIABLES[name]}")
        if name not in known:
            raise DeclarationError(f"unknown name {name!r} in {os.fspath(path)!r}: use {', '.join(sorted(known))}")
    return told


def _plain(told: Mapping[str, Any]) -> dict[str, Any]:
    values = {name: told[name] for name in VARIABLES if name in told}
    for name, value in values.items():
        if not isinstance(value, str):
            raise DeclarationError(f"{name} = {value!r:.60} in the bot's configuration must be a string")
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
            raise DeclarationError(f"wire.{name} = {chosen[name]!r:.40} must be a number from 1 to 1000")
    headers = chosen.get("headers", {})
    if not isinstance(headers, dict) or not all(isinstance(value, str) for value in headers.values()):
        raise DeclarationError(f"wire.headers = {headers!r:.60} must be strings, as in {{X-User-Id = '{{user}}'}}")
    return FeedNames(wire=wire, **chosen)


def _structure(kind: Any, told: Mapping[str, Any], where: str, base: Any) -> Any:
    known = set(kind.__struct_fields__)
    for name in told:
        if name not in known:
            raise DeclarationError(f"unknown name {where}.{name}: use {', '.join(sorted(known))}")
    try:
        return msgspec.convert({**msgspec.structs.asdict(base), **told}, kind)
    except msgspec.ValidationError as problem:
        raise DeclarationError(f"{where} in the bot's configuration: {problem}") from problem


def _value_paths(told: Mapping[str, Any]) -> dict[str, Sequence[str]]:
    paths: dict[str, Sequence[str]] = {}
    for name, given in told.get("values", {}).items():
        listed = [given] if isinstance(given, str) else given
        if not isinstance(listed, list) or not all(isinstance(path, str) and path for path in listed):
            raise DeclarationError(
                f"values.{name} = {given!r:.60} must be a path such as payload.title, or a list of them"
            )
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
        raise DeclarationError(f"{name}={shown!r:.100} is not an http:// or https:// address")
    if name == "feed" and placeholders(address) - {"user"}:
        raise DeclarationError(f"feed={without_userinfo(address)!r:.100} may have only {{user}} in braces")
