"""axe-core finds nothing serious on any screen, in light and in dark."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.page.browsing import load, open_page, screens
from tests.page.double.server import serving

RULES = {"light": {}, "dark": {"runOnly": ["color-contrast"]}}
"""The rest is the same in the dark."""

pytestmark = pytest.mark.full

_RUN = """async (rules) => (await axe.run(document, {resultTypes: ['violations'], ...rules})).violations
  .filter((one) => ['serious', 'critical'].includes(one.impact))
  .map((one) => one.id + ': ' + one.nodes.slice(0, 3).map((node) => node.html.slice(0, 160)).join(' | '))"""


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.soak)])
def test_no_screen_has_a_serious_finding(browser: Browser, packages: Path, theme: str) -> None:
    axe = packages / "node_modules" / "axe-core" / "axe.min.js"
    found = {}
    # The page's policy would keep the checker out.
    options = {"bypass_csp": True, "color_scheme": theme}
    with serving("one") as (double, address), open_page(browser, **options) as (page, _):
        for name, path in screens(double.data).items():
            load(page, address + path)
            page.add_script_tag(path=axe)
            if findings := page.evaluate(_RUN, RULES[theme]):
                found[name] = findings
    assert not found
