"""The log viewer under quick hands: keys are pressed while the answer to what was pressed before is still under way."""

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Scripted
from tests.browser.page import LogPage, held, line_in

pytestmark = [pytest.mark.needs("chromium"), pytest.mark.contract("L14")]

TOKEN = "ines-token"
PAGES = "**/logs?*"


@pytest.fixture
def newest(scripted_page: LogPage) -> LogPage:
    """A page that follows the newest of 2,000 lines."""
    scripted_page.open("INV-123", TOKEN)
    scripted_page.says("range", "Lines 1,501 to 2,000 of 2,000")
    scripted_page.connection("streaming")
    return scripted_page


def shared(page: LogPage) -> int:
    """The line whose link was copied."""
    page.said("Link copied")
    return line_in(page.copied())


def test_keys_act_on_the_line_that_a_move_under_way_brings_in_the_order_they_were_pressed(newest: LogPage):
    with held(newest.page, PAGES):
        newest.press("g", "j", "j", "s", "Enter", "PageDown")
    assert shared(newest) == 3
    newest.says("range", "Lines 1 to 500 of 2,000")
    panel = newest.page.get_by_role("complementary", name="Line details")
    # The panel goes with the line.
    expect(panel.get_by_role("heading")).not_to_have_text("Line 3")
    expect(newest.page.locator(".row.active")).not_to_have_attribute("data-seq", "3")


def test_keys_that_are_pressed_before_there_is_any_line_act_on_the_newest(scripted_page: LogPage):
    with held(scripted_page.page, PAGES):
        scripted_page.open("INV-123", TOKEN)
        scripted_page.press("k", "k", "s")
    assert shared(scripted_page) == 1999
    scripted_page.is_active(1999)


def test_a_filter_that_is_under_way_is_waited_for(newest: LogPage):
    with held(newest.page, PAGES):
        newest.page.get_by_label("Level").select_option("ERROR")
        newest.press("Escape", "g", "c")
    newest.said("Line copied")
    assert newest.copied().endswith("(17)")
    newest.is_active(17)


def test_a_time_that_is_being_looked_up_is_waited_for(newest: LogPage):
    with held(newest.page, PAGES):
        newest.go_to_time("2020-01-01T00:00:00")
        newest.press("j", "s")
    assert shared(newest) == 2
    newest.is_active(2)


def test_a_search_before_there_are_lines_finds_its_match_when_they_come(scripted_page: LogPage):
    with held(scripted_page.page, PAGES):
        scripted_page.open("INV-123", TOKEN)
        scripted_page.press("/")
        scripted_page.page.keyboard.type("(1777)")
        scripted_page.press("Enter")
    scripted_page.says("found", "1/1")
    scripted_page.is_active(1777)


def test_a_move_overtakes_another_but_not_what_was_asked_for_in_between(newest: LogPage):
    with held(newest.page, PAGES):
        newest.press("g", "G")
    newest.says("range", "Lines 1,501 to 2,000 of 2,000")
    newest.says("follow", "Following")
    with held(newest.page, PAGES):
        newest.press("g", "s", "G")
    assert shared(newest) == 1
    newest.says("range", "Lines 1,501 to 2,000 of 2,000")
    newest.says("follow", "Following")


def test_a_time_that_was_overtaken_does_not_take_the_reader_away(newest: LogPage):
    with held(newest.page, PAGES):
        newest.go_to_time("2020-01-01T00:00:00")
        newest.press("G")
    newest.says("range", "Lines 1,501 to 2,000 of 2,000")
    newest.says("follow", "Following")
    newest.shows("(2000)")
    expect(newest.page.locator(".row.active")).to_have_count(0)


def test_the_first_line_is_shared_right_while_the_one_before_it_is_under_way(newest: LogPage):
    with held(newest.page, PAGES):
        newest.scroll("beginning")
        newest.page.locator(".row[data-seq='1501']").click()
        newest.press("s")
    assert shared(newest) == 1501
    newest.page.reload()
    newest.is_active(1501)


def test_without_a_chosen_line_keys_take_the_newest_or_the_one_at_the_top(newest: LogPage):
    newest.press("s")
    assert shared(newest) == 2000
    newest.says("follow", "Paused")
    newest.press("G")
    newest.says("follow", "Following")
    newest.evaluate("document.getElementById('list').scrollTop = 100 * document.querySelector('.row').offsetHeight")
    newest.says("follow", "Paused")
    newest.stays_at(1601)
    newest.press("Enter")
    newest.is_active(1601)
    newest.page.get_by_role("heading", name="Line 1,601").wait_for()


def test_where_there_is_nothing_to_act_on_the_page_says_so(scripted_page: LogPage, scripted: Scripted):
    scripted.control(lines=0)
    scripted_page.open("INV-123", TOKEN)
    scripted_page.page.get_by_text("No lines yet").wait_for()
    scripted_page.press("s")
    scripted_page.said("There are no lines")
    scripted_page.press("n")
    scripted_page.said("Enter a search text first")
    scripted_page.press("/")
    scripted_page.page.keyboard.type("needle")
    scripted_page.press("Enter", "Enter")
    scripted_page.said("No loaded line matches")


def test_a_link_that_has_the_focus_is_followed_by_enter(newest: LogPage):
    newest.page.get_by_role("link", name="All systems").focus()
    newest.press("Enter")
    expect(newest.page).to_have_url(f"{newest.url}/")
