"""The log viewer as its readers meet it: in a browser, by what it shows."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Route, ViewportSize, expect

from tests.support.investigations import eventually

PATIENCE = 60_000
KEY = "aftercommit.reading"
# Which ways a page's events came, and what it said in passing, one after the other: either may be over before anybody
# has looked.
NOTES = """
    new MutationObserver((changes) => {
        const way = document.getElementById("connection")?.dataset.state;
        const page = document.documentElement.dataset;
        if (way && way !== (page.ways ?? "").split(" ").at(-1)) page.ways = `${page.ways ?? ""} ${way}`;
        for (const added of changes.flatMap((change) => [...change.addedNodes])) {
            if (added.classList?.contains("toast")) page.said = `${page.said ?? ""}${added.textContent}\\n`;
        }
    }).observe(document, { attributeFilter: ["data-state"], childList: true, subtree: true });
"""

expect.set_options(timeout=PATIENCE)


def context_of(browser: Browser, url: str, viewport: ViewportSize) -> BrowserContext:
    """A window of its own, whose pages may take their time."""
    context = browser.new_context(viewport=viewport, timezone_id="UTC", locale="en-GB")
    context.set_default_timeout(PATIENCE)
    context.grant_permissions(["clipboard-read", "clipboard-write"], origin=url)
    context.add_init_script(NOTES)
    return context


def forget_ways(page: Page) -> None:
    """Only what comes from here on counts."""
    page.evaluate("document.documentElement.dataset.ways = ''")


def went(page: Page, name: str) -> None:
    """Until events have come this way, for however short a time."""
    expect(page.locator("html")).to_have_attribute("data-ways", re.compile(rf"\b{name}\b"))


def said(page: Page, text: str) -> None:
    """Until the page has said this in passing, for however short a time."""
    expect(page.locator("html")).to_have_attribute("data-said", re.compile(re.escape(text)))


def cut_waits_short(page: Page, name: str) -> None:
    """Until events come this way, with the waits before that cut short. The page's clock must have been installed."""
    badge = page.locator("#connection")

    def arrived() -> bool | None:
        now = badge.get_attribute("data-state")
        # While something is under way it may take its time: a clock that jumps would cut it off.
        if now == "waiting":
            page.clock.fast_forward(5_000)
        return now == name or None

    eventually(arrived)


def holds(page: Page, condition: str) -> None:
    """Until this is so in the page; what is said of sizes is so as soon as it is laid out."""
    eventually(lambda: page.evaluate(condition) or None)


@contextmanager
def held(page: Page, pattern: str) -> Iterator[None]:
    """Requests to these addresses are answered when the block is over, and not before."""
    kept: list[Route] = []
    holding = True

    def hold(route: Route) -> None:
        if holding:
            kept.append(route)
        else:
            route.continue_()

    page.route(pattern, hold)
    yield
    # From here on nothing is kept, also of what is asked for while these are let go.
    holding = False
    for route in kept:
        route.continue_()
    page.unroute(pattern)


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
        self.page.get_by_role("button", name="Continue", exact=True).click()

    # --- what is shown

    def shows(self, text: str) -> None:
        """Until a line with this text is in view."""
        expect(self.page.locator(".row .message", has_text=text).first).to_be_visible(timeout=PATIENCE)

    def shows_not(self, text: str) -> None:
        """Until no line has this text."""
        expect(self.page.locator(".row .message", has_text=text)).to_have_count(0, timeout=PATIENCE)

    def connection(self, name: str) -> None:
        """Until lines come this way: connecting, streaming, polling, waiting, stopped."""
        expect(self.page.locator("#connection")).to_have_attribute("data-state", name, timeout=3 * PATIENCE)

    def went(self, name: str) -> None:
        """Until lines have come this way, for however short a time."""
        went(self.page, name)

    def said(self, text: str) -> None:
        """Until the page has said this in passing."""
        said(self.page, text)

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

    def copied(self) -> str:
        """What is in the clipboard."""
        text: str = self.evaluate("navigator.clipboard.readText()")
        return text

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


def line_in(link: str) -> int:
    """The number of the line that a link leads to."""
    return int(parse_qs(urlsplit(link).fragment)["line"][0])


def addresses_with(asked: Sequence[str], secret: str) -> Sequence[str]:
    """The requests whose address holds a secret."""
    return [url for url in asked if secret in url]
