"""A task that writes into the channel of its process fails its own run, and nothing else."""

from __future__ import annotations

import json
import re
import struct

import anyio
import pytest

from tests.executor.conftest import House
from triggerer.processes.ipc import MAX_FRAME_BYTES, _frame

WRITES = """
    import socket

    def write_into_the_channel(data):
        # Like a task that writes to a descriptor which it wrongly takes for its own.
        for fd in os.listdir("/proc/self/fd"):
            try:
                found = socket.socket(fileno=os.dup(int(fd)))
            except OSError:
                continue
            with found:
                if found.family == socket.AF_UNIX:
                    found.sendall(data)

    with DAG("writes"):
        @task
        def writes(params):
            with open(f"{__file__}.began", "a") as file:
                file.write("once ")
            write_into_the_channel(bytes.fromhex(params["data"]))
            if params["exits"]:
                os._exit(0)
            time.sleep(60)
        writes()

    with DAG("leaves_behind"):
        @task
        def leaves_behind(params):
            import threading

            # After the run has ended, and before the worker is given the next one.
            threading.Timer(0.5, write_into_the_channel, [bytes.fromhex(params["data"])]).start()
        leaves_behind()

    with DAG("harmless"):
        @task
        def harmless():
            pass
        harmless()
    """


def _json(document: object) -> bytes:
    return _frame(json.dumps(document).encode())


RESULT = {"task_id": "t", "state": "success", "try_number": 1, "started_at": None, "ended_at": None}
RESULT |= {"error": None, "events": []}
END = {
    "state": "success",
    "ended_at": "2026-01-01T00:00:00+00:00",
    "error": None,
    "exit_code": None,
}

MALFORMED = {
    "garbage": b"Traceback (most recent call last):\n" * 10,
    "zeros": bytes(100),
    "a huge length": _frame(b"")[:4] + struct.pack("!I", MAX_FRAME_BYTES + 1),
    "no JSON": _frame(b"{'type': 'ready'}"),
    "a list": _json([1, 2]),
    "no type": _json({"run": 1}),
    "an unknown type": _json({"type": "reday"}),
    "a report of the wrong shape": _json({"type": "results", "run": 1, "report": {"tasks": 3}}),
    "events of the wrong shape": _json(
        {
            "type": "results",
            "run": 1,
            "report": {"tasks": [{**RESULT, "events": [1]}], "end": None},
        }
    ),
    "an end that is none": _json(
        {
            "type": "results",
            "run": 1,
            "report": {"tasks": [], "end": {**END, "state": "queued"}},
        }
    ),
    "a query of the wrong shape": _json({"type": "query", "run": 1, "number": "x", "what": 3}),
}


@pytest.mark.parametrize("kind", MALFORMED)
async def test_a_malformed_frame_fails_the_run_that_wrote_it(house: House, kind: str) -> None:
    await house.add_dag("writes", WRITES)
    await house.add_dag("harmless", WRITES)
    async with house.executor(workers=1):
        params = {"data": MALFORMED[kind].hex(), "exits": False}
        (pk,) = await house.queue("writes", params=params)
        (run,) = await house.ended(pk)
        assert run.state == "failed"
        assert "cannot be understood" in run.error
        (run,) = await house.ended(*await house.queue("harmless"))
        assert run.state == "success"


async def test_half_a_frame_fails_the_run_that_wrote_it(house: House) -> None:
    await house.add_dag("writes", WRITES)
    await house.add_dag("harmless", WRITES)
    async with house.executor(workers=1):
        params = {"data": _frame(b"x" * 1000)[:500].hex(), "exits": True}
        (run,) = await house.ended(*await house.queue("writes", params=params))
        assert run.state == "failed"
        (run,) = await house.ended(*await house.queue("harmless"))
        assert run.state == "success"


async def test_half_a_frame_of_which_no_more_comes_fails_the_run_that_wrote_it(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("triggerer.processes.ipc._STALL_S", 0.5)
    await house.add_dag("writes", WRITES)
    async with house.executor(workers=1):
        params = {"data": _frame(b"x" * 1000)[:500].hex(), "exits": False}
        (run,) = await house.ended(*await house.queue("writes", params=params))
    assert run.state == "failed"
    # 492 bytes of data came. The reader may count a later frame as the missing bytes.
    assert re.search(r"only (492|6\d\d) of a frame's 1,000 bytes came", run.error)


@pytest.mark.parametrize(
    "query",
    [
        {"what": "everything", "fields": {}},
        {"what": "inlet", "fields": {"uri": [1], "alias": None}},
        {"what": "inlet_page", "fields": {"page": 1}},
    ],
)
async def test_a_question_that_cannot_be_answered_harms_nobody(
    house: House, query: dict[str, object]
) -> None:
    await house.add_dag("writes", WRITES)
    await house.add_dag("harmless", WRITES)
    async with house.executor(workers=1):
        frame = {"type": "query", "run": 1, "number": 7, **query}
        (pk,) = await house.queue("writes", params={"data": _json(frame).hex(), "exits": True})
        assert pk == 1
        await house.ended(pk)
        (run,) = await house.ended(*await house.queue("harmless"))
        assert run.state == "success"


async def test_remains_of_a_run_do_not_fail_the_next_one(house: House) -> None:
    await house.add_dag("leaves_behind", WRITES)
    await house.add_dag("harmless", WRITES)
    async with house.executor(workers=1):
        (pk,) = await house.queue("leaves_behind", params={"data": MALFORMED["garbage"].hex()})
        (run,) = await house.ended(pk)
        assert run.state == "success"
        await anyio.sleep(1)
        (run,) = await house.ended(*await house.queue("harmless"))
        assert (run.state, run.attempt) == ("success", 1)


async def test_a_run_that_writes_what_is_no_frame_is_not_executed_again(house: House) -> None:
    """The worker has executed another run before, which could have left these bytes. This run fails nevertheless."""
    await house.add_dag("writes", WRITES)
    await house.add_dag("harmless", WRITES)
    async with house.executor(workers=1):
        await house.ended(*await house.queue("harmless"))
        params = {"data": MALFORMED["garbage"].hex(), "exits": False}
        (run,) = await house.ended(*await house.queue("writes", params=params))
        assert (run.state, run.attempt) == ("failed", 1)
        assert "cannot be understood" in run.error
    (began,) = house.dags_folder.glob("*.began")
    assert began.read_text() == "once "
