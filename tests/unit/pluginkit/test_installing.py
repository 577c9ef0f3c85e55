"""A client library that is missing."""

import subprocess
import sys

import pytest

# A program that uses a broker whose client library is missing. None in `sys.modules` makes the library's import fail.
_WITHOUT = """
import sys
sys.modules["{module}"] = None
import asyncio
from watchers.messaging import MessageQueueTrigger

trigger = MessageQueueTrigger("{broker}:///q")
for call in (lambda: asyncio.run(trigger.check_source()), trigger.make_producer):
    try:
        call()
    except ModuleNotFoundError as error:
        print(error)
"""


@pytest.mark.parametrize(
    ("broker", "module"), [("pubsub", "grpc"), ("servicebus", "azure.servicebus")]
)
def test_a_library_that_is_missing_is_named_with_the_extra_that_brings_it(
    broker: str, module: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT.format(broker=broker, module=module)],
        capture_output=True,
        text=True,
        check=True,
    )
    first, second = done.stdout.splitlines()
    assert module in first
    assert first == second
    assert first.endswith(f"(pip install 'triggerer[{broker}]')")
