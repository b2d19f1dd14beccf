"""The log viewer in a real browser against the real system: a relay and two server processes."""

import re
import time
from datetime import UTC, datetime

import pytest
from playwright.sync_api import expect

from tests.browser.page import LogPage, addresses_with, cut_waits_short, line_in
from tests.support.investigations import Service, line, some

pytestmark = [pytest.mark.needs("chromium"), pytest.mark.contract("L14")]


def read(investigations: Service, investigation: str) -> str:
    """A token that may read this investigation and nothing else."""
    return investigations.token(f"investigation:{investigation}:read")


def test_what_is_there_is_shown_and_new_lines_arrive_live(log_page: LogPage, investigations: Service):
    case = investigations.open()
    investigations.write(case, *some(30, "early"))
    log_page.open(case, None)
    log_page.paste(read(investigations, case))
    log_page.shows("early 29")
    log_page.connection("streaming")
    log_page.says("connection-text", "Live")

    investigations.write(case, line("and here is a new one", level="ERROR"))

    log_page.shows("and here is a new one")
    log_page.says("range", "Lines 1 to 31 of 31")


def test_an_empty_investigation_says_so_and_shows_its_first_line(log_page: LogPage, investigations: Service):
    case = investigations.open()
    log_page.open(case, read(investigations, case))
    log_page.connection("streaming")
    log_page.page.get_by_text("No lines yet").wait_for()

    investigations.write(case, line("the very first"))

    log_page.shows("the very first")
    expect(log_page.page.get_by_text("No lines yet")).to_be_hidden()


def test_with_the_stream_blocked_lines_come_by_polling_and_the_stream_comes_back(
    log_page: LogPage, investigations: Service
):
    case = investigations.open()
    investigations.write(case, *some(10, "early"))
    log_page.page.clock.install()
    log_page.page.route("**/logs/stream*", lambda route: route.abort())
    log_page.open(case, read(investigations, case))
    log_page.shows("early 9")
    cut_waits_short(log_page.page, "polling")
    expect(log_page.page.locator("#connection")).to_have_attribute("title", re.compile("stream is not available"))

    investigations.write(case, line("heard by polling"))
    log_page.page.clock.fast_forward(10_000)
    log_page.shows("heard by polling")

    log_page.page.unroute("**/logs/stream*")
    log_page.page.clock.fast_forward(61_000)
    log_page.connection("streaming")
    investigations.write(case, line("heard by the stream again"))
    log_page.shows("heard by the stream again")
    log_page.says("range", "Lines 1 to 12 of 12")


def test_filters_are_the_servers_and_stay_in_the_address(log_page: LogPage, investigations: Service):
    case = investigations.open()
    investigations.write(
        case,
        line("quiet", level="DEBUG"),
        line("loud", level="ERROR"),
        line("from the page", level="ERROR", source="frontend", service="web"),
    )
    log_page.open(case, read(investigations, case))
    log_page.shows("quiet")

    log_page.page.get_by_label("Level").select_option("ERROR")
    log_page.shows_not("quiet")
    log_page.shows("loud")
    log_page.page.get_by_label("Source").select_option("frontend")
    log_page.shows_not("loud")
    log_page.connection("streaming")
    investigations.write(case, line("not this", level="ERROR"), line("but this", level="ERROR", source="frontend"))
    log_page.shows("but this")
    log_page.shows_not("not this")

    log_page.page.reload()
    log_page.shows("from the page")
    log_page.shows_not("loud")
    expect(log_page.page.get_by_label("Level")).to_have_value("ERROR")

    log_page.page.get_by_label("Service").fill("nobody")
    log_page.press("Tab")
    log_page.page.get_by_text("No lines match these filters").wait_for()


def test_scrolling_up_pauses_and_counts_what_comes(log_page: LogPage, investigations: Service):
    case = investigations.open()
    investigations.write(case, *some(200))
    log_page.open(case, read(investigations, case))
    log_page.connection("streaming")
    log_page.shows("line 199")
    log_page.says("follow", "Following")

    log_page.scroll("beginning")
    log_page.shows("line 0")
    log_page.says("follow", "Paused")
    investigations.write(case, *some(3, "later"))

    log_page.says("follow", "Paused · 3 new")
    log_page.shows("line 0")
    log_page.page.get_by_role("button", name="3 new lines").click()
    log_page.shows("later 2")
    log_page.says("follow", "Following")


def test_search_marks_and_counts_in_the_loaded_lines(log_page: LogPage, investigations: Service):
    case = investigations.open()
    lines = [line(f"needle {number}" if number % 40 == 0 else f"hay {number}") for number in range(200)]
    investigations.write(case, *lines)
    log_page.open(case, read(investigations, case))
    log_page.shows("hay 199")

    log_page.press("/")
    log_page.page.keyboard.type("NEEDLE")
    log_page.says("found", "5/5")
    log_page.press("Enter")
    log_page.says("found", "1/5")
    log_page.shows("needle 0")
    expect(log_page.page.locator(".row.match mark").first).to_have_text("needle")
    log_page.press("Shift+Enter")
    log_page.says("found", "5/5")
    log_page.shows("needle 160")
    log_page.press("Escape")
    log_page.says("found", "")
    expect(log_page.page.locator("mark")).to_have_count(0)


def test_keys_move_open_and_copy(log_page: LogPage, investigations: Service):
    case = investigations.open()
    investigations.write(case, *some(100), line("the last", context={"order": 4711}))
    log_page.open(case, read(investigations, case))
    log_page.shows("the last")

    log_page.press("j", "k", "k")
    log_page.page.locator('.row.active[data-seq="99"]').wait_for()
    log_page.press("j", "j", "Enter")
    panel = log_page.page.get_by_role("complementary", name="Line details")
    expect(panel).to_contain_text('"order": 4711')
    log_page.press("c")
    log_page.said("Line copied")
    assert log_page.copied().endswith("INFO backend/shop the last")
    log_page.press("Escape")
    expect(panel).to_be_hidden()
    log_page.press("g")
    log_page.shows("line 0")
    log_page.press("f")
    log_page.shows("the last")
    log_page.says("follow", "Following")


def test_a_shared_link_shows_the_same_line_and_holds_no_token(log_page: LogPage, investigations: Service):
    case = investigations.open()
    investigations.write(case, *some(1500))
    token = read(investigations, case)
    log_page.open(case, token)
    log_page.shows("line 1499")
    log_page.press("k", "PageUp", "s")
    log_page.said("Link copied")
    link = log_page.copied()
    assert token not in link
    shared = line_in(link)
    log_page.is_active(shared)

    investigations.write(case, *some(1200, "later"))
    expect(log_page.page).to_have_url(link)
    log_page.page.reload()

    log_page.shows(f"line {shared - 1}")
    log_page.is_active(shared)
    log_page.says("follow", "Paused")
    log_page.scroll("end")
    # What comes before is loaded as well, and what follows when one gets there.
    log_page.says("range", f"Lines {shared - 1000:,} to 2,700 of 2,700")
    assert addresses_with(log_page.asked, token) == []


def test_a_link_to_the_first_line_that_filters_let_through_shows_that_line(log_page: LogPage, investigations: Service):
    case = investigations.open()
    investigations.write(case, line("quiet", level="DEBUG"), line("loud", level="ERROR"), line("more", level="ERROR"))
    log_page.open(case, read(investigations, case))
    log_page.page.get_by_label("Level").select_option("ERROR")
    log_page.shows_not("quiet")
    log_page.press("Escape", "g", "s")
    log_page.said("Link copied")
    log_page.is_active(2)

    log_page.page.reload()
    log_page.shows("loud")
    log_page.is_active(2)


def test_older_lines_come_from_the_server_by_scrolling_up_and_the_view_stays(
    log_page: LogPage, investigations: Service
):
    case = investigations.open()
    investigations.write(case, *some(1700))
    log_page.open(case, read(investigations, case))
    log_page.connection("streaming")
    log_page.says("range", "Lines 1,201 to 1,700 of 1,700")
    log_page.scroll("beginning")
    log_page.says("range", "Lines 201 to 1,700 of 1,700")
    log_page.stays_at(1201)
    investigations.write(case, line("meanwhile"))
    log_page.says("range", "Lines 201 to 1,701 of 1,701")
    log_page.stays_at(1201)
    log_page.scroll("beginning")
    log_page.says("range", "Lines 1 to 1,701 of 1,701")
    log_page.stays_at(201)
    back = [url for url in log_page.asked if "beforeCursor" in url]
    assert len(back) == 2, "and nothing is asked for at the beginning"


def test_older_lines_are_filtered_by_the_server_too(log_page: LogPage, investigations: Service):
    case = investigations.open()
    investigations.write(
        case, *(line(f"line {number}", level="ERROR" if number % 100 == 0 else "INFO") for number in range(1900))
    )
    log_page.open(case, read(investigations, case), "#minLevel=ERROR")
    log_page.says("range", "19 lines loaded, from 1 to 1,801")
    log_page.shows("line 0")


def test_a_time_that_is_not_loaded_is_asked_of_the_server(log_page: LogPage, investigations: Service):
    case = investigations.open()
    investigations.write(case, *some(700, "early"))
    early = moment_of_the_last(investigations, case)
    wait_until_later_than(early)
    investigations.write(case, line("the turn"))
    turn = moment_of_the_last(investigations, case)
    investigations.write(case, *some(1500, "late"))
    log_page.open(case, read(investigations, case))
    log_page.says("range", "Lines 1,702 to 2,201 of 2,201")

    log_page.go_to_time(f"{turn:%Y-%m-%dT%H:%M:%S}")
    log_page.shows("the turn")
    log_page.is_active(701)
    log_page.says("follow", "Paused")
    # One can go on from there in both directions. What is before comes by itself, and the view stays where it is.
    log_page.says("range", "Lines 1 to 1,200 of 2,201")
    log_page.stays_at(701)
    log_page.scroll("beginning")
    log_page.shows("early 0")
    log_page.page.get_by_role("button", name="Newest lines ↓").click()
    log_page.shows("late 1499")
    log_page.page.get_by_role("button", name="Start", exact=True).click()
    log_page.shows("early 0")
    log_page.says("range", "Lines 1 to 500 of 2,201")
    log_page.go_to_time("2100-01-01T00:00:00")
    log_page.shows("late 1499")
    log_page.says("follow", "Following")


def moment_of_the_last(investigations: Service, case: str) -> datetime:
    """When the newest line came, by the server's clock."""
    return datetime.fromisoformat(investigations.logs(case, limit=10).json()["logs"][-1]["ts"])


def wait_until_later_than(moment: datetime) -> None:
    """Until the second is over: the dialog asks for no less."""
    while datetime.now(UTC).replace(microsecond=0) <= moment:
        time.sleep(0.05)


def test_a_line_of_the_past_is_found_from_the_beginning_on_without_a_hole(log_page: LogPage, investigations: Service):
    case = investigations.open()
    investigations.write(case, *some(3000))
    log_page.open(case, read(investigations, case))
    log_page.shows("line 2999")
    log_page.press("g")
    log_page.shows("line 0")
    for loaded in ("500", "1,500", "2,500", "3,000"):
        log_page.says("range", f"Lines 1 to {loaded} of 3,000")
        log_page.scroll("end")
    investigations.write(case, line("live again"))
    log_page.says("range", "Lines 1 to 3,001 of 3,001")


def test_who_may_not_read_is_told_and_may_choose_another_reader(log_page: LogPage, investigations: Service):
    case, other = investigations.open(), investigations.open()
    investigations.write(case, line("secret of the case"))
    log_page.open(case, None)
    log_page.paste(read(investigations, other))
    log_page.page.get_by_role("heading", name="Not allowed").wait_for()
    assert "secret of the case" not in log_page.page.content()

    log_page.page.get_by_role("button", name="Switch user").click()
    log_page.paste(read(investigations, case))
    log_page.shows("secret of the case")


def test_a_token_that_is_no_good_is_asked_for_again(log_page: LogPage, investigations: Service):
    case = investigations.open()
    investigations.write(case, line("for readers"))
    log_page.open(case, None)
    log_page.paste("not-a-token")
    log_page.page.get_by_text("Missing or invalid authentication token").first.wait_for()
    log_page.paste(read(investigations, case))
    log_page.shows("for readers")


def test_an_investigation_that_is_not_there_is_named(log_page: LogPage, investigations: Service):
    log_page.open("INV-does-not-exist", investigations.token("investigation:*:read"))
    log_page.page.get_by_role("heading", name="Not found").wait_for()
    log_page.says("follow", "Not following")
    follow = log_page.page.get_by_role("button", name="Not following")
    expect(follow).to_have_attribute("aria-pressed", "false")
    expect(follow).to_be_disabled()
    log_page.page.get_by_role("link", name="All investigations").click()
    log_page.page.get_by_role("heading", name="Systems").wait_for()


def test_the_heading_and_the_tab_say_which_investigation_it_is(log_page: LogPage, investigations: Service):
    case = investigations.open("Checkout <b>fails</b> & nobody knows why")
    log_page.open(case, read(investigations, case))
    log_page.says("about", "Checkout <b>fails</b> & nobody knows why")
    expect(log_page.page.get_by_role("heading", level=1)).to_contain_text(case)
    expect(log_page.page).to_have_title(f"{case}: Checkout <b>fails</b> & nobody knows why · log")
    log_page.says("follow", "Following")


def test_markup_in_a_message_is_text(log_page: LogPage, investigations: Service):
    case = investigations.open()
    investigations.write(case, line("<img src=x onerror=\"document.title='owned'\"> & <b>bold</b>"))
    log_page.open(case, read(investigations, case))
    log_page.shows("<b>bold</b>")
    log_page.press("k", "Enter")
    expect(log_page.page).to_have_title(f"{case}: a case · log")
