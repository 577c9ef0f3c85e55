"""How the page behaves while somebody uses it."""

from __future__ import annotations

import time

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.page.browsing import load, open_page
from tests.page.double.server import serving

pytestmark = pytest.mark.full


def test_a_parked_message_is_replayed_by_keyboard_alone(browser: Browser) -> None:
    with serving("big") as (double, address), open_page(browser) as (page, _):
        load(page, address)
        page.keyboard.press("g")
        page.keyboard.press("p")
        expect(page.get_by_role("heading", name="Parked messages")).to_be_visible()
        page.wait_for_selector("[data-row]")
        page.keyboard.press("j")
        page.keyboard.press("j")
        page.keyboard.press("x")
        expect(page.get_by_text("1 chosen")).to_be_visible()
        for _ in range(40):
            page.keyboard.press("Shift+Tab")
            if page.evaluate("document.activeElement.textContent") == "Replay":
                break
        page.keyboard.press("Enter")
        expect(page.get_by_role("dialog")).to_contain_text("goes to its watcher again")
        page.keyboard.press("Enter")
        expect(page.get_by_text("Replay: done")).to_be_visible()
        [(method, path, body)] = double.changes
        assert (method, path) == ("POST", "/api/v1/parked/replay")
        assert len(body["ids"]) == 1


def test_a_banner_says_that_the_service_is_away_and_fresh_data_comes_with_it(
    browser: Browser,
) -> None:
    with serving("one") as (double, address), open_page(browser) as (page, record):
        load(page, address + "/dags")
        double.stop()
        expect(page.get_by_text("The service does not answer")).to_be_visible(timeout=15_000)
        expect(page.get_by_role("link", name="orders_0000", exact=True)).to_be_visible()
        double.data.paused.add(double.data.dag_id(0))
        loads = sum(url == address + "/dags" for url in record.requests)
        double.start(int(address.rpartition(":")[2]))
        expect(page.get_by_text("The service does not answer")).to_be_hidden(timeout=15_000)
        expect(page.get_by_role("button", name="Unpause")).to_be_visible()
        assert sum(url == address + "/dags" for url in record.requests) == loads


def test_new_events_wait_above_the_list_until_the_reader_asks(browser: Browser) -> None:
    with serving("big") as (double, address), open_page(browser) as (page, _):
        load(page, address + "/trace")
        first = page.locator("[data-row] a").first
        was = first.text_content()
        double.data.extra_events = 7
        double.hints += 1
        expect(page.get_by_role("button", name="7 new")).to_be_visible()
        assert first.text_content() == was
        page.get_by_role("button", name="7 new").click()
        expect(first).to_have_text(str(int(was or 0) + 7))


def test_a_hidden_tab_asks_for_nothing_and_a_visible_one_at_once(browser: Browser) -> None:
    with serving("one") as (double, address), open_page(browser) as (page, _):
        load(page, address)
        _show(page, is_hidden=True)
        page.wait_for_timeout(500)
        before = len(double.asked)
        double.hints += 1
        page.wait_for_timeout(5_500)
        assert len(double.asked) == before
        _show(page, is_hidden=False)
        page.wait_for_timeout(1_500)
        assert len(double.asked) > before


def _show(page: Page, *, is_hidden: bool) -> None:
    page.evaluate(
        "hidden => { Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});"
        " document.dispatchEvent(new Event('visibilitychange')) }",
        is_hidden,
    )


def test_a_burst_of_hints_makes_one_request_a_second_at_most(browser: Browser) -> None:
    with serving("big") as (double, address), open_page(browser) as (page, _):
        load(page, address + "/runs")
        before = len(double.asked)
        began = time.monotonic()
        while time.monotonic() - began < 5:
            double.hints += 1
            page.wait_for_timeout(50)
        asked = [path for _, path in double.asked[before:] if path.startswith("/api/v1/runs")]
        assert 1 <= len(asked) <= 7


def test_a_page_that_nobody_touches_asks_every_five_seconds(browser: Browser) -> None:
    with serving("one") as (double, address), open_page(browser) as (page, _):
        load(page, address)
        page.wait_for_timeout(1_000)
        before = len(double.asked)
        page.wait_for_timeout(5_500)
        # The screen reads three lists, each at most twice.
        assert len(double.asked) - before <= 6


def test_the_address_restores_a_screen_with_its_filters(browser: Browser) -> None:
    with serving("big") as (_, address), open_page(browser) as (page, _):
        load(page, address + "/runs")
        page.get_by_label("state").select_option("failed")
        page.wait_for_url("**/runs?state=failed")
        load(page, page.url)
        assert page.get_by_label("state").input_value() == "failed"
        assert page.locator("tbody [data-row]").count() > 10
        assert page.locator("tbody").get_by_text("success", exact=True).count() == 0
        assert page.title() == "Runs · triggerer"


def test_a_token_opens_the_page_and_a_wrong_one_is_refused_in_words(browser: Browser) -> None:
    with serving("one", token="trg_right") as (_, address), open_page(browser) as (page, _):
        page.goto(address + "/dags")
        page.get_by_label("Token").fill("trg_wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_text("This token does not open the page")).to_be_visible()
        page.get_by_label("Token").fill("trg_right")
        page.keyboard.press("Enter")
        expect(page.get_by_role("link", name="orders_0000", exact=True)).to_be_visible()


def test_the_last_hour_of_a_stream_is_there_at_once(browser: Browser) -> None:
    with serving("big") as (double, address), open_page(browser) as (page, record):
        load(page, f"{address}/streams/{double.data.stream_id(8)}")
        expect(page.get_by_role("heading", name="Lag in the last hour")).to_be_visible()
        expect(page.get_by_role("img", name="lag (messages): 18,328")).to_be_visible()
        load(page, f"{address}/streams")
        assert page.get_by_role("img", name="lag, minute by minute").count() == 39
        load(page, address)
        tile = page.get_by_role("link", name="lag, minute by minute")
        expect(tile.get_by_role("img")).to_be_visible()
        assert record.errors == []


def test_a_run_shows_the_stages_of_its_tasks_and_hides_them_on_request(browser: Browser) -> None:
    with serving("big") as (double, address), open_page(browser) as (page, _):
        run = f"/dags/{double.data.dag_id(0)}/runs/{double.data.run_id(1)}"
        load(page, address + run)
        stage = page.get_by_text("save at /srv/dags/orders.py:41")
        expect(stage).to_have_count(2)
        expect(page.get_by_text("Spark: stage 22 of 23, 203 of 208 tasks")).to_be_visible()
        expect(page.get_by_text("21 earlier stages")).to_have_count(2)
        page.get_by_role("button", name="Hide Spark's stages").click()
        expect(stage).to_have_count(0)
        load(page, page.url)
        expect(stage).to_have_count(0)


def test_a_trace_shows_the_place_and_the_headers_of_the_message(browser: Browser) -> None:
    with serving("one") as (_, address), open_page(browser) as (page, _):
        load(page, address + "/trace/1")
        message = page.get_by_role("region", name="Message")
        expect(message).to_contain_text("headers.traceparent")
        expect(message).to_contain_text("partition")


def test_a_setting_that_differs_elsewhere_says_where(browser: Browser) -> None:
    with serving("one") as (_, address), open_page(browser) as (page, _):
        load(page, address + "/settings?q=workers")
        expect(page.get_by_role("cell", name="differs 8 in node-2:977")).to_be_visible()
