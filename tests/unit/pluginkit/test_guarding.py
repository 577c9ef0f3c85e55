"""Calls into a client library."""

import asyncio

import anyio
import pytest

from triggerer.errors import BrokerError, BrokerRefused, BrokerUnavailable
from triggerer.pluginkit.guarding import guarded


class SdkError(Exception):
    pass


def translate(error: BaseException, what: str) -> BrokerError:
    return BrokerRefused(f"{what}: {error}")


async def failing(error: BaseException) -> None:
    await anyio.lowlevel.checkpoint()
    raise error


async def call(error: BaseException) -> None:
    await guarded(failing(error), "read here", translate=translate, catch=(SdkError,))


async def test_the_librarys_errors_are_translated_and_kept_as_the_cause() -> None:
    error = SdkError("no")
    with pytest.raises(BrokerRefused, match="read here: no") as refused:
        await call(error)
    assert refused.value.__cause__ is error


async def test_our_own_errors_and_those_that_are_not_named_pass() -> None:
    with pytest.raises(BrokerUnavailable, match="away"):
        await call(BrokerUnavailable("away"))
    with pytest.raises(LookupError):
        await call(LookupError())


async def test_a_cancellation_that_the_library_made_up_is_an_error_of_the_broker() -> None:
    with pytest.raises(BrokerUnavailable, match="read here: the client library cancelled itself"):
        await call(asyncio.CancelledError())


async def test_a_cancellation_of_ours_passes() -> None:
    with anyio.move_on_after(0) as scope:
        await guarded(anyio.sleep_forever(), "read", translate=translate, catch=(SdkError,))
    assert scope.cancelled_caught

    task = asyncio.ensure_future(
        guarded(anyio.sleep_forever(), "read", translate=translate, catch=(SdkError,))
    )
    await anyio.lowlevel.checkpoint()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancellation_that_the_library_puts_in_the_place_of_ours_is_still_ours() -> None:
    async def replacing() -> None:
        # grpc does this: our cancellation cancels the call, which then raises a cancellation of its own.
        ended = asyncio.get_running_loop().create_future()
        try:
            await anyio.sleep_forever()
        except asyncio.CancelledError:
            ended.cancel()
        await ended

    with anyio.move_on_after(0.01) as scope:
        await guarded(replacing(), "read", translate=translate, catch=(SdkError,))
    assert scope.cancelled_caught
