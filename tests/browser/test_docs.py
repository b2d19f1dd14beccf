"""`/docs` in a browser: it looks like the other pages, begins with requests that can be sent, and leads back."""

import json
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Route, expect

from tests.browser.board import NARROW, BoardPage, tab
from tests.browser.page import holds
from tests.support.investigations import Service

pytestmark = pytest.mark.needs("chromium")

DARK = "rgb(18, 22, 28)"
# What stands between two slashes stands on one line.
WORDS_ARE_WHOLE = """(() => {
  const range = document.createRange();
  for (const code of document.querySelectorAll("summary code")) {
    const text = document.createTreeWalker(code, NodeFilter.SHOW_TEXT);
    while (text.nextNode()) {
      for (const word of text.currentNode.data.matchAll(/[^/]+/g)) {
        range.setStart(text.currentNode, word.index);
        range.setEnd(text.currentNode, word.index + word[0].length);
        if (new Set([...range.getClientRects()].map((each) => each.top)).size !== 1) return false;
      }
    }
  }
  return true;
})()"""


@pytest.fixture
def docs(chromium: Browser, investigations: Service) -> Iterator[BoardPage]:
    """A tab on the description of the whole site."""
    with tab(chromium, investigations.url) as shown:
        shown.page.goto(f"{investigations.url}/docs")
        yield shown


def test_it_leads_back_to_the_site_and_keeps_the_colours_that_were_chosen_there(docs: BoardPage):
    expect(docs.page.get_by_role("heading", level=1)).to_have_text("API")
    docs.page.get_by_role("button", name="Colours").click()
    docs.page.get_by_role("button", name="Colours: Light").click()
    ground = docs.page.locator("body")
    expect(ground).to_have_css("background-color", DARK)
    docs.page.get_by_role("link", name="aftercommit").click()
    docs.page.get_by_role("heading", name="Running here").wait_for()
    expect(ground).to_have_css("background-color", DARK)
    docs.page.get_by_role("link", name="API").click()
    docs.page.get_by_role("button", name="Colours: Dark").wait_for()
    expect(ground).to_have_css("background-color", DARK)


def test_a_request_begins_with_an_example_that_can_be_sent(docs: BoardPage, investigations: Service):
    operations = docs.page.locator("#operations > details")
    for path in ("/api/v1/investigations", "/tasks"):
        place = operations.filter(has=docs.page.get_by_text("post", exact=True)).filter(
            has=docs.page.get_by_text(path, exact=True)
        )
        place.locator("summary").first.click()
        example = json.loads(place.get_by_label("Request body").input_value())
        assert example["title"], path
    docs.page.get_by_label("Bearer token").fill(investigations.token("investigation:create"))
    first = operations.filter(has=docs.page.get_by_text("/api/v1/investigations", exact=True)).nth(1)
    first.get_by_role("button", name="Send").click()
    expect(first.locator("pre").filter(has_text="201 Created").first).to_be_visible()


def test_who_sends_without_a_token_is_led_to_the_field_for_it(docs: BoardPage, investigations: Service):
    place = docs.page.locator("#operations > details", has=docs.page.get_by_text("/api/v1/investigations", exact=True))
    place.first.locator("summary").first.click()
    send = place.first.get_by_role("button", name="Send")
    send.click()
    expect(place.first.locator("pre", has_text="401 Unauthorized")).to_be_visible()
    docs.page.get_by_role("link", name="give one at the top of this page").click()
    token = docs.page.get_by_label("Bearer token")
    expect(token).to_be_focused()
    expect(docs.page.locator("#samples")).to_be_hidden()
    token.fill(investigations.token("investigation:*:read"))
    send.click()
    expect(place.first.locator("pre", has_text="200 OK")).to_be_visible()
    expect(docs.page.get_by_role("link", name="give one at the top of this page")).to_be_hidden()


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


def test_a_long_path_is_broken_after_a_slash_and_not_within_a_word(docs: BoardPage):
    docs.page.set_viewport_size(NARROW)
    path = docs.page.locator("summary code", has_text="/api/v1/investigations/{investigation_id}/logs").first
    expect(path).to_have_text("/api/v1/investigations/{investigation_id}/logs")
    holds(docs.page, WORDS_ARE_WHOLE)


def test_it_fits_on_a_telephone_with_everything_open(docs: BoardPage):
    docs.page.set_viewport_size(NARROW)
    docs.page.locator("details").first.wait_for()
    docs.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")
    holds(docs.page, "document.documentElement.scrollWidth <= document.documentElement.clientWidth")
