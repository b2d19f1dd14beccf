"""A request that one limit refuses is counted by none."""

import pytest

from aftercommit.access.key_count import Allowance, Rate
from aftercommit.access.rate_limiter import RateLimiter
from tests.feed.journal import Journal, journal_feed


@pytest.mark.contract("L9")
@pytest.mark.thorough
async def test_who_is_refused_because_of_others_has_not_spent_what_is_their_own(journal: Journal):
    """A book that everybody reads is at its limit: who tries it in vain may read other books as before."""
    feed = journal_feed(journal.outbox, rates=(Rate("user", 10, 60), Rate("resource", 3, 60)))
    async with journal.served(journal.app(feed=feed)) as reading:
        crowd = [await reading.poll(headers=journal.bearer(f"reader-{number}")) for number in range(3)]
        assert [answer.status_code for answer in crowd] == [200] * 3
        ada = journal.bearer("ada")
        refused = [await reading.poll(headers=ada) for _ in range(20)]
        assert {answer.status_code for answer in refused} == {429}
        assert {answer.json()["message"] for answer in refused} == {"Too many requests. Limit: 3 per minute per book"}
        assert all(answer.headers["ratelimit"].startswith('"user";r=10;t=') for answer in refused)
        other = await reading.poll("b-2", headers=ada)
        assert other.status_code == 200
        assert other.headers["ratelimit"].startswith('"user";r=9;t=')


@pytest.mark.contract("L9")
async def test_what_was_given_back_can_be_taken_again():
    rate = Rate("user", 2, 86_400)
    limiter = RateLimiter()
    for _ in range(5):
        assert (await limiter.take("user", "ada", rate)).remaining == 1
        assert limiter.give_back("user", "ada", rate).remaining == 2
    assert [(await limiter.take("user", "ada", rate)).allowed for _ in range(3)] == [True, True, False]


async def test_who_was_forgotten_meanwhile_begins_anew():
    limiter = RateLimiter(max_keys=1)
    rate = Rate("user", 2, 60)
    await limiter.take("user", "ada", rate)
    await limiter.take("user", "bob", rate)
    assert limiter.give_back("user", "ada", rate) == Allowance(True, 2, 2, 60, 0)
