"""`python -m tests.reference`: write the generated pages of docs/reference again."""

from __future__ import annotations

from tests.reference.monitoring import log_page
from tests.reference.pages import LOG_EVENTS, PAGES

if __name__ == "__main__":
    for path, render in PAGES.items():
        path.write_text(render())
    LOG_EVENTS.write_text(log_page())
