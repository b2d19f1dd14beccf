"""The viewer where the server does what a real one does rarely. The script is `web/dev/server.mjs`."""

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Scripted
from tests.browser.page import LogPage, forget_ways, holds

pytestmark = [pytest.mark.needs("chromium"), pytest.mark.contract("L14")]

TOKEN = "ines-token"


def test_a_sample_user_is_chosen_and_kept_for_the_tab(scripted_page: LogPage):
    scripted_page.open("INV-123", None)
    scripted_page.page.get_by_role("button", name="ines").click()
    scripted_page.shows("(2000)")
    scripted_page.page.reload()
    scripted_page.shows("(2000)")
    expect(scripted_page.page.get_by_role("dialog")).to_be_hidden()
    scripted_page.says("reader-name", "ines")


def test_older_lines_come_by_scrolling_up_and_the_view_stays(scripted_page: LogPage):
    scripted_page.open("INV-123", TOKEN)
    scripted_page.says("range", "Lines 1,501 to 2,000 of 2,000")
    scripted_page.scroll("beginning")
    scripted_page.says("range", "Lines 501 to 2,000 of 2,000")
    scripted_page.shows("(1501)")
    scripted_page.stays_at(1501)
    scripted_page.scroll("beginning")
    scripted_page.says("range", "Lines 1 to 2,000 of 2,000")
    scripted_page.stays_at(501)


def test_a_time_is_looked_up(scripted_page: LogPage, scripted: Scripted):
    scripted_page.open("INV-123", TOKEN)
    scripted_page.shows("(2000)")
    scripted_page.go_to_time("2020-01-01T00:00:00")
    scripted_page.says("range", "Lines 1 to 500 of 2,000")
    scripted_page.is_active(1)
    scripted_page.page.get_by_role("button", name="Newest lines ↓").click()
    scripted_page.shows("(2000)")


def test_connections_that_are_cut_again_and_again_lose_no_line(scripted_page: LogPage, scripted: Scripted):
    scripted_page.page.clock.install()
    scripted_page.open("INV-123", TOKEN)
    scripted_page.connection("streaming")
    for turn in range(4):
        scripted.control(append=1)
        scripted_page.says("range", f"Lines 1,501 to {2001 + 2 * turn:,} of {2001 + 2 * turn:,}")
        forget_ways(scripted_page.page)
        scripted.control(cut=True)
        scripted.control(append=1)
        scripted_page.went("waiting")
        scripted_page.page.clock.fast_forward(5_000)
        scripted_page.connection("streaming")
    scripted_page.says("range", "Lines 1,501 to 2,008 of 2,008")


def test_a_server_that_is_away_at_first_is_tried_again(scripted_page: LogPage, scripted: Scripted):
    scripted_page.page.clock.install()
    scripted.control(page=503)
    scripted_page.open("INV-123", TOKEN)
    scripted_page.page.get_by_text("Could not load the log").wait_for()
    scripted_page.went("waiting")
    scripted.control(page=0)
    scripted_page.page.clock.fast_forward(5_000)
    scripted_page.shows("(2000)")


ROWS = """(which) => new Set([...document.querySelectorAll(which)].map((each) =>
    Math.round(each.getBoundingClientRect().top + each.getBoundingClientRect().height / 2))).size"""


def test_the_tools_stand_in_one_row_or_their_buttons_go_to_another_together(scripted_page: LogPage):
    scripted_page.open("INV-123", TOKEN)
    scripted_page.shows("(2000)")
    page = scripted_page.page
    page.get_by_label("Search in the loaded lines").fill("Saved")
    expect(page.locator("#found")).to_contain_text("/83")
    for width in (1000, 1024, 1200, 1280, 1500):
        page.set_viewport_size({"width": width, "height": 800})
        holds(page, f"({ROWS})('.tools .field, .tools .button') === 1")
        holds(page, f"document.querySelector('#follow').getBoundingClientRect().right <= {width}")
    for width in (700, 900):
        page.set_viewport_size({"width": width, "height": 800})
        holds(page, f"({ROWS})('.tools .field, .tools .button') === 2")
        holds(page, f"({ROWS})('#beginning, #jump, #follow') === 1")


def test_a_wide_page_and_a_narrow_one_both_hold_their_lines(scripted_page: LogPage):
    scripted_page.open("INV-123", TOKEN)
    scripted_page.shows("(2000)")
    scripted_page.page.set_viewport_size({"width": 390, "height": 800})
    scripted_page.shows("(2000)")
    holds(scripted_page.page, "document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    scripted_page.page.locator(".row[data-seq='2000']").click()
    scripted_page.page.get_by_role("complementary", name="Line details").wait_for()
    expect(scripted_page.page.locator(".row.active")).to_be_in_viewport()


def test_colours_follow_the_system_until_the_reader_chooses(scripted_page: LogPage):
    ground = scripted_page.page.locator("body")
    scripted_page.page.emulate_media(color_scheme="dark")
    scripted_page.open("INV-123", TOKEN)
    scripted_page.shows("(2000)")
    expect(ground).to_have_css("background-color", "rgb(18, 22, 28)")
    scripted_page.page.get_by_role("button", name="Colours").click()
    expect(ground).to_have_css("background-color", "rgb(255, 255, 255)")
    scripted_page.page.reload()
    scripted_page.shows("(2000)")
    expect(ground).to_have_css("background-color", "rgb(255, 255, 255)")


def test_everything_that_can_be_pressed_has_a_name(scripted_page: LogPage):
    scripted_page.open("INV-123", TOKEN)
    scripted_page.shows("(2000)")
    scripted_page.press("k", "Enter")
    nameless = """[...document.querySelectorAll('button, input, select')].filter((each) =>
        !(each.textContent.trim() || each.getAttribute('aria-label') || each.labels?.length)).map((each) => each.id)"""
    assert [name for name in scripted_page.evaluate(nameless) if name != "fresh"] == []
    grid = scripted_page.page.get_by_role("grid", name="Log lines, oldest first")
    expect(grid).to_have_attribute("aria-activedescendant", "line-2000")
    expect(scripted_page.page.locator("#line-2000")).to_have_attribute("aria-selected", "true")


def test_the_first_page_explains_what_runs_and_links_to_it(scripted_page: LogPage):
    scripted_page.page.goto(f"{scripted_page.url}/")
    scripted_page.page.get_by_role("link", name="Live log of INV-123").click()
    scripted_page.page.get_by_role("button", name="ines").click()
    scripted_page.shows("(2000)")


def test_a_hundred_thousand_lines_are_few_rows_and_a_bounded_list(scripted_page: LogPage, scripted: Scripted):
    scripted_page.open("INV-123", TOKEN)
    scripted_page.connection("streaming")
    for _ in range(10):
        scripted.control(append=10_000)
    scripted_page.says("range", "Lines 2,001 to 102,000 of 102,000")
    scripted_page.shows("(102000)")
    assert len(scripted_page.rows()) < 100

    scripted_page.scroll("-1200000")
    scripted_page.page.locator(".row[data-seq^='5']").first.wait_for(state="attached")
    rows = scripted_page.rows()
    assert rows == list(range(rows[0], rows[-1] + 1))
    assert len(rows) < 100
    scripted.control(append=5)
    scripted_page.says("follow", "Paused · 5 new")
    assert scripted_page.rows() == rows

    scripted_page.press("/")
    scripted_page.page.keyboard.type("(7777")
    scripted_page.says("found", "2/11")
    scripted_page.press("Escape")

    # Older lines come in at one end and push out at the other, and what is looked at stays.
    scripted_page.scroll("beginning")
    scripted_page.says("range", "Lines 1,001 to 101,000 of 102,005")
    scripted_page.stays_at(2001)
    assert len(scripted_page.rows()) < 100
    scripted_page.scroll("beginning")
    scripted_page.says("range", "Lines 1 to 100,000 of 102,005")
    scripted_page.stays_at(1001)
    scripted_page.press("f")
    scripted_page.shows("(102005)")


def test_older_lines_that_no_filter_lets_through_are_looked_for_by_themselves(
    scripted_page: LogPage, scripted: Scripted
):
    """A list that is shorter than its window cannot be scrolled."""
    scripted.control(page=0, most=3)
    scripted_page.open("INV-123", TOKEN, "#minLevel=ERROR")
    scripted_page.shows("(1989)")
    scripted_page.page.locator(".row").nth(30).wait_for(state="attached")
    rows = scripted_page.rows()
    assert rows == list(range(rows[0], 1990, 17))


def test_what_follows_a_piece_that_is_shorter_than_its_window_comes_by_itself(
    scripted_page: LogPage, scripted: Scripted
):
    scripted.control(most=3)
    scripted_page.open("INV-123", TOKEN)
    scripted_page.shows("(2000)")
    scripted_page.go_to_time("2020-01-01T00:00:00")
    scripted_page.shows("(1)")
    scripted_page.page.locator(".row").nth(20).wait_for(state="attached")
    rows = scripted_page.rows()
    assert rows == list(range(1, len(rows) + 1))


@pytest.mark.parametrize(
    ("edge", "loaded"), [("beginning", "Lines 501 to 2,000 of 2,000"), ("end", "Lines 1 to 1,500 of 2,000")]
)
def test_lines_that_could_not_be_loaded_are_asked_for_again_by_themselves(
    scripted_page: LogPage, scripted: Scripted, edge: str, loaded: str
):
    """At the edge of what is loaded there is nothing left to scroll."""
    scripted_page.page.clock.install()
    scripted_page.open("INV-123", TOKEN)
    scripted_page.says("range", "Lines 1,501 to 2,000 of 2,000")
    if edge == "end":
        scripted_page.go_to_time("2020-01-01T00:00:00")
        scripted_page.says("range", "Lines 1 to 500 of 2,000")
        scripted_page.page.locator(".row.active").wait_for()
    scripted.control(page=503)
    scripted_page.scroll(edge)
    scripted_page.said("The script says no.")
    scripted.control(page=0)
    scripted_page.page.clock.fast_forward(5_000)
    scripted_page.says("range", loaded)
