"""axe-core finds nothing serious on any screen, in light and in dark."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tests.page.browsing import load, open_page, screens
from tests.page.double.server import serving

pytestmark = pytest.mark.full

_RUN = """async () => (await axe.run(document, {resultTypes: ['violations']})).violations
  .filter((one) => ['serious', 'critical'].includes(one.impact))
  .map((one) => one.id + ': ' + one.nodes.slice(0, 3).map((node) => node.html.slice(0, 160)).join(' | '))"""


@pytest.mark.parametrize("size", ["one", pytest.param("nothing", marks=pytest.mark.soak)])
@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.soak)])
def test_no_screen_has_a_serious_finding(
    browser: Browser, packages: Path, theme: str, size: str
) -> None:
    # The page's policy would keep the checker out.
    options = {"bypass_csp": True, "color_scheme": theme}
    with serving(size) as (double, address), open_page(browser, **options) as (page, _):
        paths = {name: address + path for name, path in screens(double.data).items()}
        found = {name: findings(page, url, packages) for name, url in paths.items()}
    assert {name: some for name, some in found.items() if some} == {}


def findings(page: Page, url: str, packages: Path) -> list[str]:
    """Open a screen, and return the serious findings of axe-core."""
    load(page, url)
    page.add_script_tag(path=packages / "node_modules" / "axe-core" / "axe.min.js")
    found: list[str] = page.evaluate(_RUN)
    return found
