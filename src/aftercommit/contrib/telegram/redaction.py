"""Keeps secrets out of logs and messages: the token, the credential, and user info in addresses.

Servers quote requests, sometimes in another encoding. Their texts are passed on as `Clean`, which only this module
makes.
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
"""A text without secrets."""

# No angle brackets: messages are HTML.
_TOKEN_SHOWN: Final = "[token]"
_SHOWN: Final = "[hidden]"
# Shorter ones would match in ordinary words. Together with the user name and the @ they are still hidden.
_SHORTEST: Final = 4


def without_userinfo(address: str) -> str:
    """The address without user name and password."""
    try:
        parts = urlsplit(address)
        if parts.hostname and parts.port != 0:
            return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    except ValueError:
        pass
    # Not a valid address, but it may still have a password before an @.
    return re.sub(r"^([a-zA-Z]+:/*)?.*@", r"\1", address, flags=re.DOTALL)


class Redaction(logging.Filter):
    """Removes secrets from texts and log records."""

    def __init__(self, token: str, *addresses: str | None, credential: str | None = None) -> None:
        """The secrets are the bot's token, the user info in the addresses, and the credential for the backend."""
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
        """A foreign text without secrets. It is cut afterwards, because half a secret is one, too."""
        return Clean(self.clean(text)[:MAX_ERROR_LENGTH])

    def told(self, problem: BaseException) -> Clean:
        """The text of an error. Errors that cut a server's text are rebuilt, so that secrets are removed first."""
        match problem:
            case FeedRefused(status=status, code=code, message=message):
                problem = FeedRefused(status, self.clean(code) if code else None, self.clean(message), {})
            case Unreadable(said=said, quoted=quoted):
                problem = Unreadable(said, self.clean(quoted))
        return self.words(readable(problem))

    def filter(self, record: logging.LogRecord) -> bool:
        """Remove secrets from the record, and let it pass."""
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
    """The secrets of an address: user name with password, and the password alone."""
    userinfo = urlsplit(address).netloc.rpartition("@")[0]
    password = userinfo.partition(":")[2]
    return {f"{userinfo}@"} | {each for each in (userinfo, password) if len(each) >= _SHORTEST} if userinfo else set()


def _written(secret: str) -> set[str]:
    """The encodings in which a secret may be quoted."""
    encoded = quote(secret, safe="")
    in_json = json.dumps(secret)[1:-1]
    forms = {secret, html.escape(secret), unquote(secret), encoded, encoded.replace("%3A", "%3a"), in_json}
    return (forms | {in_json.replace("/", "\\/")}) - {""}


def _any_of(secrets: set[str]) -> re.Pattern[str] | None:
    # Longest first, so that no part is left.
    listed = sorted((each for each in secrets if len(each) >= _SHORTEST), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, listed))) if listed else None
