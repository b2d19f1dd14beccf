"""The task board under quick hands: what is done while an answer is still under way is neither lost nor in the way."""

import pytest
from playwright.sync_api import expect

from tests.browser.board import BoardPage
from tests.browser.page import held
from tests.support.tasks import ADA, EDSGER, Service

pytestmark = [pytest.mark.needs("chromium"), pytest.mark.contract("T6")]

LIST = "**/tasks?limit*"


def test_keys_wait_for_the_board(board: BoardPage, tasks: Service):
    with held(board.page, "**/tasks/machine"):
        board.open(ADA)
        expect(board.page.get_by_label("Whose turn")).to_be_disabled()
        board.press("n")
    expect(board.page.get_by_label("Title")).to_be_focused()


def test_keys_that_cannot_have_the_board_yet_are_answered(board: BoardPage, tasks: Service):
    closed = {"error": "unavailable", "message": "Closed for lunch"}
    board.page.route("**/tasks/machine", lambda route: route.fulfill(status=503, json=closed))
    board.open(ADA)
    board.page.get_by_text("Closed for lunch").wait_for()
    board.press("n")
    board.said("Tasks are still loading")
    expect(board.page.get_by_role("dialog", name="New task")).to_be_hidden()


def test_the_way_into_the_list_waits_for_it_and_nothing_says_that_it_is_empty(board: BoardPage, tasks: Service):
    title = "First in a list that takes its time"
    task = tasks.create(ADA, title)
    with held(board.page, LIST):
        board.open(ADA, task["task_id"])
        board.stands("New")
        board.press("Escape")
        board.page.get_by_role("heading", name="No task selected").wait_for()
        board.page.get_by_label("Whose turn").select_option("done")
        expect(board.page.locator("#empty")).to_have_text("Loading …")
        board.page.get_by_label("Whose turn").select_option("")
        board.lists(title)
    expect(board.row(title)).to_be_focused()


def test_tasks_stay_in_the_list_while_it_is_asked_for_again(board: BoardPage, tasks: Service):
    tasks.people({}, {350: ("Hedy", [])})
    for number in range(3):
        tasks.create(350, f"Kept in view {number}")
    board.open(350)
    expect(board.page.locator("a.task")).to_have_count(3)
    with held(board.page, LIST):
        board.page.get_by_label("State", exact=True).select_option("new")
        board.row("Kept in view 1").click()
        board.stands("New")
        expect(board.page.locator("a.task")).to_have_count(3)
    expect(board.row("Kept in view 1")).to_have_attribute("aria-current", "true")


def test_who_opens_a_task_reads_on_with_its_title_when_it_comes(board: BoardPage, tasks: Service):
    title = "Opened from what was heard"
    task = tasks.create(ADA, title)
    tasks.hears(ADA, "task_created", task_id=task["task_id"])
    board.open(ADA, fragment="#state=rejected")
    board.hears(title, "You created it")
    with held(board.page, f"**/tasks/{task['task_id']}"):
        board.page.locator(".event a", has_text=title).click()
        board.focuses("Loading …")
    board.focuses(title)


def test_a_task_that_is_made_late_does_not_close_the_dialog_for_the_next(board: BoardPage, tasks: Service):
    first, second = "Sent and left alone", "Written meanwhile"
    board.open(ADA)
    board.press("n")
    board.page.get_by_label("Title").fill(first)
    with held(board.page, "**/tasks"):
        board.page.get_by_role("button", name="Create task").click()
        board.press("Escape")
        expect(board.page.get_by_role("dialog", name="New task")).to_be_hidden()
        board.press("n")
        board.page.get_by_label("Title").fill(second)
    board.said(f"“{first}” was created")
    expect(board.page.get_by_label("Title")).to_have_value(second)
    board.page.get_by_role("button", name="Create task").click()
    board.focuses(second)
    board.lists(first, "New")


def test_who_has_left_a_task_is_told_that_something_was_not_done_with_it(board: BoardPage, tasks: Service):
    left = tasks.create(ADA, "Left too early", assignee_user_id=EDSGER)
    tasks.create(ADA, "Where one went on")
    board.open(ADA, left["task_id"])
    with held(board.page, "**/cancel"):
        board.act("Cancel task", "not needed")
        board.row("Where one went on").click()
        board.stands("New")
        tasks.act(ADA, left["task_id"], "cancel", reason="by another way")
    board.said("Cancel task failed.")
    board.stands("New")


def test_an_answer_that_comes_late_leaves_the_form_alone_that_was_opened_since(board: BoardPage, tasks: Service):
    task = tasks.create(ADA, "Decided twice", assignee_user_id=EDSGER)
    tasks.act(EDSGER, task["task_id"], "submit-report", report="done")
    board.open(ADA, task["task_id"])
    with held(board.page, "**/approve"):
        board.act("Approve")
        board.begin("Reject")
        board.page.locator(".action-form textarea").fill("Not like this")
        tasks.act(ADA, task["task_id"], "cancel", reason="by another way")
    board.said("Approve failed.")
    expect(board.page.locator(".action-form textarea")).to_have_value("Not like this")


def test_a_code_that_comes_when_its_dialog_was_left_is_not_shown_for_another(board: BoardPage, tasks: Service):
    board.open(ADA)
    dialog = board.page.get_by_role("dialog", name="Connect Telegram")
    with held(board.page, "**/link-codes"):
        board.press("t")
        dialog.wait_for()
        board.press("Escape")
        expect(dialog).to_be_hidden()
        board.press("t")
        expect(dialog).to_contain_text("Requesting a code")
    expect(board.page.locator("#start")).to_contain_text("/start ")
    expect(board.page.get_by_role("timer")).to_have_count(1)
