"""`aftercommit up` in a browser: sample people at work on the board, and what the bot writes to their chats."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from aftercommit.contrib.telegram.local_api import BotApiServer
from aftercommit.testing.postgres import PostgresServerForTests
from systems.tasks.sample.traffic import LINKED
from tests.browser.board import NARROW, BoardPage, tab
from tests.browser.page import PATIENCE, held, holds
from tests.browser.test_docs import answered, opened
from tests.support.investigations import STARTING, TLS, answers, eventually
from tests.support.programs import REPOSITORY, Program, kept_port, running
from tests.support.tasks import ADA, BARBARA, EDSGER, GRACE, prepared

pytestmark = pytest.mark.needs("chromium")

FITS = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
# Of an element, nothing is cut off at its side.
WHOLE = "((it) => it.scrollWidth <= it.clientWidth)(document.querySelector('{}'))"


@dataclass
class Up:
    """Everything that a newcomer gets."""

    url: str
    chats: str

    def ask(self, user: int, path: str, **body: Any) -> Any:
        """What somebody does, by a program of this machine."""
        answer = httpx.post(f"{self.url}{path}", headers={"X-User-Id": str(user)}, json=body, timeout=60, verify=TLS)
        assert answer.is_success, answer.text
        return answer.json()


@pytest.fixture(scope="module")
def up(postgres_server: PostgresServerForTests, site: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """One that all tests of this module share; nothing happens in it by itself."""
    with prepared(postgres_server) as dsn:
        told = {"DATABASE_URL": dsn, "AFTERCOMMIT_HOME": str(tmp_path_factory.mktemp("home"))}
        options = ("--app", "systems.site:application", "--port", "0", "--rate", "0")
        with running("up", *options, folder=REPOSITORY, **told) as program:
            found = Up(after(program, "open in a browser:"), after(program, "bot chats:"))
            eventually(lambda: answers(found.url), timeout=STARTING)
            yield found


def after(program: Program, label: str) -> str:
    return program.line(label, program.stderr, timeout=STARTING).split(label)[1].split()[0]


@pytest.fixture
def board(chromium: Browser, up: Up) -> Iterator[BoardPage]:
    """A tab in which nobody has been chosen yet."""
    with tab(chromium, up.url) as shown:
        yield shown


def chat_of(page: Page, user: int) -> Locator:
    """A person's chat with the bot, in the list."""
    return page.locator(f"#chats [data-chat='{LINKED[user]}']")


def bubble(page: Page, text: str) -> None:
    """Until the bot has said this in the chat that is open."""
    expect(page.locator(".bubble.bot", has_text=text).first).to_be_visible(timeout=PATIENCE)


def test_a_newcomer_connects_a_chat_and_gets_a_message_that_leads_to_the_task(board: BoardPage, up: Up):
    board.page.goto(up.url)
    card = board.page.locator("#systems .card", has_text="Tasks")
    card.get_by_role("link", name="Bot chats (local Telegram)").wait_for()
    card.get_by_role("link", name="Task board").click()
    board.page.get_by_role("dialog", name="Who are you?").get_by_role("button", name="Barbara").click()
    expect(board.page.locator("#reader-name")).to_have_text("Barbara")
    board.connection("streaming")

    board.page.get_by_role("button", name="Connect Telegram").click()
    expect(board.page.locator("#start")).to_contain_text("/start ")
    start = board.page.locator("#start").inner_text()
    with board.page.expect_popup() as opened:
        board.page.get_by_role("link", name="your local chat").click()
    chats = opened.value
    expect(chats.get_by_label("First name")).to_have_value("Barbara")
    chats.get_by_role("button", name="Start chat").click()
    expect(chats.get_by_label("Message to the bot")).to_have_value(start)
    chats.get_by_role("button", name="Send").click()
    bubble(chats, "Barbara")

    title = "Mend <b>the</b> & “lamp”"
    up.ask(ADA, "/tasks", title=title, assignee_user_id=BARBARA)
    bubble(chats, title)
    board.press("Escape")
    board.hears(title, "Ada created it and assigned it to you")
    with chats.context.expect_page() as led:
        chats.locator(".bubble.bot", has_text=title).get_by_role("link").click()
    # A new tab belongs to nobody yet.
    led.value.get_by_role("dialog", name="Who are you?").get_by_role("button", name="Barbara").click()
    expect(led.value.locator("#detail-body h2")).to_have_text(title)
    led.value.locator(".actions").get_by_role("button", name="Submit report").wait_for()


def test_the_sample_user_is_remembered_for_the_tab_and_can_be_changed(board: BoardPage, up: Up):
    board.page.goto(f"{up.url}/tasks/board")
    board.page.get_by_role("button", name="Grace").click()
    expect(board.page.locator("#reader-name")).to_have_text("Grace")
    board.page.reload()
    expect(board.page.locator("#reader-name")).to_have_text("Grace")
    expect(board.page.get_by_role("dialog")).to_be_hidden()
    board.press("u")
    dialog = board.page.get_by_role("dialog", name="Who are you?")
    expect(dialog.get_by_role("button", name="Grace")).to_have_attribute("aria-pressed", "true")
    dialog.get_by_role("button", name="Edsger").click()
    expect(board.page.locator("#events-title")).to_have_text("Activity for Edsger")
    # The log viewer has people of its own.
    board.page.goto(f"{up.url}/investigations/INV-123")
    readers = board.page.get_by_role("dialog", name="Who are you?")
    expect(readers.locator("strong")).to_have_text(["ada", "grace", "web-shop", "mallory"])


def test_a_person_writes_to_the_bot_and_blocks_it_and_the_others_still_hear(chromium: Browser, up: Up):
    with tab(chromium, up.chats) as shown:
        page = shown.page
        page.goto(up.chats)
        chat_of(page, ADA).click()
        page.get_by_label("Message to the bot").fill("/status")
        page.get_by_label("Message to the bot").press("Enter")
        bubble(page, "Ada")
        page.get_by_role("button", name="Block the bot").click()
        page.get_by_text("The bot is blocked").wait_for()

        up.ask(ADA, "/tasks", title="Heard by one of two", assignee_user_id=EDSGER)

        chat_of(page, EDSGER).click()
        bubble(page, "Heard by one of two")
        expect(page.locator("#answers li", has_text="403").first).to_be_visible(timeout=PATIENCE)
        chat_of(page, ADA).click()
        page.get_by_role("button", name="Unblock the bot").click()
        expect(page.locator(".bubble", has_text="Heard by one of two")).to_have_count(0)


def test_the_chats_lead_back_to_the_board_and_to_the_first_page(chromium: Browser, up: Up):
    with tab(chromium, up.chats) as shown:
        page = shown.page
        page.goto(up.chats)
        ways = page.get_by_role("navigation", name="Back to the site").get_by_role("link")
        expect(ways).to_have_text(["aftercommit", "Tasks"])
        ways.nth(1).click()
        expect(page).to_have_url(f"{up.url}/tasks/board")
        page.go_back()
        ways.nth(0).click()
        expect(page).to_have_url(f"{up.url}/")
        page.get_by_role("link", name="Bot chats (local Telegram)").click()
        expect(page.get_by_role("heading", name="Tasks bot")).to_be_visible()
        # An address that names a chat opens it, in a page that is open, too.
        page.evaluate(f"location.hash = '#{LINKED[GRACE]}'")
        expect(chat_of(page, GRACE)).to_have_attribute("aria-current", "true")


class Leading(BotApiServer):
    """Leads back from the first answer on."""

    def __init__(self, ways: dict[str, str], **options: Any) -> None:
        super().__init__(**options)
        self.lead_back(ways)


def test_a_page_that_stayed_open_over_a_restart_leads_to_where_the_site_is_now(chromium: Browser):
    first, then = "http://127.0.0.1:8090/tasks/board", "http://127.0.0.1:8095/tasks/board"
    with kept_port() as port, ExitStack() as open_page:
        with Leading.in_thread(ways={"Tasks": first}, port=port) as telegram:
            page = open_page.enter_context(tab(chromium, telegram.url)).page
            page.goto(telegram.url)
            way = page.get_by_role("navigation", name="Back to the site").get_by_role("link")
            expect(way).to_have_attribute("href", first)
        with Leading.in_thread(ways={"Tasks": then}, port=port):
            expect(way).to_have_attribute("href", then, timeout=PATIENCE)


def test_what_is_written_quickly_is_sent_once_and_in_order(chromium: Browser):
    with BotApiServer.in_thread() as telegram, tab(chromium, telegram.url) as shown:
        page = shown.page
        page.goto(telegram.url)
        with held(page, "**/control/chats"):
            page.get_by_role("button", name="New chat").click()
            page.get_by_label("First name").fill("Ada")
            page.get_by_role("button", name="Start chat").click()
            page.get_by_label("First name").press("Enter")
        text = page.get_by_label("Message to the bot")
        expect(text).to_be_focused()
        with held(page, "**/messages"):
            for message in ("one", "two", "three"):
                page.keyboard.type(message)
                page.keyboard.press("Enter")
            expect(text).to_have_value("")
            page.keyboard.type("not yet sent")
        expect(page.locator(".bubble.person .text")).to_have_text(["one", "two", "three"])
        expect(text).to_have_value("not yet sent")
        expect(page.locator("#chats [data-chat]")).to_have_count(1)


def test_a_click_on_a_chat_counts_though_news_comes_before_the_button_is_let_go(chromium: Browser):
    with BotApiServer.in_thread() as telegram, tab(chromium, telegram.url) as shown:
        first, second = (
            httpx.post(f"{telegram.url}/control/chats", json={"first_name": name}, timeout=60, verify=TLS).json()["id"]
            for name in ("Ada", "Grace")
        )
        page = shown.page
        page.goto(telegram.url)
        chat = page.locator(f"[data-chat='{second}']")
        chat.hover()
        page.mouse.down()
        for number in (first, second):
            words = {"text": f"news of {number}"}
            httpx.post(f"{telegram.url}/control/chats/{number}/messages", json=words, timeout=60, verify=TLS)
            expect(page.locator(f"[data-chat='{number}']")).to_contain_text(f"news of {number}")
        page.mouse.up()
        expect(chat).to_have_attribute("aria-current", "true")


def test_who_types_an_address_of_programs_gets_to_a_page(board: BoardPage, up: Up):
    page = board.page
    for typed, shown in (
        ("/tasks", "/tasks/board"),
        ("/tasks/", "/tasks/board"),
        ("/tasks/7", "/tasks/board/7"),
        ("/investigations", "/"),
        ("/api/v1/investigations", "/"),
        ("/api/v1/investigations/INV-123", "/investigations/INV-123"),
    ):
        page.goto(f"{up.url}{typed}")
        expect(page).to_have_url(f"{up.url}{shown}")
    page.goto(f"{up.url}/tasks/me/events")
    expect(page.get_by_role("heading", name="This address is for API clients")).to_be_visible()
    page.get_by_role("link", name="Home page").click()
    expect(page).to_have_url(f"{up.url}/")
    told = httpx.get(f"{up.url}/tasks", timeout=60, verify=TLS)
    assert (told.status_code, told.json()["error"]) == (401, "unauthorized")
    assert "Accept" in told.headers["vary"]


def test_in_development_the_page_of_the_api_offers_the_tokens_of_sample_users(board: BoardPage, up: Up):
    page = board.page
    page.goto(f"{up.url}/docs/")
    expect(page).to_have_url(f"{up.url}/docs")
    operation = opened(page, "get", "/tasks/me")
    choice = page.get_by_label("Send requests as")
    expect(choice.locator("optgroup")).to_have_count(2)
    choice.select_option(choice.locator("optgroup[label=Tasks] option").first.get_attribute("value"))
    answered(operation, 200)
    choice.select_option("")
    answered(operation, 401)


def test_who_mistypes_an_address_of_the_chats_gets_a_page_that_leads_to_them(chromium: Browser, up: Up):
    with tab(chromium, up.chats, NARROW) as shown:
        page = shown.page
        for typed in ("chat", "some/where/else"):
            answer = page.goto(f"{up.chats.rstrip('/')}/{typed}")
            assert answer is not None
            assert answer.status == 404
            expect(page.get_by_role("heading", name="Page not found")).to_be_visible()
            holds(page, FITS)
        page.get_by_role("link", name="Chats").click()
        expect(page.get_by_role("heading", name="Tasks bot")).to_be_visible()


def test_a_telephone_shows_the_whole_title_of_the_logs_while_nobody_is_chosen(chromium: Browser, up: Up):
    with tab(chromium, up.url, NARROW) as shown:
        page = shown.page
        page.goto(f"{up.url}/investigations/INV-123")
        page.get_by_role("dialog", name="Who are you?").wait_for()
        holds(page, WHOLE.format("#title"))
        holds(page, FITS)


def test_the_chats_fit_on_a_telephone(chromium: Browser, up: Up):
    with tab(chromium, up.chats, NARROW) as shown:
        page = shown.page
        page.goto(up.chats)
        chat_of(page, GRACE).click()
        page.get_by_label("Message to the bot").wait_for()
        holds(page, FITS)
        expect(page.locator("#commands").get_by_text("/help")).to_be_in_viewport()
        holds(page, WHOLE.format("#commands"))
        holds(page, WHOLE.format("#person-about"))
        page.get_by_role("button", name="Back to the chats").click()
        holds(page, FITS)
        page.get_by_role("link", name="Tasks", exact=True).click()
        expect(page).to_have_url(f"{up.url}/tasks/board")
        page.get_by_role("dialog", name="Who are you?").get_by_role("button", name="Grace").click()
        page.get_by_role("link", name="All systems").click()
        expect(page).to_have_url(f"{up.url}/")
        page.get_by_role("heading", name="Sample users").wait_for()
        holds(page, FITS)
