"""Translates the SDK's errors into the project's; every call into the SDK is awaited through `asked`."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, Final, TypeVar

from botocore import exceptions as sdk

from triggerer.errors import BrokerError, BrokerRefused, BrokerUnavailable
from triggerer.pluginkit.guarding import guarded

T = TypeVar("T")

_ALLOW: Final = (
    "the identity needs sqs:GetQueueUrl, GetQueueAttributes, ReceiveMessage, DeleteMessage and"
    " ChangeMessageVisibility on the queue, and SendMessage on its dead-letter queue"
)
_ASSUME: Final = "may the role_arn be assumed with these credentials?"
_KEYS: Final = "check access_key_id and secret_access_key, and that they are still active"

# The keys are the last parts of codes such as "AWS.SimpleQueueService.NonExistentQueue" and
# "com.amazonaws.sqs#QueueDoesNotExist".
_REFUSED: Final[Mapping[str, str | None]] = {
    "QueueDoesNotExist": "check the queue's name, the region and the account",
    "NonExistentQueue": "check the queue's name, the region and the account",
    "QueueDeletedRecently": "a queue's name is free again 60 seconds after its deletion",
    "AccessDenied": _ALLOW,
    "AccessDeniedException": _ALLOW,
    "InvalidClientTokenId": _KEYS,
    "UnrecognizedClientException": _KEYS,
    "SignatureDoesNotMatch": _KEYS,
    "MissingAuthenticationToken": _KEYS,
    "ExpiredToken": "the session_token has expired; a role_arn or a profile is renewed automatically",
    "ExpiredTokenException": "the session_token has expired; a role_arn or a profile is renewed automatically",
    "RequestExpired": "is this machine's clock right?",
    "OptInRequired": "the account is not enabled for this region",
    "KmsAccessDenied": "the identity needs kms:Decrypt on the queue's key",
    "KmsDisabled": "the queue's key is disabled",
    "KmsNotFound": "the queue's key is gone",
    "KmsInvalidState": "the queue's key cannot be used: is it about to be deleted?",
    "KmsInvalidKeyUsage": "the queue's key cannot encrypt",
    "KmsOptInRequired": "the account may not use the key management service",
    "InvalidAddress": "check the queue's URL, and that the connection's region is the one in it",
    "InvalidParameterValue": None,
    "InvalidParameterValueException": None,
    "InvalidAttributeValue": None,
    "InvalidMessageContents": None,
    "MessageTooLong": None,
    "BatchRequestTooLong": None,
    "UnsupportedOperation": None,
    "ValidationException": None,
}
_THROTTLED: Final = frozenset(
    {
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "RequestThrottled",
        "RequestThrottledException",
        "TooManyRequestsException",
        "RequestLimitExceeded",
        "SlowDown",
        "KmsThrottled",
        # Too many messages are in flight. SQS delivers further messages once some are deleted, so only wait.
        "OverLimit",
    }
)

CAUGHT: Final = (sdk.BotoCoreError, sdk.ClientError, OSError, RuntimeError, TimeoutError)
"""The errors of the SDK and of the network.

The SDK raises a plain `RuntimeError` if the source of the credentials returns credentials that have expired.
"""


class Throttled(BrokerUnavailable):
    """SQS answers, and demands fewer requests."""


def code_of(error: BaseException) -> str:
    """Return SQS's error code without its prefix; empty if SQS did not send the error."""
    if not isinstance(error, sdk.ClientError):
        return ""
    code = str(error.response.get("Error", {}).get("Code", ""))
    space, _, name = code.rpartition("#")[2].rpartition(".")
    if space == "KMS":
        # The code of a KMS error begins with `KMS.`. Keep this prefix, because SQS itself has errors with some of these
        # names, such as `AccessDeniedException`.
        return (
            "KmsThrottled"
            if name == "ThrottlingException"
            else f"Kms{name.removesuffix('Exception')}"
        )
    return name


def translate(error: BaseException, what: str) -> BrokerError:
    """Return the project's error for an SDK error; the caller raises it `from` the original."""
    if isinstance(error, sdk.ClientError):
        return _of_service(error, what)
    text = str(error) or type(error).__name__
    if isinstance(error, sdk.NoCredentialsError | sdk.PartialCredentialsError):
        return BrokerRefused(
            f"{what}: there are no credentials",
            hint="give access_key_id and secret_access_key, or a profile, or set them in the environment",
        )
    if isinstance(error, sdk.NoRegionError):
        return BrokerRefused(f"{what}: the region is not known", hint="give region")
    if isinstance(error, sdk.ProfileNotFound | sdk.ParamValidationError | sdk.InvalidRegionError):
        return BrokerRefused(f"{what}: {text}")
    if isinstance(error, sdk.CredentialRetrievalError):
        return BrokerUnavailable(f"{what}: {text}", hint=_ASSUME)
    if isinstance(error, RuntimeError):
        return BrokerUnavailable(
            f"{what}: {text}", hint="check the source of the credentials, and this machine's clock"
        )
    if isinstance(error, ValueError):
        return BrokerRefused(f"{what}: {text}", hint="check endpoint_url")
    if isinstance(error, sdk.EndpointConnectionError | sdk.ConnectTimeoutError):
        return BrokerUnavailable(
            f"{what}: no connection to {error.kwargs.get('endpoint_url')}",
            hint="is SQS (or its emulator) running, and are region and endpoint_url right?",
        )
    return BrokerUnavailable(f"{what}: {text}")


def _of_service(error: sdk.ClientError, what: str) -> BrokerError:
    code = code_of(error)
    answer = error.response.get("Error", {})
    said = str(answer.get("Message") or code)
    # Fit SQS's text into our sentence: most of its texts end with a full stop, and some are only the code.
    text = f"{what}: {said.rstrip('.')}" + (f" ({code})" if code and code not in said else "")
    if code in _THROTTLED:
        return Throttled(text)
    if code in _REFUSED:
        return BrokerRefused(text, hint=_REFUSED[code])
    if error.operation_name == "AssumeRole":
        return BrokerRefused(text, hint=_ASSUME)
    if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") in (401, 403):
        return BrokerRefused(text, hint=_ALLOW)
    return BrokerUnavailable(text)


async def asked(call: Awaitable[T], what: str) -> T:
    """Await a call into the SDK.

    Args:
        what: The beginning of the error's text, such as "receiving from queue q".
    Raises:
        BrokerUnavailable, BrokerRefused: See `translate`, and `triggerer.pluginkit.guarding.guarded`.
    """
    return await guarded(call, what, translate=translate, catch=CAUGHT)


def describe_failure(entry: Mapping[str, Any]) -> str:
    """Describe one failed entry of a batch, for a log line."""
    return f"{entry.get('Message') or ''} ({entry.get('Code')})".strip()
