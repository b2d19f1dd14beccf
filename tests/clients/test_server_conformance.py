"""The running server against the cases that every server of the protocol answers."""

import json
import re
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import httpx
import jwt
import pytest

from aftercommit.access.token_keys import TokenKeys
from aftercommit.access.tokens import mint
from aftercommit.client.sse_decoder import SseDecoder, SseMessage, SsePlace
from tests.clients.cases import cases, document
from tests.support.investigations import KEY_SET, PATIENCE, ROOT, SECRET, Service

pytestmark = pytest.mark.contract("L1", "L2", "L3", "L4", "L5", "L6", "L7", "L8", "L11")

PLACE = re.compile(r"\{(cursor|ts):(\d+)\}")


@pytest.mark.parametrize("case", cases("server"))
def test_the_server_answers_as_every_server_does(case: dict[str, Any], investigations: Service, shared: str):
    appends = any("append" in step for step in case["steps"])
    trial = Trial(investigations, open_with_logs(investigations) if appends else shared)
    for step in case["steps"]:
        if "append" in step:
            trial.append(step["append"])
        else:
            trial.ask(step["request"], step["expect"])


@pytest.fixture(scope="module")
def shared(investigations: Service) -> str:
    """An investigation for all cases that only read: making one takes a second."""
    return open_with_logs(investigations)


def open_with_logs(service: Service) -> str:
    key = service.open()
    service.write(key, *document("server")["logs"])
    return key


class Trial:
    """An investigation with the logs of the file, and somebody who asks for them."""

    def __init__(self, service: Service, key: str) -> None:
        self.service = service
        self.key = key
        self.cursors: dict[int, str] = {}
        self.etag = ""
        self.tokens = {
            "reader": service.token(f"investigation:{key}:read", "investigation:no-such-investigation:read"),
            "stranger": service.token("investigation:another:read"),
            "late": expired(service.token(f"investigation:{key}:read")),
            "forger": mint(forged_keys(), "forger", [f"investigation:{key}:read"], timedelta(hours=1)),
        }
        self.look()

    def append(self, logs: list[dict[str, str]]) -> None:
        self.service.write(self.key, *logs)
        self.look()

    def look(self) -> None:
        """Learn the cursors of what is there."""
        for log in self.service.logs(self.key).json()["logs"]:
            self.cursors[log["seq"]] = f"{log['ts']}#{log['seq']:03d}"

    def ask(self, asked: dict[str, Any], expected: dict[str, Any]) -> None:
        key = "no-such-investigation" if asked.get("key") == "absent" else self.key
        query = asked.get("raw_query") or urlencode(self.filled(asked.get("query", {})))
        url = f"{self.service.url}{ROOT}/{key}/{asked.get('path', 'logs')}?{query}"
        headers = {**self.filled(asked.get("headers", {})), **self.credentials(asked.get("as", "reader"))}
        with httpx.stream(asked.get("method", "GET"), url, headers=headers, timeout=PATIENCE) as answer:
            blocks = self.blocks(answer) if "blocks" in expected else None
            found = None if blocks is not None else answer.read()
            assert answer.status_code == expected["status"], found
            self.compare_head(answer, expected)
            if blocks is not None:
                self.compare_blocks(blocks, expected)
            elif found is not None:
                self.compare_body(found, expected)

    def credentials(self, who: str) -> dict[str, str]:
        return {} if who == "nobody" else {"Authorization": f"Bearer {self.tokens[who]}"}

    def compare_head(self, answer: httpx.Response, expected: dict[str, Any]) -> None:
        for name, value in expected.get("headers", {}).items():
            self.compare(answer.headers.get(name), value, name)
        if answer.status_code == 200 and "etag" in answer.headers:
            self.etag = answer.headers["etag"]

    def compare_body(self, body: bytes, expected: dict[str, Any]) -> None:
        if expected.get("empty"):
            assert body == b""
            return
        told = json.loads(body)
        if "numbers" in expected:
            assert [log["seq"] for log in told["logs"]] == expected["numbers"]
            assert told["pagination"]["returned"] == len(told["logs"])
        self.compare(told.get("pagination"), expected.get("pagination", {}), "pagination")
        self.compare(told, expected.get("body", {}), "body")
        assert expected.get("message_has", "") in told.get("message", "")

    def blocks(self, answer: httpx.Response) -> Iterator[SseMessage | SsePlace]:
        decoder = SseDecoder()
        for chunk in answer.iter_bytes():
            yield from (part for part in decoder.decode(chunk) if isinstance(part, SseMessage | SsePlace))

    def compare_blocks(self, blocks: Iterator[SseMessage | SsePlace], expected: dict[str, Any]) -> None:
        for wanted in expected["blocks"]:
            block = next(blocks)
            found: dict[str, Any] = {"id": block.id}
            if isinstance(block, SseMessage):
                found |= {"event": block.event, "number": json.loads(block.data).get("seq")}
            self.compare(found, wanted, str(wanted))
        if expected.get("ends"):
            assert list(blocks) == []

    def compare(self, found: Any, wanted: Any, where: str) -> None:
        if isinstance(wanted, dict):
            for name, value in wanted.items():
                self.compare((found or {}).get(name), value, f"{where}.{name}")
        elif wanted == "{weak}":
            assert re.fullmatch(r'W/"[^"]+"', found), where
        elif wanted != "{any}":
            assert found == self.filled(wanted), where

    def filled(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self.filled(inner) for name, inner in value.items()}
        if not isinstance(value, str):
            return value
        with_places = PLACE.sub(self.place, value)
        return with_places.replace("{etag}", self.etag)

    def place(self, match: re.Match[str]) -> str:
        cursor = self.cursors[int(match[2])]
        return cursor if match[1] == "cursor" else cursor.partition("#")[0]


def expired(token: str) -> str:
    """The same token, as it was an hour after its end."""
    claims = jwt.decode(token, options={"verify_signature": False})
    claims |= {"iat": claims["iat"] - 90_000, "nbf": claims["iat"] - 90_000, "exp": claims["exp"] - 90_000}
    secret = urlsafe_b64decode(SECRET["k"] + "==")
    return jwt.encode(claims, secret, SECRET["alg"], headers={"kid": SECRET["kid"]})


def forged_keys() -> TokenKeys:
    """The same names as the server's keys, and another secret."""
    described = json.loads(KEY_SET)
    described["keys"][0]["k"] = urlsafe_b64encode(secrets.token_bytes(32)).rstrip(b"=").decode()
    return TokenKeys.from_text(json.dumps(described))
