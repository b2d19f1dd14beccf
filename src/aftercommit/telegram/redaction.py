"""Keeps secrets out of what is logged and said: the token, and what stands before the host in an address.

Servers quote what they were asked for, and not always in the form in which it was sent.
"""

import html
import logging
import re
import traceback
from typing import Final
from urllib.parse import quote, unquote, urlsplit

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

    def __init__(self, token: str, *addresses: str | None) -> None:
        """Of this token, and of these addresses."""
        super().__init__()
        userinfo = {part for address in addresses if address for part in _secrets_of(address)}
        self._token = _any_of(_written(token) | _written(token.partition(":")[2]))
        self._userinfo = _any_of({form for secret in userinfo for form in _written(secret)})

    def clean(self, text: str) -> str:
        """The text without secrets."""
        if self._token is not None:
            text = self._token.sub(_TOKEN_SHOWN, text)
        return text if self._userinfo is None else self._userinfo.sub(_SHOWN, text)

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
    return {secret, html.escape(secret), unquote(secret), encoded, encoded.replace("%3A", "%3a")} - {""}


def _any_of(secrets: set[str]) -> re.Pattern[str] | None:
    # The longest first, so that nothing is left of it.
    listed = sorted((each for each in secrets if len(each) >= _SHORTEST), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, listed))) if listed else None
