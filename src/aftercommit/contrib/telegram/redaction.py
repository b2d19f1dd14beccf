"""Keeps secrets out of what is logged and said: token, credential, and what stands before the host in an address.

Servers quote what they were asked for, and not always in the form in which it was sent. What is told of them further on
is `Clean`, a text that only comes from here.
"""

import html
import json
import logging
import re
import traceback
from typing import Final, NewType
from urllib.parse import quote, unquote, urlsplit

from aftercommit.client.wire import Unreadable
from aftercommit.errors import FeedRefused
from aftercommit.text import MAX_ERROR_LENGTH, readable

Clean = NewType("Clean", str)
"""What was said, without secrets."""

# Not in angle brackets: messages are HTML.
_TOKEN_SHOWN: Final = "[token]"
_SHOWN: Final = "[hidden]"
# Shorter ones would be found in every second word. With the name and the @ around them they are hidden all the same.
_SHORTEST: Final = 4


def without_userinfo(address: str) -> str:
    """An address as it can be shown: without a name and a password."""
    try:
        parts = urlsplit(address)
        if parts.hostname and parts.port != 0:
            return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    except ValueError:
        pass
    # What is no address may still have a password somewhere before an @.
    return re.sub(r"^([a-zA-Z]+:/*)?.*@", r"\1", address, flags=re.DOTALL)


class Redaction(logging.Filter):
    """Takes secrets out of texts and of log lines."""

    def __init__(self, token: str, *addresses: str | None, credential: str | None = None) -> None:
        """Of this token, of these addresses, and the credential by which the backend knows the bot."""
        super().__init__()
        others = {part for address in addresses if address for part in _secrets_of(address)}
        others |= {credential} if credential else set()
        self._token = _any_of(_written(token) | _written(token.partition(":")[2]))
        self._others = _any_of({form for secret in others for form in _written(secret)})

    def clean(self, text: str) -> str:
        """The text without secrets."""
        if self._token is not None:
            text = self._token.sub(_TOKEN_SHOWN, text)
        return text if self._others is None else self._others.sub(_SHOWN, text)

    def words(self, text: str) -> Clean:
        """Words of others, without secrets; these are taken out before anything is cut: half a secret is one, too."""
        return Clean(self.clean(text)[:MAX_ERROR_LENGTH])

    def told(self, problem: BaseException) -> Clean:
        """What an error says. Those that show only the beginning of what a server has said are made anew without it."""
        match problem:
            case FeedRefused(status=status, code=code, message=message):
                problem = FeedRefused(status, self.clean(code) if code else None, self.clean(message), {})
            case Unreadable(said=said, quoted=quoted):
                problem = Unreadable(said, self.clean(quoted))
        return self.words(readable(problem))

    def filter(self, record: logging.LogRecord) -> bool:
        """Let the line pass, without secrets."""
        said = record.getMessage()
        if (clean := self.clean(said)) != said:
            record.msg, record.args = clean, None
        for name, value in record.__dict__.items():
            if isinstance(value, str) and name not in ("msg", "name"):
                record.__dict__[name] = self.clean(value)
        self._clean_traceback(record)
        return True

    def _clean_traceback(self, record: logging.LogRecord) -> None:
        if not record.exc_info or record.exc_info[1] is None:
            return
        trace = "".join(traceback.format_exception(record.exc_info[1]))
        if (clean := self.clean(trace)) != trace:
            record.exc_info, record.exc_text = None, clean
            record.__dict__["exception"] = clean


def _secrets_of(address: str) -> set[str]:
    """What must not be seen of an address: name and password together, and the password by itself."""
    userinfo = urlsplit(address).netloc.rpartition("@")[0]
    password = userinfo.partition(":")[2]
    return {f"{userinfo}@"} | {each for each in (userinfo, password) if len(each) >= _SHORTEST} if userinfo else set()


def _written(secret: str) -> set[str]:
    """The forms in which a secret is quoted."""
    encoded = quote(secret, safe="")
    in_json = json.dumps(secret)[1:-1]
    forms = {secret, html.escape(secret), unquote(secret), encoded, encoded.replace("%3A", "%3a"), in_json}
    return (forms | {in_json.replace("/", "\\/")}) - {""}


def _any_of(secrets: set[str]) -> re.Pattern[str] | None:
    # The longest first, so that nothing is left of it.
    listed = sorted((each for each in secrets if len(each) >= _SHORTEST), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, listed))) if listed else None
