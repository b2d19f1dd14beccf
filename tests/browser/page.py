"""The log viewer as its readers meet it: in a browser, by what it shows."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, ViewportSize, expect

from tests.investigations import eventually

PATIENCE = 60_000
KEY = "aftercommit.reading"
# Which ways a page's events came, one after the other: one of them may be over before anybody has looked.
WAYS = """
    new MutationObserver(() => {
        const way = document.getElementById("connection")?.dataset.state;
        const page = document.documentElement.dataset;
        if (way && way !== (page.ways ?? "").split(" ").at(-1)) page.ways = `${page.ways ?? ""} ${way}`;
    }).observe(document, { attributeFilter: ["data-state"], childList: true, subtree: true });
"""

expect.set_options(timeout=PATIENCE)


def context_of(browser: Browser, url: str, viewport: ViewportSize) -> BrowserContext:
    """A window of its own, whose pages may take their time."""
    context = browser.new_context(viewport=viewport, timezone_id="UTC", locale="en-GB")
    context.set_default_timeout(PATIENCE)
    context.grant_permissions(["clipboard-read", "clipboard-write"], origin=url)
    context.add_init_script(WAYS)
    return context


def forget_ways(page: Page) -> None:
    """Only what comes from here on counts."""
    page.evaluate("document.documentElement.dataset.ways = ''")


def went(page: Page, name: str) -> None:
    """Until events have come this way, for however short a time."""
    expect(page.locator("html")).to_have_attribute("data-ways", re.compile(rf"\b{name}\b"))


@dataclass
class LogPage:
    """One tab. Whatever the browser complains of, and every address it asked for, is kept."""

    page: Page
    url: str
    complaints: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))

    def _said(self, message: ConsoleMessage) -> None:
        # A request that is answered with an error is on the console by itself; the tests that provoke it know.
        if message.type in {"error", "warning"} and "Failed to load resource" not in message.text:
            self.complaints.append(message.text)

    def open(self, investigation: str, token: str | None, fragment: str = "") -> None:
        """Go there, with this token in the tab's storage as if it had been chosen before."""
        if token is not None:
            reading = f'{{"user": "tester", "token": "{token}"}}'
            self.page.add_init_script(f"sessionStorage.setItem({KEY!r}, {reading!r})")
        self.page.goto(f"{self.url}/investigations/{investigation}{fragment}")

    def paste(self, token: str) -> None:
        """Answer the question for a token."""
        self.page.get_by_label("Token").fill(token)
        self.page.get_by_role("button", name="Read", exact=True).click()

    # --- what is shown

    def shows(self, text: str) -> None:
        """Until a line with this text is in view."""
        expect(self.page.locator(".row .message", has_text=text).first).to_be_visible(timeout=PATIENCE)

    def shows_not(self, text: str) -> None:
        """Until no line has this text."""
        expect(self.page.locator(".row .message", has_text=text)).to_have_count(0, timeout=PATIENCE)

    def connection(self, name: str) -> None:
        """Until lines come this way: connecting, streaming, polling, waiting, stopped."""
        expect(self.page.locator("#connection")).to_have_attribute("data-state", name, timeout=PATIENCE)

    def went(self, name: str) -> None:
        """Until lines have come this way, for however short a time."""
        went(self.page, name)

    def says(self, part: str, text: str) -> None:
        """Until a part of the page says exactly this."""
        expect(self.page.locator(f"#{part}")).to_have_text(text, timeout=PATIENCE)

    def rows(self) -> Sequence[int]:
        """The numbers of the lines that are drawn, in their order."""
        return sorted(
            int(each) for each in self.evaluate("[...document.querySelectorAll('.row')].map(r => r.dataset.seq)")
        )

    def top(self) -> int:
        """The number of the line at the upper edge of the list."""
        script = """(() => {
            const { left, top } = document.getElementById('list').getBoundingClientRect();
            return document.elementFromPoint(left + 20, top + 5)?.closest('.row')?.dataset.seq ?? 0;
        })()"""
        return int(self.evaluate(script))

    def stays_at(self, number: int) -> None:
        """Until the line of this number is at the upper edge of the list."""
        eventually(lambda: self.top() == number or None)

    def is_active(self, number: int) -> None:
        """Until keys act on the line of this number."""
        expect(self.page.locator(".row.active")).to_have_attribute("data-seq", str(number))

    def active(self) -> int:
        """The number of the line that keys act on."""
        return int(self.page.locator(".row.active").get_attribute("data-seq") or 0)

    def evaluate(self, script: str) -> Any:
        """Ask the page itself."""
        return self.page.evaluate(script)

    # --- what the reader does

    def press(self, *keys: str) -> None:
        """Keys, one after the other."""
        for key in keys:
            self.page.keyboard.press(key)

    def go_to_time(self, moment: str) -> None:
        """By the dialog for it, to a date and a time in UTC."""
        self.press("t")
        self.page.get_by_label("Date and time").fill(moment)
        self.page.get_by_role("button", name="Go", exact=True).click()

    def scroll(self, where: str) -> None:
        """To the beginning or to the end of what is loaded, or by so many pixels."""
        top = {"beginning": "0", "end": "list.scrollHeight"}.get(where, f"list.scrollTop + {where}")
        self.evaluate(f"(() => {{ const list = document.getElementById('list'); list.scrollTop = {top}; }})()")


def addresses_with(asked: Sequence[str], secret: str) -> Sequence[str]:
    """The requests whose address holds a secret."""
    return [url for url in asked if secret in url]
