"""Which pages may read, and what a browser is told."""

import pytest

from aftercommit.errors import DeclarationError
from aftercommit.http.cors import Cors
from tests.feed.journal import Journal

ORIGIN = "https://console.example.com"


async def test_a_page_of_a_listed_origin_may_read_the_headers_it_needs(journal: Journal):
    async with journal.served(journal.app(cors=[ORIGIN])) as reading:
        answer = await reading.poll(headers={"Origin": ORIGIN})
        assert answer.headers["access-control-allow-origin"] == ORIGIN
        exposed = answer.headers["access-control-expose-headers"]
        for name in ("ETag", "X-Total-Count", "X-Has-More", "RateLimit", "RateLimit-Policy", "Retry-After"):
            assert name in exposed
        assert "Origin" in answer.headers["vary"]
        refused = await reading.poll(headers={"Origin": ORIGIN, "Authorization": ""})
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == ORIGIN
        async with reading.stream(headers={"Origin": ORIGIN}) as stream:
            assert stream.answer.headers["access-control-allow-origin"] == ORIGIN


async def test_a_preflight_is_answered_without_a_token(journal: Journal):
    async with journal.served(journal.app(cors=[ORIGIN])) as reading:
        asked = {
            "Origin": ORIGIN,
            "Access-Control-Request-Method": "GET",
            "Access-Control-Request-Headers": "authorization,last-event-id",
            "Authorization": "",
        }
        answer = await reading.client.options("/books/b-1/lines/stream", headers=asked)
        assert answer.status_code == 204
        assert answer.headers["access-control-allow-origin"] == ORIGIN
        assert "Last-Event-ID" in answer.headers["access-control-allow-headers"]
        assert int(answer.headers["access-control-max-age"]) == 86_400


@pytest.mark.parametrize("name", ["Authorization", "If-None-Match", "Prefer", "X-User-Id", "Idempotency-Key"])
def test_a_page_may_send_every_header_that_our_services_read(name: str):
    preflight = dict(Cors([ORIGIN]).preflight(ORIGIN))
    assert name in preflight[b"access-control-allow-headers"].decode().split(", ")


def test_a_page_is_told_where_to_find_what_it_has_made():
    exposed = dict(Cors([ORIGIN]).headers(ORIGIN))[b"access-control-expose-headers"]
    assert "Location" in exposed.decode().split(", ")


async def test_other_pages_may_not(journal: Journal):
    async with journal.served(journal.app(cors=[ORIGIN])) as reading:
        for origin in ("https://evil.example", "null", f"{ORIGIN}.evil.example"):
            answer = await reading.poll(headers={"Origin": origin})
            assert "access-control-allow-origin" not in answer.headers
            preflight = await reading.client.options(
                "/books/b-1/lines", headers={"Origin": origin, "Access-Control-Request-Method": "GET"}
            )
            assert "access-control-allow-origin" not in preflight.headers
        # A cache in between has to know that the answer depends on who asks.
        assert "Origin" in (await reading.poll()).headers["vary"]


async def test_everybody_is_possible_without_credentials(journal: Journal):
    async with journal.served(journal.app(cors=["*"])) as reading:
        answer = await reading.poll(headers={"Origin": "https://anything.example"})
        assert answer.headers["access-control-allow-origin"] == "*"
    with pytest.raises(DeclarationError, match="any web page"):
        Cors(["*"], credentials=True)


@pytest.mark.parametrize(
    "origin", ["example.com", "https://example.com/", "https://example.com/path", "ftp://x", "https://"]
)
def test_what_is_no_origin_is_refused(origin: str):
    with pytest.raises(DeclarationError, match="not an origin"):
        Cors([origin])
