"""`/docs` in a browser: Swagger UI in our colours, with sample users, and without a request to any other host."""

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from tests.browser.board import NARROW, BoardPage, tab
from tests.browser.page import holds
from tests.support.investigations import Service

pytestmark = pytest.mark.needs("chromium")

DARK = "rgb(18, 22, 28)"
INVESTIGATIONS = "/api/v1/investigations"


@pytest.fixture
def docs(chromium: Browser, investigations: Service) -> Iterator[BoardPage]:
    """A tab on the description of the whole site. A complaint on the console, of the policy too, fails its test."""
    with tab(chromium, investigations.url) as shown:
        shown.page.goto(f"{investigations.url}/docs")
        yield shown


def opened(page: Page, method: str, path: str) -> Locator:
    """An operation, unfolded."""
    operation = page.locator(f".opblock-{method}").filter(has=page.locator(f'[data-path="{path}"]'))
    operation.locator(".opblock-summary-control").click()
    operation.get_by_role("button", name="Execute").wait_for()
    return operation


def answered(operation: Locator, status: int) -> None:
    """Send the request, and wait for this answer."""
    operation.get_by_role("button", name="Execute").click()
    expect(operation.locator(".live-responses-table .response-col_status").nth(1)).to_contain_text(str(status))


def authorize(page: Page, token: str) -> None:
    page.locator(".scheme-container").get_by_role("button", name="Authorize").click()
    dialog = page.locator(".modal-ux")
    dialog.get_by_role("textbox").fill(token)
    dialog.get_by_role("button", name="Apply credentials").or_(dialog.locator("button[type=submit]")).first.click()
    dialog.locator(".btn-done").click()


def test_it_leads_back_to_the_site_and_keeps_the_colours_that_were_chosen_there(docs: BoardPage):
    expect(docs.page.get_by_role("heading", level=1)).to_have_text("API")
    docs.page.get_by_role("button", name="Colours").click()
    docs.page.get_by_role("button", name="Colours: Light").click()
    ground = docs.page.locator("body")
    expect(ground).to_have_css("background-color", DARK)
    docs.page.get_by_role("link", name="aftercommit").click()
    docs.page.get_by_role("heading", name="Systems").wait_for()
    expect(ground).to_have_css("background-color", DARK)
    docs.page.get_by_role("link", name="API").click()
    docs.page.get_by_role("button", name="Colours: Dark").wait_for()
    expect(ground).to_have_css("background-color", DARK)


def test_a_request_begins_with_an_example_that_can_be_sent(docs: BoardPage, investigations: Service):
    operation = opened(docs.page, "post", INVESTIGATIONS)
    answered(operation, 401)
    authorize(docs.page, investigations.token("investigation:create"))
    answered(operation, 201)


def test_a_sample_user_is_chosen_and_sends_their_token(docs: BoardPage, investigations: Service):
    user = {"user": "ada", "about": "reads everything", "token": investigations.token("investigation:*:read")}

    def described(route: Route) -> None:
        told = route.fetch().json()
        told["components"]["securitySchemes"]["bearer"]["x-sample-users"] = "./users.json"
        route.fulfill(json=told)

    docs.page.route("**/openapi.json", described)
    docs.page.route("**/users.json", lambda route: route.fulfill(json={"users": [user]}))
    expect(docs.page.locator("#samples")).to_be_hidden()
    docs.page.reload()
    operation = opened(docs.page, "get", INVESTIGATIONS)
    docs.page.get_by_label("Send requests as").select_option(label="ada: reads everything")
    answered(operation, 200)
    docs.page.get_by_label("Send requests as").select_option("")
    answered(operation, 401)


def test_of_a_stream_the_first_seconds_are_shown(docs: BoardPage, investigations: Service):
    case = investigations.open("followed from the page")
    authorize(docs.page, investigations.token("investigation:*:read"))
    operation = opened(docs.page, "get", INVESTIGATIONS + "/{investigation_id}/logs/stream")
    operation.locator('[data-param-name="investigation_id"] input').fill(case)
    answered(operation, 200)
    expect(operation.locator(".live-responses-table")).to_contain_text("cut off here after 5 seconds")


def test_no_other_host_is_asked(docs: BoardPage, investigations: Service):
    asked: list[str] = []
    docs.page.on("request", lambda request: asked.append(request.url))
    docs.page.reload()
    answered(opened(docs.page, "get", "/tasks"), 401)
    docs.page.locator(".scheme-container").get_by_role("button", name="Authorize").click()
    docs.page.locator(".modal-ux").wait_for()
    # Icons of the style sheet are data.
    hosts = {urlsplit(url).netloc for url in asked if not url.startswith("data:")}
    assert hosts == {urlsplit(investigations.url).netloc}
    assert any(url.endswith("/openapi.json") for url in asked)


def test_in_an_application_without_an_index_there_is_no_way_back_and_its_own_title(docs: BoardPage):
    def described(route: Route) -> None:
        told = route.fetch().json()
        del told["externalDocs"]
        told["info"]["title"] = "The shop's feeds <b>and more</b>"
        route.fulfill(json=told)

    docs.page.route("**/openapi.json", described)
    docs.page.reload()
    expect(docs.page.get_by_role("heading", level=1)).to_have_text("The shop's feeds <b>and more</b>")
    expect(docs.page.locator("#home")).to_be_hidden()


def test_it_fits_on_a_telephone_with_everything_open(docs: BoardPage):
    docs.page.set_viewport_size(NARROW)
    opened(docs.page, "post", INVESTIGATIONS)
    opened(docs.page, "get", INVESTIGATIONS + "/{investigation_id}/logs")
    holds(docs.page, "document.documentElement.scrollWidth <= document.documentElement.clientWidth")
