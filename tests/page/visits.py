"""Somebody who visits the page with a browser, and what the browser complains of meanwhile."""

import json
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx

PATIENCE_MS = 60_000
WATCH = """
document.addEventListener("securitypolicyviolation", (event) => {
  violated(`${event.violatedDirective}: ${event.blockedURI} ${event.sample}`);
});
"""
EXPECTED = "Failed to load resource"
"""What a browser says of every answer that is an error: tests that provoke one look at the page instead."""


@dataclass
class Append:
    """An append as the page sent it."""

    text: str
    final: bool
    learn: bool
    key: str


class Gate:
    """Where a page's appends wait, so that a test knows what is under way."""

    def __init__(self, page):
        self._page, self._held = page, []
        page.route("**/append", lambda route: self._held.append(route))

    def wait(self):
        """Wait until an append waits here."""
        deadline = time.monotonic() + PATIENCE_MS / 1000
        while not self._held:
            assert time.monotonic() < deadline, "nothing was sent"
            self._page.wait_for_timeout(20)

    def let(self):
        """Let one through, when there is one."""
        self.wait()
        self._held.pop(0).continue_()


@dataclass
class Visit:
    """One visit: the browser's page, the server behind it, and what was noticed."""

    page: Any
    url: str
    key: str
    complaints: list[str] = field(default_factory=list)
    appends: list[Append] = field(default_factory=list)
    under_way: int = 0
    most_under_way: int = 0

    def watch(self, context):
        """Notice complaints, requests to others, and appends."""
        context.expose_binding("violated", lambda _source, what: self.complaints.append(what))
        context.add_init_script(WATCH)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._hear)
        self.page.on("request", self._see)
        for event in ("requestfinished", "requestfailed"):
            self.page.on(event, self._done)

    def enter(self, *, fragment=""):
        """Open the page and give it the key that it asks for."""
        self.page.goto(f"{self.url}/{fragment}")
        self.page.get_by_label("Key", exact=True).fill(self.key)
        self.page.get_by_role("button", name="Use it").click()
        self.page.get_by_text("tiny on cpu").wait_for()

    def read(self, text):
        """Have a text read to its end."""
        self.send(text)
        self.wait()

    def send(self, text):
        """Have a text read, and wait for nothing."""
        self.page.get_by_label("Text to read").fill(text)
        self.page.get_by_role("button", name="Read it").click()

    def wait(self):
        """Wait until everything that was sent is read."""
        self.page.locator("#rows .row").first.wait_for()
        self.page.locator("#sending").wait_for(state="hidden", timeout=3 * PATIENCE_MS)

    @property
    def text(self):
        """The text that is shown, on its first side."""
        shown = (
            "[...document.querySelectorAll('#rows .row')].map((row) => row.children[0].textContent).join('')"
        )
        return self.page.evaluate(shown)

    @property
    def marks(self):
        """What else is noted in the text."""
        return self.page.locator("#rows .mark").all_text_contents()

    @property
    def session(self):
        """The id of the session that is open."""
        return urlsplit(self.page.url).fragment

    def ask(self, method, path, **options):
        """Ask the server, past the page."""
        headers = {"authorization": f"Bearer {self.key}"}
        return httpx.request(method, self.url + path, headers=headers, timeout=60, **options)

    def info(self):
        """What the server says of the session that is open."""
        return self.ask("GET", f"/sessions/{self.session}").json()

    def choose(self, view):
        """Choose what the colours show."""
        self.page.get_by_role("radio", name=view, exact=True).check()

    def act(self, verb):
        """Press a button of the session that is open, in the list."""
        self.page.locator("li:has([aria-current])").get_by_role("button", name=verb).click()

    def refuse_appends(self, times, **answer):
        """Have so many appends answered like this; those after them reach the server."""
        left = [times]

        def refuse(route):
            left[0] -= 1
            if left[0] >= 0:
                route.fulfill(**answer)
            else:
                route.continue_()

        self.page.route("**/append", refuse)

    def hold_appends(self):
        """Have each append wait until the gate that is returned lets it through."""
        return Gate(self.page)

    def _hear(self, message):
        if message.type in {"error", "warning"} and EXPECTED not in message.text:
            self.complaints.append(message.text)

    def _see(self, request):
        if not request.url.startswith(f"{self.url}/"):
            self.complaints.append(f"asked {request.url}")
        if request.url.endswith("/append"):
            body = json.loads(request.post_data)
            key = request.headers["idempotency-key"]
            self.appends.append(Append(body["text"], body["final"], body["learn"], key))
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)

    def _done(self, request):
        if request.url.endswith("/append"):
            self.under_way -= 1


def problem(status, slug, title, detail="", applied="no", **headers):
    """A problem document as the server writes it, for `refuse_appends`."""
    document = {
        "type": f"urn:rlstm:problem:{slug}",
        "title": title,
        "status": status,
        "detail": detail,
        "applied": applied,
        "request_id": "r-1",
    }
    return {
        "status": status,
        "body": json.dumps(document),
        "headers": {"content-type": "application/problem+json"} | headers,
    }
