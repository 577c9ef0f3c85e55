"""The system may refuse a thread for a while."""

import threading

import pytest

from triggerer.dag_processing.own_thread import OwnThread


async def test_a_call_waits_until_a_thread_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    start, refusals = threading.Thread.start, 2

    def refuse(thread: threading.Thread) -> None:
        nonlocal refusals
        if refusals:
            refusals -= 1
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert await OwnThread().call(threading.get_ident) != threading.get_ident()
    assert refusals == 0
