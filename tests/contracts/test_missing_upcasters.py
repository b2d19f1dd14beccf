"""A version that nobody can lift to the next is an error when the application starts, not when an old event comes."""

import subprocess
import sys
from typing import Literal

import pytest

from aftercommit.engine import Engine
from aftercommit.errors import DeclarationError
from aftercommit.feed import Everything, Feed
from aftercommit.feed.app import FeedApp
from aftercommit.outbox import Outbox
from tests.support.programs import REPOSITORY
from tests.support.shop import Shop
from tests.support.unfinished_app import outbox as unfinished

pytestmark = pytest.mark.contract("E4")

WORDS = r"'order.moved' is at version 3 and has no upcaster from version 2: declare it with @outbox.upcast"
COMMANDS = (("relay",), ("worker",), ("migrate", "up"))


@pytest.mark.parametrize("transport", ["log", "bus"])
def test_an_engine_is_refused(shop: Shop, transport: Literal["log", "bus"]) -> None:
    with pytest.raises(DeclarationError, match=WORDS):
        Engine(unfinished, shop.database, transport=transport)
    with pytest.raises(DeclarationError, match=WORDS):
        Engine(unfinished, shop.database, relay=False)


def test_a_server_of_feeds_is_refused(shop: Shop) -> None:
    feed = Feed("orders", unfinished, select=Everything(), item=lambda event: {})
    with pytest.raises(DeclarationError, match=WORDS):
        FeedApp(shop.database, {"/orders": feed}, {})


@pytest.mark.thorough
@pytest.mark.parametrize("command", [*COMMANDS, ("doctor",)], ids=" ".join)
def test_commands_say_what_is_missing(shop: Shop, command: tuple[str, ...]) -> None:
    words = [*command, "--app", "tests.support.unfinished_app:outbox", "--dsn", shop.dsn]
    done = subprocess.run(
        [sys.executable, "-m", "aftercommit.cli", *words],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == (3 if command == ("doctor",) else 1), done
    assert "no upcaster from version 2" in " ".join((done.stdout + done.stderr).split())


def test_versions_of_which_no_event_is_left_need_none() -> None:
    outbox = Outbox("shop")
    outbox.declare("order.moved", version=4, oldest_version=3)
    with pytest.raises(DeclarationError, match="no upcaster from version 3"):
        outbox.registry.require_upcasters()
    outbox.upcast("order.moved", from_version=3)(dict)
    outbox.registry.require_upcasters()
    for wrong in (0, 5, True):
        with pytest.raises(DeclarationError, match="oldest_version"):
            outbox.declare("order.lost", version=4, oldest_version=wrong)
