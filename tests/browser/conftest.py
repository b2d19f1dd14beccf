"""A browser, the pages, and a server behind them: the real system, or a scripted one for what is rare."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, ViewportSize, sync_playwright

from aftercommit.testing.postgres import PostgresServerForTests
from tests.browser.board import BoardPage, tab
from tests.browser.page import LogPage, context_of
from tests.conftest import require_program
from tests.contracts.conftest import readers_leave
from tests.support import tasks as task_system
from tests.support.investigations import Service, service
from tools import web

__all__ = ["readers_leave"]

WIDE: ViewportSize = {"width": 1360, "height": 800}


@pytest.fixture(scope="session")
def site() -> None:
    """The pages, as they are served."""
    web.build()


# While Playwright runs, its event loop does, and no test of another module could run one in this thread.
@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """The system's own Chromium: Playwright's would have to be fetched."""
    require_program("chromium")
    with sync_playwright() as playwright:
        # Chromium refuses to sandbox itself for root, which is who runs tests in a container.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def investigations(postgres_server: PostgresServerForTests, site: None) -> Iterator[Service]:
    """The investigations system: a relay and two server processes. Each test opens investigations of its own."""
    with service(postgres_server) as running:
        yield running


@pytest.fixture
def log_page(chromium: Browser, investigations: Service) -> Iterator[LogPage]:
    """A tab on the real system. A page that complains on the console fails its test."""
    yield from _tab(chromium, investigations.url)


@pytest.fixture(scope="package")
def tasks(postgres_server: PostgresServerForTests, site: None) -> Iterator[task_system.Service]:
    """The task system; each test makes tasks of its own."""
    with task_system.service(postgres_server, workers=1) as running:
        yield running


@pytest.fixture
def board(chromium: Browser, tasks: task_system.Service) -> Iterator[BoardPage]:
    """A tab on the task board."""
    with tab(chromium, tasks.url) as shown:
        yield shown


@pytest.fixture
def other(chromium: Browser, tasks: task_system.Service) -> Iterator[BoardPage]:
    """Another tab, of somebody else."""
    with tab(chromium, tasks.url) as shown:
        yield shown


@dataclass
class Scripted:
    """The stand-in of `web/dev/server.mjs`."""

    url: str

    def control(self, **commands: Any) -> dict[str, int]:
        """Tell it what to do; it tells how it stands."""
        answer: dict[str, int] = httpx.post(f"{self.url}/control", json=commands, timeout=60).raise_for_status().json()
        return answer


@pytest.fixture
def scripted(site: None) -> Iterator[Scripted]:
    """A scripted server with 2,000 lines, where nothing happens by itself."""
    command = [*web.node(), "dev/server.mjs", str(web.SITE), "--port", "0", "--lines", "2000", "--every", "0"]
    with subprocess.Popen(command, cwd=web.WEB, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        try:
            yield Scripted(program.stdout.readline().strip().rstrip("/"))
        finally:
            program.terminate()


@pytest.fixture
def scripted_page(chromium: Browser, scripted: Scripted) -> Iterator[LogPage]:
    """A tab on the scripted server."""
    yield from _tab(chromium, scripted.url)


def _tab(browser: Browser, url: str) -> Iterator[LogPage]:
    context = context_of(browser, url, WIDE)
    shown = LogPage(context.new_page(), url)
    yield shown
    context.close()
    assert shown.complaints == []
