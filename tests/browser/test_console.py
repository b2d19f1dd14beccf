"""Every page, as a newcomer opens them: nothing on the console, and nothing of the site's own that is not found."""

from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.board import KEY, WIDE
from tests.browser.page import context_of
from tests.support.investigations import TLS
from tests.support.tasks import ADA, BARBARA, EDSGER, Service, signed

pytestmark = pytest.mark.needs("chromium")

PAGES = ("/", "/tasks/board", "/investigations/INV-123", "/docs", "/metrics", "/healthz", "/openapi.json")


class Witness:
    """A page, what its console says, and which requests were answered with an error."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        page.on("console", lambda said: self._heard(said.type, said.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("response", lambda answer: self._answered(answer.status, answer.url))

    def _heard(self, kind: str, text: str) -> None:
        if kind in {"error", "warning"}:
            self.complaints.append(text)

    def _answered(self, status: int, url: str) -> None:
        if status >= 400:
            self.complaints.append(f"{status} {url}")


@pytest.fixture
def witness(chromium: Browser, tasks: Service) -> Iterator[Witness]:
    context = context_of(chromium, tasks.url, WIDE)
    yield Witness(context.new_page())
    context.close()


def remember(page: Page, key: str, user: int, *permissions: str) -> None:
    reading = f'{{"user": "tester", "token": "{signed(user, permissions=permissions)}"}}'
    page.add_init_script(f"sessionStorage.setItem({key!r}, {reading!r})")


def test_no_page_complains(witness: Witness, tasks: Service):
    page = witness.page
    remember(page, KEY, ADA)
    rights = ("investigation:create", "investigation:*:read")
    remember(page, "aftercommit.reading", ADA, *rights)
    with tasks.client(Authorization=f"Bearer {signed(ADA, permissions=rights)}") as client:
        case = client.post("/api/v1/investigations", json={"title": "a case"}).json()["investigation_id"]
    for path in PAGES:
        page.goto(f"{tasks.url}{path.replace('INV-123', case)}")
        if page.locator("#connection").count():
            expect(page.locator("#connection")).to_have_attribute("data-state", "streaming")
    icon = page.request.get(f"{tasks.url}/favicon.ico")
    assert (icon.status, icon.headers["content-type"]) == (200, "image/svg+xml")
    assert witness.complaints == []


def test_a_task_is_opened_and_its_icon_is_found(witness: Witness, tasks: Service):
    page = witness.page
    tasks.create(ADA, "To be looked at")
    remember(page, KEY, ADA)
    page.goto(f"{tasks.url}/tasks/board")
    page.locator("a.task", has_text="To be looked at").first.click()
    expect(page.locator(".detail .facts .badge")).to_be_visible()
    assert page.evaluate("new URL(document.querySelector('link[rel=icon]').href).pathname").startswith("/assets/")
    assert witness.complaints == []


def test_who_hands_a_task_over_does_not_ask_for_it_any_more(witness: Witness, tasks: Service):
    page = witness.page
    task = tasks.create(ADA, "Handed to somebody else", assignee_user_id=EDSGER)["task_id"]
    remember(page, KEY, EDSGER)
    page.goto(f"{tasks.url}/tasks/board/{task}")
    expect(page.locator(".detail .facts .badge")).to_be_visible()
    expect(page.locator("#connection")).to_have_attribute("data-state", "streaming")
    tasks.act(ADA, task, "reassign", assignee_user_id=BARBARA)
    expect(page.locator("a.task", has_text="Handed to somebody else")).to_have_count(0)
    expect(page.locator("#detail-body")).to_contain_text("reassigned to someone else")
    assert witness.complaints == []


def test_what_pages_are_made_of_is_compressed_for_those_who_read_it(tasks: Service):
    page = httpx.get(f"{tasks.url}/tasks/board", verify=TLS)
    script = page.text.split('type="module" src="')[1].split('"')[0].removeprefix("../")
    for path in (script, "docs.js", "openapi.json"):
        plain = httpx.get(f"{tasks.url}/{path}", headers={"Accept-Encoding": "identity"}, verify=TLS)
        packed = httpx.get(f"{tasks.url}/{path}", headers={"Accept-Encoding": "gzip"}, verify=TLS)
        refused = httpx.get(f"{tasks.url}/{path}", headers={"Accept-Encoding": "gzip;q=0, *"}, verify=TLS)
        assert packed.headers["content-encoding"] == "gzip"
        assert int(packed.headers["content-length"]) < len(plain.content) / 2
        assert packed.content == plain.content == refused.content
        assert "content-encoding" not in {*plain.headers, *refused.headers}
        assert "Accept-Encoding" in plain.headers["vary"]
        assert "Accept-Encoding" in packed.headers["vary"]
        assert plain.headers["cache-control"] == packed.headers["cache-control"]
    assert "immutable" in httpx.get(f"{tasks.url}/{script}", verify=TLS).headers["cache-control"]
