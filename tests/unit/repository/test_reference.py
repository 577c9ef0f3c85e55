"""The generated pages of docs/reference say what the code says."""

from pathlib import Path

import pytest

from tests.reference.log_events import log_events
from tests.reference.pages import LOG_EVENTS, PAGES


@pytest.mark.parametrize("page", [pytest.param(path, id=path.name) for path in PAGES])
def test_a_generated_page_is_up_to_date(page: Path) -> None:
    assert page.read_text() == PAGES[page](), "write it again: python -m tests.reference"


@pytest.mark.parametrize("page", [pytest.param(path, id=path.name) for path in PAGES])
def test_no_cell_of_a_generated_page_is_longer_than_a_glance(page: Path) -> None:
    rows = [line for line in PAGES[page]().splitlines() if line.startswith("|")]
    assert [cell for row in rows for cell in row.split(" | ") if len(cell) > 200] == []


def test_the_page_of_log_events_has_nearly_all_events_of_the_source() -> None:
    page = LOG_EVENTS.read_text()
    events = [one.event for one in log_events()]
    missing = [event for event in events if event not in page]
    assert len(events) > 80
    assert len(missing) < len(events) / 10, "write it again: python -m tests.reference"
