"""The task board in a real browser against the real system: a relay and a server process."""

import re
from itertools import count

import pytest
from playwright.sync_api import Browser, Route, expect

from tests.browser.board import NARROW, STREAM, BoardPage, tab
from tests.browser.page import cut_waits_short, holds
from tests.support.tasks import ADA, EDSGER, ENGINEERS, GRACE, LEADS, MALLORY, STRANGER, Service, signed

pytestmark = [pytest.mark.needs("chromium"), pytest.mark.contract("T6")]

_numbers = count(1)


def titled(words: str) -> str:
    """A title that no other test has."""
    return f"{words} ({next(_numbers)})"


@pytest.mark.contract("T5")
def test_two_people_hand_a_task_to_and_fro_and_each_sees_the_others_steps_arrive(board: BoardPage, other: BoardPage):
    title = titled("Count the chairs")
    board.open(ADA)
    other.open(EDSGER)
    for each in (board, other):
        each.connection("streaming")

    board.page.get_by_role("button", name="New task").click()
    board.page.get_by_label("Title").fill(title)
    board.page.get_by_label("Description").fill("All rooms.\nThe cellar too.")
    board.page.get_by_label("Assign to").select_option(str(EDSGER))
    board.page.get_by_role("button", name="Create task").click()
    board.stands("Assigned")
    board.shows("Waiting for Edsger")

    other.hears(title, "Ada created it and assigned it to you")
    other.lists(title, "Assigned", "Your turn")
    other.row(title).click()
    other.shows("The cellar too.")
    other.offers("Submit report")
    other.act("Submit report", "There are eleven.")
    other.stands("Reported")
    other.shows("You have nothing to do here right now.")

    board.hears(title, "Edsger submitted a report")
    board.stands("Reported")
    board.shows("There are eleven.")
    board.offers("Approve", "Reject", "Reassign", "Cancel task")
    board.act("Reject", "And in the cellar?")

    other.stands("Rejected")
    other.shows("And in the cellar?")
    other.hears(title, "Ada rejected the report")
    other.act("Submit report", "Twelve with the cellar.")

    board.stands("Reported")
    board.shows("Twelve with the cellar.")
    board.act("Approve")
    for each in (board, other):
        each.stands("Approved")
        each.hears(title, "approved the report")
        expect(each.page.locator(".history li")).to_have_count(5)
    board.offers("Reopen")
    expect(board.page.locator(".people-list")).to_contain_text("Ada (you)")


def test_a_task_is_assigned_and_handed_over_by_name(board: BoardPage, tasks: Service):
    title = titled("Order paper")
    task = tasks.create(ADA, title)
    board.open(ADA, task["task_id"])
    board.stands("New")
    board.give_to("Assign", "Edsger")
    board.shows("Waiting for Edsger")
    board.give_to("Reassign", "Barbara")
    board.shows("Waiting for Barbara")
    board.hears(title, "You reassigned it to Barbara")


def test_with_the_stream_blocked_events_come_by_polling_and_the_stream_comes_back(board: BoardPage, tasks: Service):
    first, second = titled("Heard by polling"), titled("Heard by the stream again")
    board.page.clock.install()
    board.page.route(STREAM, lambda route: route.abort())
    board.open(GRACE)
    cut_waits_short(board.page, "polling")

    made = tasks.create(ADA, first, supervisor_role_ids=[LEADS])
    tasks.hears(GRACE, "task_created", task_id=made["task_id"])
    board.page.clock.fast_forward(10_000)
    board.hears(first, "Ada created it")
    board.lists(first, "New", "Your turn")

    board.page.unroute(STREAM)
    board.page.clock.fast_forward(61_000)
    board.connection("streaming")
    tasks.create(ADA, second, supervisor_role_ids=[LEADS])
    board.hears(second, "Ada created it")


def test_who_comes_second_is_told_so_and_sees_the_task_as_it_is(board: BoardPage, other: BoardPage, tasks: Service):
    task = tasks.create(ADA, titled("Approved by both"), assignee_user_id=EDSGER, supervisor_role_ids=[LEADS])
    tasks.act(EDSGER, task["task_id"], "submit-report", report="done")
    # Nothing of what happens elsewhere reaches this tab in time.
    other.page.route("**/tasks/me/events*", lambda route: route.abort())
    other.page.route(STREAM, lambda route: route.abort())
    for each, user in ((board, ADA), (other, GRACE)):
        each.open(user, task["task_id"])
        each.begin("Approve")
    board.page.locator(".action-form").get_by_role("button", name="Approve").click()
    board.stands("Approved")
    other.page.locator(".action-form").get_by_role("button", name="Approve").click()
    other.alert(f"The action failed. Task {task['task_id']} is approved")
    other.stands("Approved")
    other.offers("Reopen")


def test_what_is_being_written_stays_when_others_are_faster(board: BoardPage, tasks: Service):
    task = tasks.create(ADA, titled("Cancelled meanwhile"), assignee_user_id=EDSGER)
    board.open(EDSGER, task["task_id"])
    board.connection("streaming")
    board.begin("Submit report")
    board.page.locator(".action-form textarea").fill("half of a long report")

    tasks.act(ADA, task["task_id"], "cancel", reason="not needed")

    board.stands("Cancelled")
    board.alert("“Submit report” is no longer possible: the task is cancelled now.")
    expect(board.page.locator(".action-form textarea")).to_have_value("half of a long report")
    board.page.get_by_role("button", name="Close").click()
    board.shows("You have nothing to do here right now.")


def test_who_loses_a_role_is_told_no_and_loses_the_task(board: BoardPage, tasks: Service):
    tasks.people({31: "keepers"}, {310: ("Katherine", [31])})
    task = tasks.create(ADA, titled("Kept for a while"), supervisor_role_ids=[31])
    board.open(310, task["task_id"])
    board.connection("streaming")
    board.begin("Assign")
    answer = tasks.as_user(ADA).delete("/tasks/roles/31/members/310")
    assert answer.status_code == 200, answer.text
    board.page.locator(".action-form select").select_option(str(EDSGER))
    board.page.locator(".action-form").get_by_role("button", name="Assign").click()
    board.page.get_by_role("heading", name="You cannot see this task").wait_for()
    board.lists_not("Kept for a while")


def test_what_people_write_is_text_and_never_markup(board: BoardPage, tasks: Service):
    bomb = "<img src=x onerror=\"document.title='owned'\"><b>bold</b>"
    tasks.people({}, {320: (f"Eve {bomb}", [])})
    title = titled(f"{bomb} chairs")
    task = tasks.create(320, title, description=bomb, assignee_user_id=EDSGER)
    tasks.act(EDSGER, task["task_id"], "submit-report", report=bomb)
    tasks.act(320, task["task_id"], "reject", reason=bomb)
    tasks.act(EDSGER, task["task_id"], "submit-report", report=f"again {bomb}")
    board.open(320, task["task_id"])
    board.hears("<b>bold</b>", "Edsger submitted a report")
    board.shows(f"again {bomb}")
    board.lists("<b>bold</b>", "Reported")
    expect(board.page.locator("#reader-name")).to_have_text(f"Eve {bomb}")
    expect(board.page.locator(".history li")).to_have_count(4)
    board.begin("Reassign")
    expect(board.page.locator("b, img")).to_have_count(0)
    expect(board.page).to_have_title(f"{title} · Tasks")


def test_a_code_for_telegram_is_shown_copied_and_runs_out(board: BoardPage, tasks: Service):
    board.page.clock.install()
    board.open(MALLORY)
    board.page.get_by_role("button", name="Connect Telegram").click()
    expect(board.page.locator("#start")).to_contain_text("/start ")
    start = board.page.locator("#start").inner_text()
    assert start.startswith("/start ")
    board.page.get_by_role("button", name="Copy").click()
    board.said("Copied")
    assert board.evaluate("navigator.clipboard.readText()") == start
    expect(board.page.get_by_role("timer")).to_contain_text("expires in")

    board.page.clock.fast_forward(11 * 60 * 1000)
    board.page.get_by_text("The code has expired").wait_for()
    board.page.get_by_role("button", name="Get a new code").click()
    # The browser is ahead of the server by now, and takes its word for how long the new one works.
    expect(board.page.get_by_role("timer")).to_contain_text("expires in")
    expect(board.page.locator("#start")).not_to_have_text(start)
    with tasks.client(Authorization=f"Bearer {tasks.credential()}") as client:
        assert client.post("/tasks/link-codes/redeem", json={"code": start.removeprefix("/start ")}).status_code == 404


def test_everything_can_be_done_with_the_keyboard_alone(board: BoardPage, tasks: Service):
    title = titled("Written blindly")
    board.open(ADA, fragment="#move=mine")
    board.connection("streaming")
    board.press("Tab", "Enter")
    # The first link skips to the tasks.
    board.focuses("list")
    assert board.evaluate("location.hash") == "#move=mine"
    board.page.get_by_label("Whose turn").select_option("")
    board.press("n")
    expect(board.page.get_by_label("Title")).to_be_focused()
    board.page.keyboard.type(title)
    board.press("Tab")
    board.page.keyboard.type("a description")
    board.press("Tab", "E", "Tab", "Tab", "Space", "Enter")
    board.stands("Assigned")
    # What was opened is read next.
    board.focuses(title)
    board.shows("Supervised by")
    board.shows("lead")

    board.press("Tab", "Tab", "Enter")
    expect(board.page.locator(".action-form textarea")).to_be_focused()
    board.page.keyboard.type("Not needed")
    board.press("Tab", "Tab", "Enter")
    board.stands("Cancelled")
    # The focus stays with what can be done.
    board.focuses("Reopen")

    board.press("Escape")
    board.is_at("/tasks/board")
    expect(board.row(title)).to_be_focused()
    board.press("m")
    moves, keys = (board.page.get_by_role("dialog", name=name) for name in ("Workflow", "Keyboard shortcuts"))
    moves.wait_for()
    board.press("Escape")
    expect(moves).to_be_hidden()
    board.press("?")
    keys.wait_for()
    board.press("Escape")
    expect(board.row(title)).to_be_focused()
    board.press("Enter")
    board.stands("Cancelled")


def test_a_field_that_needs_words_says_so_and_nothing_is_sent(board: BoardPage, tasks: Service):
    task = tasks.create(ADA, titled("Not without a reason"))
    board.open(ADA, task["task_id"])
    board.act("Cancel task", "   ")
    board.page.get_by_text("Write a few words").wait_for()
    field = board.page.locator(".action-form textarea")
    expect(field).to_have_attribute("aria-invalid", "true")
    field.fill("Nobody wants it")
    expect(field).not_to_have_attribute("aria-invalid", "true")
    board.page.locator(".action-form").get_by_role("button", name="Cancel task", exact=True).click()
    board.stands("Cancelled")

    board.page.get_by_role("button", name="New task").click()
    board.page.get_by_role("button", name="Create task").click()
    board.page.get_by_text("Enter a title.").wait_for()


def test_a_task_whose_answer_got_lost_is_made_once(board: BoardPage, tasks: Service):
    title = titled("Sent twice")
    lost: list[int] = []

    def lose(route: Route) -> None:
        if route.request.method == "POST" and not lost:
            lost.append(route.fetch().status)
            route.abort()
        else:
            route.continue_()

    board.page.route("**/tasks", lose)
    board.open(ADA)
    board.page.get_by_role("button", name="New task").click()
    board.page.get_by_label("Title").fill(title)
    board.page.get_by_role("button", name="Create task").click()
    board.alert("Could not create the task. Cannot reach the server")
    assert lost == [201]
    board.page.get_by_role("button", name="Create task").click()
    board.stands("New")
    assert tasks.rows("select count(*) from tasks.tasks where title = %s", title) == [(1,)]


def test_the_list_is_narrowed_by_state_and_by_whose_move_it_is_and_the_address_keeps_it(
    board: BoardPage, tasks: Service
):
    tasks.people({}, {330: ("Frances", []), 331: ("Jean", [])})
    mine, theirs, done = (titled(words) for words in ("Mine to do", "Theirs to do", "Nobody's"))
    tasks.create(331, mine, assignee_user_id=330)
    tasks.create(330, theirs, assignee_user_id=331)
    over = tasks.create(330, done)
    tasks.act(330, over["task_id"], "cancel", reason="no")
    board.open(330)
    for title in (mine, theirs, done):
        board.lists(title)
    board.page.get_by_label("Whose turn").select_option("mine")
    board.lists_not(theirs)
    board.lists(mine, "Your turn")
    board.page.reload()
    board.lists(mine)
    board.lists_not(done)
    board.row(mine).click()
    board.stands("Assigned")
    board.page.get_by_label("Whose turn").select_option("")
    board.lists(theirs)
    board.page.go_back()
    board.page.get_by_role("heading", name="No task selected").wait_for()
    board.lists_not(theirs)
    expect(board.page.get_by_label("Whose turn")).to_have_value("mine")
    board.page.get_by_label("Whose turn").select_option("")
    board.page.get_by_label("State", exact=True).select_option("cancelled")
    board.lists_not(mine)
    board.lists(done, "Cancelled", "Done")
    board.page.get_by_label("State", exact=True).select_option("rejected")
    board.page.get_by_text("No tasks match these filters.").wait_for()


def test_older_tasks_and_earlier_events_are_asked_for(board: BoardPage, tasks: Service):
    tasks.people({}, {340: ("Margaret", [])})
    made = [tasks.create(340, f"Piece {number:03d} of many") for number in range(60)]
    tasks.hears(340, "task_created", task_id=made[-1]["task_id"])
    board.open(340)
    board.lists("Piece 059 of many")
    board.hears("Piece 059 of many", "You created it")
    expect(board.page.locator("a.task")).to_have_count(50)
    expect(board.page.locator(".event")).to_have_count(40)
    board.page.get_by_role("button", name="Show older tasks").click()
    board.lists("Piece 000 of many")
    board.page.get_by_role("button", name="Show earlier events").click()
    board.hears("Piece 000 of many", "You created it")
    expect(board.page.get_by_role("button", name="Show earlier events")).to_be_hidden()
    expect(board.page.locator(".event")).to_have_count(60)


@pytest.mark.contract("T5")
def test_what_is_not_ones_own_is_neither_listed_nor_opened(board: BoardPage, tasks: Service):
    secret = titled("Secret of Ada")
    task = tasks.create(ADA, secret, assignee_user_id=EDSGER, supervisor_role_ids=[LEADS])
    board.open(MALLORY, task["task_id"])
    board.page.get_by_role("heading", name="You cannot see this task").wait_for()
    board.connection("streaming")
    assert secret not in board.page.content()
    board.page.goto(f"{board.url}/tasks/board/999999999")
    board.page.get_by_role("heading", name="Task not found").wait_for()


def test_who_is_not_known_is_told_and_may_be_somebody_else(board: BoardPage, tasks: Service):
    board.open(None)
    board.page.get_by_role("dialog", name="Who are you?").wait_for()
    board.press("Escape")
    board.alert("Choose a user to see their tasks.")
    board.page.get_by_role("button", name="Choose a user").click()
    board.page.get_by_label("Token").fill(signed(STRANGER))
    board.page.get_by_role("button", name="Continue").click()
    board.alert(f"User {STRANGER} does not exist")
    board.page.get_by_role("button", name="Choose a user").click()
    board.page.get_by_label("Token").fill("not-a-token")
    board.page.get_by_role("button", name="Continue").click()
    board.page.get_by_text("Missing or invalid authentication token").first.wait_for()
    board.page.get_by_label("Token").fill(signed(GRACE))
    board.page.get_by_role("button", name="Continue").click()
    expect(board.page.locator("#reader-name")).to_have_text("Grace")


def test_a_server_that_is_away_for_a_while_is_asked_again(board: BoardPage, tasks: Service):
    title = titled("Seen a little later")
    tasks.create(ADA, title)
    board.page.clock.install()
    closed = {"error": "unavailable", "message": "Closed for lunch"}
    for part in ("**/tasks/me", "**/tasks?limit*"):
        board.page.route(part, lambda route: route.fulfill(status=503, json=closed))
    board.open(ADA)
    board.page.get_by_text("Closed for lunch Retrying automatically.").wait_for()
    board.page.unroute("**/tasks/me")
    board.page.clock.fast_forward(2_000)
    board.connection("streaming")
    board.page.get_by_text("Closed for lunch").wait_for()
    board.page.unroute("**/tasks?limit*")
    board.page.clock.fast_forward(6_000)
    board.lists(title)


def test_how_tasks_move_is_told_as_the_server_has_it(board: BoardPage, tasks: Service):
    rules = tasks.as_user(ADA).get("/tasks/machine").json()["actions"]
    board.open(ADA)
    board.page.get_by_role("button", name="Workflow").click()
    table = board.page.get_by_role("dialog", name="Workflow").locator("tbody")
    expect(table.locator("tr")).to_have_count(len(rules))
    said = [re.compile(f"^{rule['action'].replace('_', ' ')}$", re.IGNORECASE) for rule in rules]
    expect(table.locator("th")).to_have_text(said)
    approve = table.locator("tr", has=board.page.get_by_role("rowheader", name="Approve"))
    expect(approve).to_contain_text("creator or supervisor, but not the assignee")


def test_on_a_telephone_one_thing_is_shown_at_a_time_and_all_fits(chromium: Browser, tasks: Service):
    title = titled("Read on the train, with a title that is rather long for a small screen")
    task = tasks.create(ADA, title, assignee_user_id=EDSGER, supervisor_role_ids=[LEADS, ENGINEERS])
    with tab(chromium, tasks.url, NARROW) as board:
        board.page.clock.install()
        board.page.route(STREAM, lambda route: route.abort())
        board.open(EDSGER)
        board.went("waiting")
        board.lists(title)
        fits = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
        holds(board.page, fits)
        # One row, while the connection has much to say.
        holds(board.page, "document.querySelector('.top').offsetHeight < 60")
        board.row(title).click()
        board.stands("Assigned")
        expect(board.page.locator(".list-pane")).to_be_hidden()
        holds(board.page, fits)
        tasks.act(ADA, task["task_id"], "cancel", reason="the train is late")
        tasks.hears(EDSGER, "task_created", "task_cancelled", task_id=task["task_id"])
        board.page.unroute(STREAM)
        board.page.clock.fast_forward(10_000)
        board.stands("Cancelled")
        expect(board.page.locator("#to-events")).to_contain_text("1 new")
        board.page.locator("#to-events").click()
        board.hears(title, "Ada cancelled it")
        expect(board.page.locator("#to-events")).to_have_text("Activity")
        holds(board.page, fits)
        board.page.locator("#to-list").click()
        board.page.locator("a.task", has_text=title).click()
        board.page.get_by_role("button", name="All tasks").click()
        expect(board.page.locator(".detail-pane")).to_be_hidden()
        board.page.go_back()
        board.stands("Cancelled")


def test_whoever_gives_a_task_to_themselves_is_asked_for_a_supervisor(board: BoardPage):
    title = titled("Mine alone")
    board.open(ADA)
    board.page.get_by_role("button", name="New task").click()
    board.page.get_by_label("Title").fill(title)
    board.page.get_by_label("Assign to").select_option(str(ADA))
    # A role of which Ada is the only member helps nobody.
    board.page.get_by_label("administrator").check()
    board.page.get_by_role("button", name="Create task").click()
    board.alert("You cannot approve your own report.")
    board.lists_not(title)
    board.page.get_by_label("lead").check()
    board.page.get_by_role("button", name="Create task").click()
    board.stands("Assigned")
    board.act("Submit report", "Done.")
    board.shows("Waiting for the role lead")


def test_everything_that_can_be_pressed_has_a_name(board: BoardPage, tasks: Service):
    task = tasks.create(ADA, titled("Named"), assignee_user_id=ADA, supervisor_role_ids=[LEADS])
    board.open(ADA, task["task_id"])
    board.begin("Submit report")
    board.page.get_by_role("button", name="New task").click()
    nameless = """[...document.querySelectorAll('button, input, select, textarea, a')].filter((each) =>
        !(each.textContent.trim() || each.getAttribute('aria-label') || each.labels?.length))
        .map((each) => each.outerHTML)"""
    assert board.evaluate(nameless) == []


def test_an_address_that_leads_nowhere_leads_home(board: BoardPage, tasks: Service):
    for path in ("/no/such/page", "/tasks/board/1/2"):
        answer = board.page.goto(f"{board.url}{path}")
        assert answer is not None
        assert answer.status == 404
        board.page.get_by_role("link", name="Home page").click()
        board.page.get_by_role("heading", name="Systems").wait_for()
        board.page.get_by_role("link", name="Task board").wait_for()
    told = tasks.as_user(ADA).get("/no/such/page")
    assert (told.status_code, told.json()["error"]) == (404, "not_found")
