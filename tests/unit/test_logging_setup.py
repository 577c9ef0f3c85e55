"""What reaches the log."""

import logging

from triggerer.logging_setup import SeldomRepeats


def _record(name: str, message: str, at: float) -> logging.LogRecord:
    record = logging.LogRecord(name, logging.ERROR, "f.py", 1, message, ("x",), None)
    record.created = at
    return record


def test_a_library_says_the_same_thing_once_in_a_while_and_how_often_it_was_withheld() -> None:
    seldom = SeldomRepeats(["aiokafka"], every_s=10)
    passed = [
        record.getMessage()
        for at in range(25)
        if seldom.filter(record := _record("aiokafka.conn", "cannot reach %s", at))
    ]
    assert passed == [
        "cannot reach x",
        "cannot reach x (and 9 times more before)",
        "cannot reach x (and 9 times more before)",
    ]


def test_another_message_and_another_library_are_not_withheld() -> None:
    seldom = SeldomRepeats(["aiokafka"], every_s=10)
    assert seldom.filter(_record("aiokafka.conn", "one %s", 0))
    assert seldom.filter(_record("aiokafka.conn", "two %s", 0))
    assert seldom.filter(_record("triggerer.x", "one %s", 0))
    assert seldom.filter(_record("triggerer.x", "one %s", 0))
