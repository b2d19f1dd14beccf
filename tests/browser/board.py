"""The task board as people meet it: in a browser, by what it shows."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, ViewportSize, expect

from tests.browser.page import PATIENCE, context_of, said, went
from tests.support.investigations import eventually
from tests.support.tasks import signed

KEY = "aftercommit.reading.tasks"
WIDE: ViewportSize = {"width": 1280, "height": 800}
NARROW: ViewportSize = {"width": 390, "height": 800}
STREAM = "**/tasks/me/events/stream*"


@dataclass
class BoardPage:
    """One tab, in which somebody works. Whatever the browser complains of is kept."""

    page: Page
    url: str
    complaints: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _said(self, message: ConsoleMessage) -> None:
        # A request that is answered with an error is on the console by itself; the tests that provoke it know.
        if message.type in {"error", "warning"} and "Failed to load resource" not in message.text:
            self.complaints.append(message.text)

    def open(self, user: int | None, task: int | None = None, fragment: str = "") -> None:
        """Go to the board, or to a task on it, as somebody who was chosen before."""
        if user is not None:
            self.remember(signed(user))
        self.page.goto(f"{self.url}/tasks/board{'' if task is None else f'/{task}'}{fragment}")

    def remember(self, token: str) -> None:
        """As if this token had been chosen in this tab."""
        reading = f'{{"user": "tester", "token": "{token}"}}'
        self.page.add_init_script(f"sessionStorage.setItem({KEY!r}, {reading!r})")

    # --- what is shown

    def row(self, title: str) -> Locator:
        """The task of this title in the list."""
        return self.page.locator("a.task", has_text=title)

    def lists(self, title: str, *texts: str) -> None:
        """Until the list has a task of this title, and says this of it."""
        for text in (title, *texts):
            expect(self.row(title)).to_contain_text(text, timeout=PATIENCE)

    def lists_not(self, title: str) -> None:
        """Until no task of this title is in the list."""
        expect(self.row(title)).to_have_count(0, timeout=PATIENCE)

    def shows(self, text: str) -> None:
        """Until the open task says this."""
        expect(self.page.locator("#detail-body")).to_contain_text(text, timeout=PATIENCE)

    def stands(self, state: str) -> None:
        """Until the open task is in this state."""
        expect(self.page.locator(".detail .facts .badge")).to_have_text(state, timeout=PATIENCE)

    def hears(self, title: str, what: str) -> None:
        """Until an event about this task says this."""
        found = self.page.locator(".event", has_text=title).filter(has_text=what)
        expect(found.first).to_be_visible(timeout=PATIENCE)

    def connection(self, name: str) -> None:
        """Until events come this way: connecting, streaming, polling, waiting, stopped.

        While a page polls, it tries the stream again once a minute.
        """
        expect(self.page.locator("#connection")).to_have_attribute("data-state", name, timeout=3 * PATIENCE)

    def went(self, name: str) -> None:
        """Until events have come this way, for however short a time."""
        went(self.page, name)

    def said(self, text: str) -> None:
        """Until the page has said this in passing."""
        said(self.page, text)

    def offers(self, *actions: str) -> None:
        """Until exactly these actions can be chosen."""
        expect(self.page.locator(".actions .buttons button")).to_have_text(list(actions), timeout=PATIENCE)

    def alert(self, text: str) -> None:
        """Until something that has to be read says this."""
        expect(self.page.get_by_role("alert").filter(has_text=text).first).to_be_visible(timeout=PATIENCE)

    def focuses(self, what: str) -> None:
        """Until the focus is on what has this id or text."""
        eventually(lambda: self.focused() == what or None)

    def focused(self) -> str:
        """What has the focus, by its text or its id."""
        found: str = self.evaluate("document.activeElement.id || document.activeElement.textContent.trim()")
        return found

    def is_at(self, path: str) -> None:
        """Until the address has this path."""
        eventually(lambda: self.evaluate("location.pathname") == path or None)

    def evaluate(self, script: str) -> Any:
        """Ask the page itself."""
        return self.page.evaluate(script)

    # --- what somebody does

    def begin(self, action: str) -> None:
        """Choose an action."""
        self.page.locator(".actions .buttons").get_by_role("button", name=action, exact=True).click()

    def act(self, action: str, words: str | None = None) -> None:
        """Do something with the open task: choose it, say what it asks for, send it."""
        self.begin(action)
        form = self.page.locator(".action-form")
        if words is not None:
            form.locator("textarea").fill(words)
        form.get_by_role("button", name=action, exact=True).click()

    def give_to(self, action: str, person: str) -> None:
        """Assign or reassign the open task."""
        self.begin(action)
        form = self.page.locator(".action-form")
        option = form.locator("option", has_text=person)
        form.locator("select").select_option(option.get_attribute("value"))
        form.get_by_role("button", name=action, exact=True).click()

    def press(self, *keys: str) -> None:
        """Keys, one after the other."""
        for key in keys:
            self.page.keyboard.press(key)


@contextmanager
def tab(browser: Browser, url: str, viewport: ViewportSize = WIDE) -> Iterator[BoardPage]:
    """A tab with storage of its own. A page that complains on the console fails its test."""
    context = context_of(browser, url, viewport)
    shown = BoardPage(context.new_page(), url)
    try:
        yield shown
    finally:
        context.close()
    assert shown.complaints == []
