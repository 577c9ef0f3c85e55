"""Checks targets and sends messages in a child process, which is killed at a deadline."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream

from triggerer.domain.notifications import NotificationText
from triggerer.errors import ConfigurationError
from triggerer.notifications.apprise_library import require_apprise
from triggerer.processes.child_process import ChildProcess
from triggerer.processes.ipc import ChannelClosed

_MODULE: Final = "triggerer.notifications.child"
_CHECK_TIMEOUT: Final = timedelta(seconds=60)

Numbered = tuple[int, NotificationText]
"""A message with its id."""
Outcome = tuple[int, str | None]
"""The id of a message and the error; None: the target accepted the message."""
OnOutcome = Callable[[int, str | None], Awaitable[None]]
"""Called with the parts of an `Outcome`."""


async def check_targets(urls: Mapping[str, str]) -> None:
    """Check that Apprise is installed and understands these URLs.

    Args:
        urls: The URLs by the names of their targets.
    Raises:
        ConfigurationError: Apprise is not installed or does not understand a URL, or the check could not start or took
            too long. The message shows no secret.
    """
    if not urls:
        return
    require_apprise()
    refused: list[str] | None = None

    def take(frame: dict[str, Any]) -> None:
        nonlocal refused
        refused = frame.get("refused")

    with anyio.move_on_after(_CHECK_TIMEOUT.total_seconds()):
        try:
            process = await _start()
            await _converse(process, {"type": "check", "urls": dict(urls)}, take)
        except OSError as error:
            raise ConfigurationError(f"[notify] urls cannot be checked: {error}") from error
    if refused is None:
        raise ConfigurationError("[notify] urls cannot be checked: the check did not end")
    if refused:
        raise ConfigurationError(
            f"[notify] urls: Apprise does not understand {', '.join(refused)}",
            hint="its scheme is unknown, or a part is missing: https://appriseit.com lists the URLs",
        )


async def send_messages(
    urls: Mapping[str, str],
    messages: Mapping[str, Sequence[Numbered]],
    on_outcome: OnOutcome,
    *,
    deadline: timedelta,
) -> None:
    """Send each target its messages, in order, until one fails. Targets do not wait for one another.

    `on_outcome` receives:

    - The outcome of each message that a target has accepted or refused.
    - After the deadline, or the death of the child process: an error for the next message of each target that has
      refused none. The child may just have sent this message.

    The deadline does not interrupt `on_outcome`. Otherwise a slow store would lose outcomes, and accepted messages
    would be sent again.

    Args:
        urls: The URLs by the names of their targets.
        messages: The messages by the names of their targets.
        deadline: The time after which no message is sent. The calls of `on_outcome` may take longer.
    Raises:
        OSError: No process can be started.
    Cancellation: The sending is ended. Some messages without an outcome may have been sent.
    """
    left = {target: [id_ for id_, _ in many] for target, many in messages.items()}
    target_of = {id_: target for target, ids in left.items() for id_ in ids}
    order = _order(urls, messages)
    # Start the process outside the group, because the group would wrap an `OSError` in an `ExceptionGroup`.
    process = await _start()
    # A message has at most one outcome, so the buffer has room for every outcome.
    outcomes, to_pass_on = anyio.create_memory_object_stream[Outcome](len(target_of))

    def take(frame: dict[str, Any]) -> None:
        if frame["type"] == "end":
            return
        id_, error = frame["id"], frame["error"]
        target = target_of[id_]
        left[target].remove(id_)
        if error is not None:
            # The child does not try the target's other messages.
            del left[target]
        outcomes.send_nowait((id_, error))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_pass_on, to_pass_on, on_outcome)
        with outcomes:
            reason = f"no answer within {deadline.total_seconds():g} s"
            with anyio.move_on_after(deadline.total_seconds()):
                if await _converse(process, order, take):
                    return
                reason = "the process that sends ended"
            for ids in left.values():
                if ids:
                    outcomes.send_nowait((ids[0], reason))


async def _pass_on(outcomes: MemoryObjectReceiveStream[Outcome], on_outcome: OnOutcome) -> None:
    with outcomes:
        async for id_, error in outcomes:
            await on_outcome(id_, error)


def _order(urls: Mapping[str, str], messages: Mapping[str, Sequence[Numbered]]) -> dict[str, Any]:
    targets = [
        {
            "url": urls[target],
            "messages": [{"id": id_, "message": asdict(one)} for id_, one in many],
        }
        for target, many in messages.items()
    ]
    return {"type": "send", "targets": targets}


async def _start() -> ChildProcess:
    # The output is captured and not shown, because a library may print an error with a secret.
    return await ChildProcess.start(_MODULE, captures_output=True)


async def _converse(
    process: ChildProcess, order: dict[str, Any], take: Callable[[dict[str, Any]], None]
) -> bool:
    """Send an order to a new child process, pass the child's frames to `take`, and end the child.

    Returns:
        True if the child has finished the order. False if it ended earlier.
    """
    has_ended = False
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(process.supervise)
            with suppress(ChannelClosed):
                await process.channel.send(order)
                while not has_ended:
                    frame = await process.channel.receive()
                    has_ended = frame["type"] == "end"
                    take(frame)
            tasks.cancel_scope.cancel()
    finally:
        await process.aclose()
    return has_ended
