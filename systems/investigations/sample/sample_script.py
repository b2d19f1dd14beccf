"""The sample log lines: requests on their way through a small shop. Pure, apart from the clock.

Some lines contain data that must not leave the server (an e-mail address, a card number, a token), to show that it is
redacted.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from systems.investigations.events import Level, Source
from systems.investigations.service.produced_logs import ProducedLog


@dataclass(frozen=True, slots=True)
class SampleCase:
    """A sample investigation."""

    investigation_id: str
    title: str


CASES: Final = (
    SampleCase("INV-123", "Checkout is slow since this morning's release"),
    SampleCase("INV-124", "Some customers are signed out at random"),
)

Line = tuple[Source, str, Level, str, dict[str, Any]]

_PATHS: Final = ("/cart", "/checkout", "/orders/4711", "/search?q=lamp", "/account")
_CUSTOMERS: Final = ("ada@example.com", "grace@example.org", "edsger@example.net", "barbara@example.com")
_ADDRESSES: Final = ("203.0.113.7", "198.51.100.23", "192.0.2.146", "2001:db8::7334")


class Story:
    """Makes the lines of one request after another; the same seed gives the same lines and event ids."""

    def __init__(self, seed: int | None = None) -> None:
        self._random = random.Random(seed)
        self._request = 0

    def case(self) -> SampleCase:
        """The investigation of the next request."""
        return self._random.choices(CASES, weights=(3, 1))[0]

    def request(self) -> list[ProducedLog]:
        """The lines of one request, from the browser to the database and back."""
        self._request += 1
        correlation = f"req-{self._request:05d}-{self._random.getrandbits(24):06x}"
        return [
            ProducedLog(
                source=source,
                service=service,
                level=level,
                message=message,
                event_id=UUID(int=self._random.getrandbits(128), version=4),
                ts=self._client_ts(source),
                correlation_id=correlation,
                context=context,
            )
            for source, service, level, message, context in self._lines()
        ]

    def _client_ts(self, source: Source) -> str:
        # Browsers' clocks are often wrong; the order that readers see does not depend on them.
        skew = self._random.uniform(-90, 90) if source == "frontend" else self._random.uniform(-0.05, 0.05)
        moment = datetime.now(UTC) + timedelta(seconds=skew)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def _lines(self) -> Iterator[Line]:
        draw = self._random
        path, customer = draw.choice(_PATHS), draw.choice(_CUSTOMERS)
        milliseconds = int(draw.lognormvariate(4.2, 0.9))
        yield "frontend", "web-shop", "DEBUG", f"navigate to {path}", {"path": path, "viewport": "1440x900"}
        yield "backend", "gateway", "INFO", f"GET {path} for {customer} from {draw.choice(_ADDRESSES)}", {"path": path}
        if draw.random() < 0.5:
            yield "backend", "pricing", "DEBUG", "price list read from cache", {"hit": draw.random() < 0.9}
        if path == "/checkout":
            yield from self._payment(customer)
        if milliseconds > 250:
            yield "backend", "database", "WARN", f"slow query: {milliseconds} ms", {"rows": draw.randint(1, 5000)}
        if draw.random() < 0.05:
            yield "backend", "session", "ERROR", "session store did not answer in time", {"timeout_ms": 500}
            yield "frontend", "web-shop", "ERROR", f"request failed: {path} answered 503", {"endpoint": path}
            return
        yield "backend", "gateway", "INFO", f"200 {path} in {milliseconds} ms", {"status": 200, "ms": milliseconds}

    def _payment(self, customer: str) -> Iterator[Line]:
        draw = self._random
        yield (
            "backend",
            "payments",
            "INFO",
            "authorising card 4111 1111 1111 1111",
            {"customer": customer, "authorization": "Bearer sample.token.of-nobody"},
        )
        if draw.random() < 0.15:
            yield "backend", "payments", "WARN", "bank answered 429, trying again in 2 s", {"attempt": 1}
        yield "backend", "payments", "INFO", f"payment accepted, receipt goes to {customer}", {"amount": 4990}
