"""Which line of an error a table shows."""

import pytest

from triggerer.cli.output import one_line


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (None, None),
        ("", None),
        (
            "the worker was killed by SIGKILL; its last output:\nhello",
            "the worker was killed by SIGKILL; its last output:",
        ),
        (
            'Traceback (most recent call last):\n  File "x", line 1\nValueError: no',
            "ValueError: no",
        ),
    ],
)
def test_a_table_shows_the_reason_of_a_death_and_the_error_of_a_traceback(
    error: str | None, shown: str | None
) -> None:
    assert one_line(error) == shown
