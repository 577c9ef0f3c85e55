"""Translates the SDK's errors into the project's; every call into the SDK is awaited through `guarded`."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final, TypeVar

from aiokafka import errors as sdk

from triggerer.errors import BrokerError, BrokerRefused, BrokerUnavailable
from triggerer.pluginkit import guarding

T = TypeVar("T")

_REFUSED = (
    sdk.TopicAuthorizationFailedError,
    sdk.GroupAuthorizationFailedError,
    sdk.ClusterAuthorizationFailedError,
    sdk.AuthenticationFailedError,
    sdk.SaslAuthenticationFailed,
    sdk.AuthenticationMethodNotSupported,
    sdk.UnsupportedSaslMechanismError,
    sdk.IllegalSaslStateError,
    sdk.InvalidTopicError,
    sdk.InvalidGroupIdError,
    sdk.InvalidSessionTimeoutError,
    sdk.OffsetMetadataTooLargeError,
    sdk.MessageSizeTooLargeError,
    sdk.RecordTooLargeError,
    sdk.UnsupportedVersionError,
    sdk.IncompatibleBrokerVersion,
    sdk.UnsupportedCodecError,
)

_HINTS: tuple[tuple[type[Exception] | tuple[type[Exception], ...], str], ...] = (
    (sdk.TopicAuthorizationFailedError, "the Kafka user needs Read and Describe on the topic"),
    (sdk.GroupAuthorizationFailedError, "the Kafka user needs Read on the consumer group"),
    (
        (sdk.AuthenticationFailedError, sdk.SaslAuthenticationFailed),
        "check sasl_plain_username and sasl_plain_password, or the token",
    ),
    (sdk.UnsupportedSaslMechanismError, "check sasl_mechanism against the broker's listener"),
    (sdk.InvalidSessionTimeoutError, "session_timeout_ms is outside what the broker allows"),
    (sdk.MessageSizeTooLargeError, "raise max.message.bytes of the topic"),
    (sdk.RecordTooLargeError, "raise max_partition_fetch_bytes of the connection"),
    (sdk.UnsupportedCodecError, "install the compression library that the message names"),
    (
        (sdk.KafkaConnectionError, OSError),
        "is the broker running, and does bootstrap_servers name it?",
    ),
)


_SDK_ERRORS: Final = (
    sdk.KafkaError,
    sdk.ConsumerStoppedError,
    sdk.IllegalOperation,
    OSError,
    TimeoutError,
)


def translate(error: BaseException, what: str) -> BrokerError:
    """Return the project's error for an SDK error; the caller raises it `from` the original.

    Args:
        what: The beginning of the error's text, such as "commit to group g at localhost:9092".
    """
    kind = BrokerRefused if isinstance(error, _REFUSED) else BrokerUnavailable
    return kind(f"{what}: {str(error) or type(error).__name__}", hint=hint_for(type(error)))


def hint_for(error: type[BaseException]) -> str | None:
    """Return advice about an SDK error; None if there is none."""
    return next((text for sort, text in _HINTS if issubclass(error, sort)), None)


async def guarded(call: Awaitable[T], what: str) -> T:
    """Await a call into the SDK and translate its errors.

    Raises:
        BrokerUnavailable, BrokerRefused: See `translate`, and `triggerer.pluginkit.guarding`.
    """
    return await guarding.guarded(call, what, translate=translate, catch=_SDK_ERRORS)
