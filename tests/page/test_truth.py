"""The page's sentences and drawings agree with the API's answers."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from playwright.sync_api import Browser, Page, Route, expect
from typer.testing import CliRunner

from tests.page.browsing import load, open_page, screens
from tests.page.double.answers import CLEANING_ERROR
from tests.page.double.server import serving
from triggerer.cli.app import app


def _change(page: Page, pattern: str, change: Callable[[list[dict[str, Any]]], None]) -> None:
    """Have the page read items that `change` has edited, in answers whose address matches `pattern`."""

    def answer(route: Route) -> None:
        response = route.fetch()
        body = response.json()
        change(body["items"])
        route.fulfill(response=response, json=body)

    page.route(pattern, answer)


def test_a_run_of_no_length_has_a_bar_inside_its_track(browser: Browser) -> None:
    def end_at_once(runs: list[dict[str, Any]]) -> None:
        runs[0] |= {"state": "failed", "started_at": "2099-01-01T00:00:00Z"}
        runs[0]["ended_at"] = runs[0]["started_at"]

    size = {"width": 400, "height": 800}
    with serving("big") as (double, address), open_page(browser, viewport=size) as (page, _):
        _change(page, "**/dagRuns?*", end_at_once)
        load(page, f"{address}/dags/{double.data.dag_id(0)}")
        bar = page.locator(".timeline .bar").first
        [bar_box, track_box] = [bar.bounding_box(), bar.locator("..").bounding_box()]
        assert bar_box is not None
        assert track_box is not None
        assert bar_box["width"] >= 12
        assert track_box["x"] <= bar_box["x"]
        assert bar_box["x"] + bar_box["width"] <= track_box["x"] + track_box["width"] + 0.5
        expect(bar).to_have_text("✕")


def test_a_cleaning_that_failed_is_a_problem_and_leads_to_its_settings(browser: Browser) -> None:
    with serving("big") as (_, address), open_page(browser) as (page, _):
        load(page, f"{address}/")
        row = page.locator("li, tr, article").filter(has_text="Old data was not deleted").last
        expect(row).to_contain_text(CLEANING_ERROR)
        row.get_by_role("link", name="See [retention]").click()
        expect(page).to_have_url(f"{address}/settings")


def test_a_stream_keeps_up_only_if_its_watchers_do_and_its_lag_is_known(browser: Browser) -> None:
    def states(streams: list[dict[str, Any]]) -> None:
        calm = {"owner": "node-1:41:a", "paused": None, "lag": 3, "lag_seconds": 0.1}
        for one in streams:
            one |= calm | {"watchers": {"running": 9, "catching_up": 1}}
        streams[1]["watchers"] = {"catching_up": 4}
        streams[2]["watchers"] = {"waiting": 4}
        streams[3] |= {"lag": None, "lag_seconds": None}
        streams[4]["reported_at"] = "2026-11-20T07:08:09Z"

    with serving("big") as (_, address), open_page(browser) as (page, _):
        _change(page, "**/streams?*", states)
        load(page, f"{address}/streams")
        words = page.locator("tbody [data-row] td:nth-child(2)")
        unknown = "not known since 11-20 07:08"
        for index, word in enumerate(["keeps up", "catching up", "waiting", "running", unknown]):
            expect(words.nth(index)).to_have_text(word)
        load(page, address)
        expect(page.locator("#verdict")).to_contain_text(
            "36 of 40 streams keep up, 1 runs without a known lag, nothing is known about 1."
        )
        expect(page.locator("main")).to_contain_text("has stopped reporting")


def test_a_duration_of_the_configuration_has_its_unit(browser: Browser) -> None:
    with serving("big") as (_, address), open_page(browser) as (page, _):
        load(page, f"{address}/settings")
        for key, shown in (("lease_duration", "15 s"), ("commit_timeout", "90 s, 1 min 30 s")):
            row = page.locator("tbody [data-row]").filter(has_text=key)
            expect(row.locator("td:nth-child(2)")).to_have_text(shown)


def test_the_command_at_the_foot_of_each_screen_exists(browser: Browser) -> None:
    commands = {}
    with serving("one") as (double, address), open_page(browser) as (page, _):
        for name, path in screens(double.data).items():
            load(page, address + path)
            foot = page.locator("footer .command code")
            commands[name] = foot.inner_text() if foot.count() else "triggerer"
    # With `--help` no command runs, but a wrong word or option is still an error.
    unknown = {
        name: done.output
        for name, text in commands.items()
        if (done := CliRunner().invoke(app, [*shlex.split(text)[1:], "--help"])).exit_code
    }
    assert unknown == {}


def test_ages_are_counted_by_the_services_clock(browser: Browser) -> None:
    with serving("one") as (_, address), open_page(browser) as (page, _):
        page.clock.set_system_time(datetime.now(UTC) + timedelta(minutes=20))
        load(page, f"{address}/streams")
        expect(page.locator("tbody [data-row]")).to_contain_text("reported 5 s ago")
        expect(page.locator("main")).to_contain_text("as of now")
