"""Opens the page in Debian's Chromium, and records its requests, errors and dialogs."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from urllib.parse import quote, urlsplit

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

CHROMIUM: Final = "/usr/bin/chromium"
_READY: Final = """() => document.title.endsWith('triggerer') && document.querySelector('main h1')
  && !/(reading|laying out)…/i.test(document.querySelector('main').innerText)"""


def is_there() -> bool:
    """Return whether the browser is installed."""
    return shutil.which(CHROMIUM) is not None


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Start a browser without a window."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Record:
    """The requests, errors and dialogs of a tab."""

    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)

    def foreign(self, address: str) -> list[str]:
        """Return the requests to other origins than the address's own."""
        own = urlsplit(address).netloc
        schemes = ("http", "https", "ws", "wss")
        return [
            url
            for url in self.requests
            if urlsplit(url).scheme in schemes and urlsplit(url).netloc != own
        ]


def record(page: Page) -> Record:
    """Record a tab's requests, errors and dialogs from now on, and dismiss the dialogs.

    A failed request is not recorded as an error, because the page itself shows the failure.
    """
    found = Record()

    def said(message: Any) -> None:
        if message.type == "error" and "Failed to load resource" not in message.text:
            found.errors.append(message.text)

    def asked(dialog: Any) -> None:
        found.dialogs.append(dialog.message)
        dialog.dismiss()

    page.on("request", lambda request: found.requests.append(request.url))
    page.on("pageerror", lambda error: found.errors.append(str(error)))
    page.on("console", said)
    page.on("dialog", asked)
    return found


@contextmanager
def open_page(browser: Browser, **options: Any) -> Iterator[tuple[Page, Record]]:
    """Open a tab without cookies and cache, and yield it with its record."""
    context: BrowserContext = browser.new_context(
        **{"viewport": {"width": 1280, "height": 800}} | options
    )
    try:
        page = context.new_page()
        yield page, record(page)
    finally:
        context.close()


def load(page: Page, url: str) -> float:
    """Open a URL in the tab; return the seconds until the screen has its data."""
    began = time.monotonic()
    page.goto(url, wait_until="commit")
    page.wait_for_function(_READY, timeout=15_000)
    return time.monotonic() - began


class Names(Protocol):
    """The names of a store's DAGs, runs, assets and streams, by number."""

    def dag_id(self, number: int, /) -> str: ...
    def run_id(self, number: int, /) -> str: ...
    def asset_name(self, number: int, /) -> str: ...
    def stream_id(self, number: int, /) -> str: ...


def sign_in(page: Page, address: str, token: str) -> None:
    """Sign a tab in with a token, and wait for the home screen."""
    page.goto(address)
    page.get_by_label("Token").fill(token)
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Is anything wrong?").wait_for()


def screens(data: Names) -> dict[str, str]:
    """Return the path of every screen by its name."""
    dag = "/dags/" + quote(data.dag_id(0), safe="")
    run = f"{dag}/runs/" + quote(data.run_id(0), safe="")
    asset = "/assets?name=" + quote(data.asset_name(0), safe="")
    return {
        "home": "/",
        "streams": "/streams",
        "stream": f"/streams/{data.stream_id(0)}",
        "watchers": "/watchers?state=failing",
        "assets": "/assets",
        "graph": "/assets?view=graph",
        "asset": asset,
        "neighbours": f"{asset}&tab=graph",
        "dags": "/dags",
        "timeline": dag,
        "grid": f"{dag}?tab=grid",
        "calendar": f"{dag}?tab=calendar",
        "queued": f"{dag}?tab=queued",
        "backfills": f"{dag}?tab=backfills",
        "tasks": f"{dag}?tab=tasks",
        "runs": "/runs",
        "run": run,
        "events in": f"{run}?tab=in",
        "events out": f"{run}?tab=out",
        "attempts": f"{run}?tab=attempts",
        "trace": "/trace",
        "traced": "/trace/1",
        "parked": "/parked",
        "message": "/parked/1",
        "configuration": "/settings",
        "instances": "/settings?tab=instances",
        "tokens": "/settings?tab=tokens",
        "audit": "/settings?tab=audit",
        "found": "/find?q=orders",
        "no such screen": "/nowhere",
    }
