"""Every screen opens in time on a real store of 2,000 DAGs, 10,000 watchers and a million events, with the real API."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.page.big_store import StoredNames, open_big_service
from tests.page.browsing import load, open_page, screens, sign_in

INTERACTIVE_S = 1.5
MOST_REQUESTS = 12


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_every_screen_of_a_big_store_is_there_in_time(
    browser: Browser, tmp_path: Path, large_database: str | None
) -> None:
    seconds, requests = {}, {}
    with (
        open_big_service(tmp_path, large_database) as service,
        open_page(browser) as (page, record),
    ):
        names = StoredNames(tmp_path / "home" / "triggerer.db")
        sign_in(page, service.address, service.token)
        for name, path in screens(names).items():
            before = len(record.requests)
            # Other work on the machine can slow a screen down, so the better of two attempts counts.
            first = load(page, service.address + path)
            requests[name] = len(record.requests) - before
            seconds[name] = round(min(first, load(page, service.address + path)), 2)
        assert record.errors == []
    print(json.dumps({"seconds": seconds, "requests": requests}))
    assert {name: took for name, took in seconds.items() if took > INTERACTIVE_S} == {}
    assert {name: count for name, count in requests.items() if count > MOST_REQUESTS} == {}
