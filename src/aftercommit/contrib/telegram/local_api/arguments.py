"""Reads the arguments of a call: from the query, a form, a multipart form or JSON, as the Bot API accepts them.

All values are text. JSON values that are not strings are kept as JSON text, as Telegram does.
"""

from collections.abc import Mapping
from email.parser import BytesParser
from email.policy import HTTP
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec

MOST_BODY: Final = 1 << 20
_MOST_FIELDS: Final = 200


class Refusal(Exception):
    """An error answer of the Bot API."""

    def __init__(self, status: int, description: str, retry_after: int | None = None) -> None:
        super().__init__(description)
        self.status = status
        self.description = description
        self.retry_after = retry_after

    def told(self) -> dict[str, Any]:
        """The body of the answer."""
        said: dict[str, Any] = {"ok": False, "error_code": self.status, "description": self.description}
        if self.retry_after is not None:
            said["parameters"] = {"retry_after": self.retry_after}
        return said


def bad_request(what: str) -> Refusal:
    """400 in Telegram's words."""
    return Refusal(400, f"Bad Request: {what}")


def too_many_requests(retry_after: int) -> Refusal:
    """429, with the seconds to wait."""
    return Refusal(429, f"Too Many Requests: retry after {retry_after}", retry_after)


def read_arguments(query: bytes, content_type: str, body: bytes) -> dict[str, str]:
    """The arguments of a call; the body wins over the query."""
    kind = content_type.partition(";")[0].strip().lower()
    arguments = _form(query)
    if not body:
        return arguments
    if kind == "application/json":
        return arguments | _json(body)
    if kind == "multipart/form-data":
        return arguments | _multipart(content_type, body)
    # curl and many other clients send this type, or none.
    return arguments | _form(body)


def _form(text: bytes) -> dict[str, str]:
    try:
        pairs = parse_qsl(text.decode(), keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS)
    except UnicodeDecodeError:
        raise bad_request("strings must be encoded in UTF-8") from None
    except ValueError:
        raise bad_request(f"there are more than {_MOST_FIELDS} parameters") from None
    return dict(pairs)


def _json(body: bytes) -> dict[str, str]:
    try:
        found = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise bad_request("can't parse JSON object in the request body") from None
    return {
        name: value if isinstance(value, str) else as_json(value) for name, value in found.items() if value is not None
    }


def as_json(value: object) -> str:
    """JSON, as text."""
    return msgspec.json.encode(value).decode()


def _multipart(content_type: str, body: bytes) -> dict[str, str]:
    head = b"Content-Type: " + content_type.encode("latin-1", "replace") + b"\r\n\r\n"
    message = BytesParser(policy=HTTP).parsebytes(head + body)
    arguments: dict[str, str] = {}
    for part in message.iter_parts() if message.is_multipart() else ():
        name = part.get_param("name", header="content-disposition")
        content = part.get_payload(decode=True)
        if not isinstance(name, str) or not isinstance(content, bytes) or part.get_filename() is not None:
            raise bad_request("this local server accepts no files and no unnamed form parts")
        try:
            arguments[name] = content.decode()
        except UnicodeDecodeError:
            raise bad_request("strings must be encoded in UTF-8") from None
    return arguments


def integer(arguments: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    """A number within bounds; anything else counts as the default, as at Telegram."""
    try:
        value = int(arguments.get(name, "").strip())
    except ValueError:
        value = default
    return min(max(value, least), most)


def is_true(arguments: Mapping[str, str], name: str) -> bool:
    """Whether a flag is set."""
    return arguments.get(name, "").strip().lower() in ("true", "yes", "1")


def from_json(text: str) -> object:
    """The value of a JSON text; None if it is not JSON."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
