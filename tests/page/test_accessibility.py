"""axe-core finds no serious fault on any screen, in the light and the dark theme."""

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


@pytest.mark.parametrize(
    ("theme", "size", "every"),
    [
        ("light", "one", 3),
        *(
            pytest.param(theme, size, 1, marks=pytest.mark.soak)
            for theme in ("light", "dark")
            for size in ("nothing", "one")
        ),
    ],
)
def test_no_screen_has_a_serious_finding(
    browser: Browser, packages: Path, theme: str, size: str, every: int
) -> None:
    # The page's security policy would block the script of axe-core.
    options = {"bypass_csp": True, "color_scheme": theme}
    with serving(size) as (double, address), open_page(browser, **options) as (page, _):
        some = list(screens(double.data).items())[::every]
        paths = {name: address + path for name, path in some}
        found = {name: findings(page, url, packages) for name, url in paths.items()}
    assert {name: said for name, said in found.items() if said} == {}


def findings(page: Page, url: str, packages: Path) -> list[str]:
    """Open a screen, and return the serious findings of axe-core."""
    load(page, url)
    page.add_script_tag(path=packages / "node_modules" / "axe-core" / "axe.min.js")
    found: list[str] = page.evaluate(_RUN)
    return found
