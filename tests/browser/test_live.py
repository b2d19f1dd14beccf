"""What a page shows as live is so, or it says otherwise within 15 seconds: with a server that hangs, and without a
network."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from subprocess import PIPE, Popen

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from aftercommit.testing.postgres import PostgresServerForTests
from tests.browser.board import BoardPage, tab
from tests.browser.page import PATIENCE, context_of
from tests.support import tasks as task_system
from tests.support.hanging import frozen, stopped
from tests.support.tasks import ADA, Service

pytestmark = [pytest.mark.needs("chromium"), pytest.mark.contract("E7")]

WITHIN = 15.0
LAST_UPDATE = "last update"


def not_live(page: Page) -> float:
    """Seconds until the page says that it is not live any more, and how old what it shows is."""
    began = time.monotonic()
    badge = page.locator("#connection")
    expect(badge).not_to_have_attribute("data-state", "streaming", timeout=PATIENCE)
    took = time.monotonic() - began
    expect(badge).to_contain_text(LAST_UPDATE)
    expect(badge).not_to_contain_text("Live")
    return took


@pytest.fixture
def own(postgres_server: PostgresServerForTests, site: None) -> Iterator[Service]:
    """A task system that this test may stop."""
    with task_system.service(postgres_server, workers=1) as running:
        yield running


def pid_of(service: Service) -> int:
    assert service.server is not None
    return service.server.process.pid


def test_a_server_that_hangs_is_not_live_and_is_again_when_it_goes_on(chromium: Browser, own: Service):
    with tab(chromium, own.url) as board:
        board.open(ADA)
        board.connection("streaming")
        with stopped(pid_of(own)):
            assert not_live(board.page) < WITHIN
        board.connection("streaming")
        own.create(ADA, "made after the pause")
        board.hears("made after the pause", "You created it")


def test_a_quiet_stream_stays_live(chromium: Browser, own: Service):
    """Heartbeats alone keep it so, for longer than any silence would."""
    with tab(chromium, own.url) as board:
        board.open(ADA)
        board.connection("streaming")
        board.page.wait_for_timeout(1000 * (WITHIN + 3))
        assert board.evaluate("document.documentElement.dataset.ways").split() == ["connecting", "streaming"]


def test_a_database_that_hangs_is_not_live_either(chromium: Browser, site: None):
    with (
        PostgresServerForTests() as postgres,
        task_system.service(postgres, workers=1) as service,
        tab(chromium, service.url) as board,
    ):
        board.open(ADA)
        board.connection("streaming")
        with frozen(postgres):
            assert not_live(board.page) < WITHIN
            # A stream that was opened again from memory would be live only in name.
            board.went("polling")
            assert board.evaluate("document.documentElement.dataset.ways").split().count("streaming") == 1
        board.connection("streaming")


@contextmanager
def offline(context: BrowserContext) -> Iterator[None]:
    context.set_offline(True)
    yield
    context.set_offline(False)


def test_a_browser_without_a_network_says_so_at_once(chromium: Browser, tasks: Service):
    with tab(chromium, tasks.url) as board:
        board.open(ADA)
        board.connection("streaming")
        with offline(board.page.context):
            assert not_live(board.page) < WITHIN / 3
            create(board, "never made")
            board.alert("Could not create the task.")
            # Whatever an emulated network lets through.
            board.went("polling")
            assert board.evaluate("document.documentElement.dataset.ways").split().count("streaming") == 1
        board.connection("streaming")


def test_a_request_that_fails_is_doubt_at_once_and_a_heartbeat_ends_it(board: BoardPage):
    board.open(ADA)
    board.connection("streaming")
    board.page.route("**/tasks", lambda route: route.abort() if route.request.method == "POST" else route.continue_())
    create(board, "never made either")
    board.alert("Could not create the task.")
    board.connection("checking")
    expect(board.page.locator("#connection")).to_contain_text(LAST_UPDATE)
    board.connection("streaming")


def create(board: BoardPage, title: str) -> None:
    board.page.get_by_role("button", name="New task").click()
    board.page.get_by_label("Title").fill(title)
    board.page.get_by_role("button", name="Create task").click()


def test_the_log_viewer_is_not_live_when_its_server_hangs(
    chromium: Browser, own: Service, investigation: Callable[[Service], tuple[str, str]]
):
    case, token = investigation(own)
    context = context_of(chromium, own.url, {"width": 1280, "height": 800})
    page = context.new_page()
    page.add_init_script(
        f"""sessionStorage.setItem("aftercommit.reading", '{{"user": "tester", "token": "{token}"}}')"""
    )
    page.goto(f"{own.url}/investigations/{case}")
    expect(page.locator("#connection")).to_have_attribute("data-state", "streaming")
    with stopped(pid_of(own)):
        assert not_live(page) < WITHIN
    expect(page.locator("#connection")).to_have_attribute("data-state", "streaming")
    context.close()


@pytest.fixture
def investigation() -> Callable[[Service], tuple[str, str]]:
    """Opens one; its id, and a token that may read it."""

    def opened(service: Service) -> tuple[str, str]:
        rights = ("investigation:create", "investigation:*:read")
        token = task_system.signed(ADA, permissions=rights)
        with service.client(Authorization=f"Bearer {token}") as client:
            answer = client.post("/api/v1/investigations", json={"title": "a case"})
            assert answer.status_code == 201, answer.text
            return str(answer.json()["investigation_id"]), token

    return opened


def test_the_chats_are_not_live_when_their_server_hangs(chromium: Browser):
    command = [sys.executable, "-m", "aftercommit.contrib.telegram.local_api", "--port", "0"]
    with Popen(command, stdout=PIPE, text=True) as program:
        assert program.stdout is not None
        try:
            url = program.stdout.readline().split()[1]
            context = context_of(chromium, url, {"width": 1280, "height": 800})
            page = context.new_page()
            page.goto(url)
            badge = page.locator("#connection")
            expect(badge).to_have_attribute("data-state", "live")
            with stopped(program.pid):
                began = time.monotonic()
                expect(badge).not_to_have_attribute("data-state", "live", timeout=PATIENCE)
                assert time.monotonic() - began < WITHIN
                expect(badge).to_contain_text(LAST_UPDATE)
            expect(badge).to_have_attribute("data-state", "live")
            with offline(context):
                expect(badge).to_have_attribute("data-state", "waiting", timeout=1000 * WITHIN / 3)
            expect(badge).to_have_attribute("data-state", "live")
            context.close()
        finally:
            program.terminate()
