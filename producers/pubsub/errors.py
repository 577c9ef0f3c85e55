"""Translates the SDK's errors into the project's errors. Every call into the SDK is awaited through `guarded`."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, Final, TypeVar

import grpc
from google.api_core.exceptions import GoogleAPICallError, GoogleAPIError
from google.auth.exceptions import GoogleAuthError
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from triggerer.errors import BrokerError, BrokerRefused, BrokerUnavailable
from triggerer.pluginkit import guarding

T = TypeVar("T")

_SDK_ERRORS: Final = (GoogleAPIError, GoogleAuthError, grpc.RpcError, OSError)
_DETAILS_KEY: Final = "grpc-status-details-bin"

_REFUSED: Final = frozenset(
    {
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)
_HINTS: Final = {
    grpc.StatusCode.NOT_FOUND: "does it exist in this project? gcloud pubsub subscriptions list shows all",
    grpc.StatusCode.PERMISSION_DENIED: "the account needs the role roles/pubsub.subscriber on the subscription",
    grpc.StatusCode.UNAUTHENTICATED: "check credentials_file, or the application default credentials",
    grpc.StatusCode.FAILED_PRECONDITION: "only a pull subscription that is attached to its topic can be read",
    grpc.StatusCode.UNAVAILABLE: "is it reachable from here? check emulator_host, endpoint and proxies",
}


def code_of(error: BaseException) -> grpc.StatusCode | None:
    """Return the status of a failed RPC; None if the error does not come from an RPC."""
    if isinstance(error, GoogleAPICallError):
        return error.grpc_status_code
    code = getattr(error, "code", None)
    return code() if isinstance(error, grpc.RpcError) and callable(code) else None


def is_permanent(error: BaseException) -> bool:
    """Whether a repeat would fail in the same way."""
    return code_of(error) in _REFUSED


def translate(error: BaseException, what: str) -> BrokerError:
    """Return the project's error for an SDK error; the caller raises it `from` the original.

    Args:
        what: The beginning of the error's text, such as "acknowledging 3 messages of projects/p/subscriptions/s".
    """
    code = code_of(error)
    message = getattr(error, "message", None)
    if message is None and isinstance(error, grpc.RpcError):
        details = getattr(error, "details", None)
        message = details() if callable(details) else None
    text = str(message or error) or type(error).__name__
    if code is not None:
        text = f"{code.name}: {text}"
    kind = BrokerRefused if code in _REFUSED else BrokerUnavailable
    hint = None if code is None else _HINTS.get(code)
    if isinstance(error, GoogleAuthError) or "Getting metadata from plugin failed" in text:
        hint = _HINTS[grpc.StatusCode.UNAUTHENTICATED]
    return kind(f"{what}: {text}", hint=hint)


async def guarded(call: Awaitable[T], what: str) -> T:
    """Await a call into the SDK and translate its errors, as `triggerer.pluginkit.guarding` describes."""
    return await guarding.guarded(call, what, translate=translate, catch=_SDK_ERRORS)


def failed_ids(error: BaseException) -> Mapping[str, str]:
    """Return, by ack id, why an exactly-once subscription refused the id: `TRANSIENT_…` or `PERMANENT_…`.

    The result is empty if the error applies to the whole request.
    """
    response: Any = error.response if isinstance(error, GoogleAPICallError) else error
    read = getattr(response, "trailing_metadata", None)
    found: dict[str, str] = {}
    for key, value in (read() if callable(read) else None) or ():
        if key != _DETAILS_KEY:
            continue
        status = Status()
        status.ParseFromString(value if isinstance(value, bytes) else value.encode("latin-1"))
        for detail in status.details:
            info = ErrorInfo()
            if detail.Is(ErrorInfo.DESCRIPTOR) and detail.Unpack(info):
                found.update(info.metadata)
    return {
        ack_id: reason
        for ack_id, reason in found.items()
        if reason.startswith(("TRANSIENT_", "PERMANENT_"))
    }
