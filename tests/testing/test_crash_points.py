"""Crash points: every name is real and documented, services die there, and nothing is lost or done twice."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aftercommit.errors import DeclarationError
from aftercommit.testing import POINTS, Points, SimulatedCrash, World, crash_environment, crash_from_environment
from aftercommit.testing.points import CRASH_AT
from tests.support.shop import OrderPlaced
from tests.testing.till import LEDGER, write_ledger, write_ledger_blocking

REPOSITORY = Path(__file__).resolve().parents[2]
ROOMS = ("relay", "consumer", "postgres", "operate", "contrib")
# Points that a drain always passes when there is an event and a consumer; some of them only after a death.
ALWAYS = [
    ("log", "relay.ready"), ("log", "relay.read"), ("log", "relay.deliver"), ("log", "relay.appended"),
    ("log", "relay.idle"), ("log", "relay.stopped"), ("log", "consumer.active"), ("log", "consumer.read"),
    ("log", "consumer.handled"), ("log", "consumer.idle"), ("log", "consumer.stopped"),
    ("bus", "relay.read"), ("bus", "relay.deliver"), ("bus", "relay.delivered"), ("bus", "relay.appended"),
]  # fmt: skip


def points_in_the_code() -> set[str]:
    found: set[str] = set()
    for room in ROOMS:
        for path in (REPOSITORY / "src" / "aftercommit" / room).rglob("*.py"):
            found.update(re.findall(r'reach\(\s*"([^"]+)"', path.read_text()))
    return found


def test_every_point_of_the_code_has_a_meaning_and_every_meaning_a_point() -> None:
    assert set(POINTS) == points_in_the_code()


def test_the_guide_lists_every_point_with_its_meaning() -> None:
    guide = (REPOSITORY / "docs" / "guides" / "testing.md").read_text()
    listed = dict(re.findall(r"^\| `([a-z_]+\.[a-z_]+)` \| (.+) \|$", guide, re.MULTILINE))
    assert listed == dict(POINTS)


def test_a_point_that_does_not_exist_is_refused_with_those_that_do(aftercommit_world: World) -> None:
    with pytest.raises(DeclarationError, match=r"no point 'relay.deliverd'. Did you mean 'relay.deliver.*Use one of "):
        aftercommit_world.crash_at("relay.deliverd")
    with pytest.raises(DeclarationError, match="times=0 must be at least 1"):
        aftercommit_world.crash_at("relay.read", times=0)
    with pytest.raises(DeclarationError, match="no point 'nowhere'"):
        crash_environment("nowhere")


@pytest.mark.thorough
@pytest.mark.contract("S4")
@pytest.mark.parametrize(("transport", "point"), ALWAYS)
def test_a_service_that_dies_there_has_its_effects_once(aftercommit_world: World, transport: Any, point: str) -> None:
    """S4: whatever point the process dies at, the event is appended once and handled with one effect."""
    write_ledger(aftercommit_world.outbox)
    aftercommit_world.publish(OrderPlaced("o-1"), OrderPlaced("o-2"), tenant_id="acme")
    aftercommit_world.crash_at(point)
    drained = aftercommit_world.drain(transport=transport)
    assert drained.crashes == (point,)
    with aftercommit_world.connect() as connection:
        assert sorted(connection.execute(LEDGER).fetchall()) == [("o-1", ""), ("o-2", "")]
    assert [event.position for event in aftercommit_world.published()] == [1, 2]


@pytest.mark.thorough
@pytest.mark.parametrize("declare", [write_ledger, write_ledger_blocking])
def test_several_deaths_in_a_row_are_followed_by_success(aftercommit_world: World, declare: Any) -> None:
    declare(aftercommit_world.outbox)
    aftercommit_world.publish(OrderPlaced("o-1"), tenant_id="acme")
    aftercommit_world.crash_at("consumer.read", times=2)
    aftercommit_world.crash_at("relay.appended")
    assert aftercommit_world.drain().crashes == ("relay.appended", "consumer.read", "consumer.read")
    with aftercommit_world.connect() as connection:
        assert connection.execute(LEDGER).fetchall() == [("o-1", "")]


@pytest.mark.thorough
def test_some_may_pass_before_the_first_dies(aftercommit_world: World) -> None:
    write_ledger(aftercommit_world.outbox, "first", start="earliest")
    write_ledger(aftercommit_world.outbox, "second", start="earliest")
    aftercommit_world.publish(OrderPlaced("o-1"), tenant_id="acme")
    aftercommit_world.crash_at("consumer.handled", after=1)
    drained = aftercommit_world.drain()
    assert drained.crashes == ("consumer.handled",)
    assert [attempt.consumer for attempt in drained.handled] == ["first", "second"]


@pytest.mark.thorough
def test_a_crash_that_never_comes_fails_the_test(aftercommit_world: World) -> None:
    aftercommit_world.publish(OrderPlaced("o-1"), tenant_id="acme")
    aftercommit_world.crash_at("relay.delivered")
    with pytest.raises(AssertionError, match=r"'relay.delivered' happened 0 times, not 1.*reached: .*relay.appended"):
        aftercommit_world.drain()


async def test_points_serve_as_the_probe_of_a_service_of_ones_own() -> None:
    points = Points()
    points.crash_at("relay.read", after=1)
    done: list[str] = []

    async def act() -> None:
        done.append("acted")

    points.at("relay.idle", act)
    points.at("relay.idle", lambda: done.append("acted in a thread"))
    await points("relay.read", {})
    with pytest.raises(SimulatedCrash, match=r"relay\.read"):
        await points("relay.read", {})
    await points("relay.idle", {})
    assert done == ["acted", "acted in a thread"]
    assert points.unreached == []


PROGRAM = """
import asyncio, sys
from aftercommit.postgres.database import Database
from aftercommit.relay import Relay
from aftercommit.testing import crash_from_environment
from aftercommit.relay.transports import LogTransport
from tests.support.shop import shop_outbox

async def main():
    relay = Relay(shop_outbox(), Database(sys.argv[1]), LogTransport(), probe=crash_from_environment())
    await relay.start()
    await relay.wait()

asyncio.run(main())
"""


@pytest.mark.thorough
def test_a_program_that_asks_dies_where_its_environment_says(aftercommit_world: World) -> None:
    aftercommit_world.publish(OrderPlaced("o-1"), tenant_id="acme")
    environment = {**os.environ, **crash_environment("relay.appended")}
    command = [sys.executable, "-c", PROGRAM, aftercommit_world.dsn]
    died = subprocess.run(command, env=environment, cwd=REPOSITORY, timeout=100, check=False)
    assert died.returncode == -signal.SIGKILL
    assert aftercommit_world.published()[0].position == 1
    assert aftercommit_world.drain().appended == 0


def test_a_program_that_asks_without_the_variable_gets_no_probe() -> None:
    assert crash_from_environment({}) is None
    assert crash_from_environment({CRASH_AT: ""}) is None
    with pytest.raises(DeclarationError, match="after the colon"):
        crash_from_environment({CRASH_AT: "relay.read:often"})
    with pytest.raises(DeclarationError, match="no point 'relay'"):
        crash_from_environment({CRASH_AT: "relay"})


def test_no_production_code_reads_the_variable() -> None:
    readers = [
        path.relative_to(REPOSITORY).as_posix()
        for path in (REPOSITORY / "src").rglob("*.py")
        if re.search(rf"{CRASH_AT}|crash_from_environment", path.read_text()) and "testing" not in path.parts
    ]
    assert readers == []
