"""The memory of a page that stays open for long does not grow."""

from __future__ import annotations

import os
import time

import pytest
from playwright.sync_api import Browser

from tests.page.browsing import load, open_page
from tests.page.double.server import serving

MINUTES = float(os.environ.get("TRIGGERER_PAGE_MINUTES", "30"))
MOST_GROWTH = 20 * 1024 * 1024
EVENTS_PER_STEP = 250


@pytest.mark.soak
@pytest.mark.timeout(MINUTES * 60 + 240)
@pytest.mark.parametrize("path", ["/trace", "/"])
def test_the_heap_stays_as_it_is_at_a_thousand_events_a_second(browser: Browser, path: str) -> None:
    with serving("big") as (double, address), open_page(browser) as (page, record):
        tools = page.context.new_cdp_session(page)

        def used() -> int:
            tools.send("HeapProfiler.collectGarbage")
            return int(tools.send("Runtime.getHeapUsage")["usedSize"])

        load(page, address + path)
        page.wait_for_timeout(5_000)
        first = used()
        until = time.monotonic() + MINUTES * 60
        sizes = []
        while time.monotonic() < until:
            for _ in range(40):
                double.data.extra_events += EVENTS_PER_STEP
                double.hints += 1
                page.wait_for_timeout(250)
            # Now and then show the new events, as a reader does.
            button = page.get_by_role("button", name="new")
            if button.count():
                button.first.click()
            sizes.append(used() - first)
        print(
            f"heap {first / 2**20:.1f} MiB, growth in MiB:",
            [round(one / 2**20, 2) for one in sizes],
        )
        assert sizes[-1] < MOST_GROWTH
        assert record.errors == []
