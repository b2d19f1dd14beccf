"""Trusted users for a team's own feed: one line where the access is given, and one access for each path."""

from datetime import timedelta

import httpx
import pytest

from aftercommit.access.bearer import BearerAccess
from aftercommit.access.service_tokens import create
from aftercommit.access.token_keys import TokenKeys
from aftercommit.access.tokens import TokenVerifier, mint
from aftercommit.access.trusted import TrustedUsers
from aftercommit.errors import DeclarationError
from aftercommit.feed.app import FeedApp
from aftercommit.server.http_server import HttpServer
from tests.feed.journal import KEYS, TIMES, until
from tests.feed.test_audience import tasks  # noqa: F401 - a fixture
from tests.support.hearing import TaskChanged, Tasks, mine

_KEYS = TokenKeys.from_text(KEYS)
HERE, ALSO = "/tasks/me/events", "/others/events"


@pytest.mark.contract("T7")
@pytest.mark.thorough
async def test_feeds_run_the_access_they_are_given_and_each_path_has_its_own(tasks: Tasks):  # noqa: F811
    bearer = BearerAccess(TokenVerifier(_KEYS), tasks.database, tasks.outbox, poll_seconds=0.1)
    only_tokens = BearerAccess(TokenVerifier(_KEYS))
    feeds = {HERE: mine(tasks.outbox), ALSO: mine(tasks.outbox, "also")}
    app = FeedApp(tasks.database, feeds, {HERE: TrustedUsers(bearer, development=True), ALSO: only_tokens}, times=TIMES)
    async with tasks.relay(), HttpServer(app, drain_seconds=1.0, on_stop=app.drain) as server:
        await server.answers()
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            await tasks.record(TaskChanged("t-1", 1), audience=["user:17"])
            named = {"X-User-Id": "17"}

            async def heard() -> bool:
                return [item["number"] for item in (await client.get(HERE, headers=named)).json()] == [1]

            await until(heard)
            assert (await client.get(ALSO, headers=named)).status_code == 401
            own = {"Authorization": f"Bearer {mint(_KEYS, '17', (), timedelta(hours=1))}"}
            assert [(await client.get(path, headers=own)).status_code for path in (HERE, ALSO)] == [200, 200]
            with tasks.connect(autocommit=True) as connection:
                made = create(connection, tasks.outbox.shape, "bot", ["act-as-user"])

            async def is_not_enough() -> bool:
                return (await client.get(HERE, headers=named)).status_code == 401

            await until(is_not_enough)
            acting = {"Authorization": f"Bearer {made.token}", **named}
            assert (await client.get(HERE, headers=acting)).json()[0]["number"] == 1
    assert not bearer.service_tokens.grants("read")


def test_a_path_without_an_access_is_refused(tasks: Tasks):  # noqa: F811
    with pytest.raises(DeclarationError, match="no access is given for /others/events"):
        FeedApp(
            tasks.database,
            {HERE: mine(tasks.outbox), ALSO: mine(tasks.outbox, "also")},
            {HERE: BearerAccess(TokenVerifier(_KEYS))},
        )
