"""The log viewer as its readers meet it: in a browser, by what it shows."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import ConsoleMessage, Page, expect

PATIENCE = 30_000
KEY = "aftercommit.reading"


@dataclass
class LogPage:
    """One tab. Whatever the browser complains of, and every address it asked for, is kept."""

    page: Page
    url: str
    complaints: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.set_default_timeout(PATIENCE)
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
