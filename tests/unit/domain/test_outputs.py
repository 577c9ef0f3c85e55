"""The identity of a task's output."""

from __future__ import annotations

from tests.run_orders import order
from triggerer.domain.attempts import Repeat
from triggerer.domain.outputs import output_token


def test_a_token_is_the_same_text_in_every_release() -> None:
    # Stored outputs have this token: with another digest, each output would be written a second time.
    assert output_token("sales", "manual__1", "load", 0) == "3ae96a3278b378e69de2ddef9f528325"


def test_dag_run_task_and_repetition_each_give_another_token() -> None:
    tokens = {
        output_token(*parts)
        for parts in (
            ("d", "r", "t", 0),
            ("e", "r", "t", 0),
            ("d", "s", "t", 0),
            ("d", "r", "u", 0),
            ("d", "r", "t", 1),
            # Names that run into each other without a separator that no name contains.
            ("d/r", "", "t", 0),
            ("d", '", "r', "t", 0),
        )
    }
    assert len(tokens) == 7


def test_every_attempt_has_one_token_until_its_task_is_cleared() -> None:
    first = order(1, attempt=1).output_token("t")
    assert order(1, attempt=2).output_token("t") == first
    assert order(1, attempt=2, repeat=Repeat(after_attempt=1)).output_token("t") == first
    cleared = order(1, attempt=2, repeat=Repeat(cleared={"t": 1}))
    assert cleared.output_token("t") == output_token("d", "run 1", "t", 1) != first
    assert cleared.output_token("u") == output_token("d", "run 1", "u", 0)
