"""The names and attributes of a queue. Synchronous, without I/O."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

logger = logging.getLogger(__name__)

LONGEST_VISIBILITY_S: Final = 12 * 60 * 60
"""The longest time for which SQS keeps a received message invisible."""
_WITHOUT_VISIBILITY_S: Final = 30
_USUAL_PORTS: Final = {"https": 443, "http": 80}
_ROLE: Final = re.compile(r"arn:[^:]*:iam::(\d+):role/")


@dataclass(frozen=True, slots=True)
class DeadLetterQueue:
    """The queue to which a redrive policy sends messages that were received too often."""

    name: str
    account: str
    max_receive_count: int


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue as its attributes describe it.

    Attributes:
        visibility_s: The visibility timeout: the connection's setting, or else the queue's own. Our requests ask for
            `lease_s`, usually twice as long.
        redrive: The queue's own redrive policy; None: it has none.
        retention_s: How long the queue stores a message; None: SQS does not say.
    """

    url: str
    name: str
    is_fifo: bool
    visibility_s: int
    redrive: DeadLetterQueue | None
    retention_s: int | None = None

    @property
    def lease_s(self) -> int:
        """How long a poll or a renewal keeps a message invisible to other receivers.

        The time is two visibility timeouts, so that one missed renewal loses no message.
        """
        return min(2 * self.visibility_s, LONGEST_VISIBILITY_S)


def is_url(queue: str) -> bool:
    """Whether the text is a URL, and not a queue's name."""
    return "://" in queue


def name_of(queue: str) -> str:
    """Return the name of a queue from its name or URL."""
    return queue.rstrip("/").rpartition("/")[2] if is_url(queue) else queue


def canonical(queue: str) -> str:
    """Return a queue's name unchanged, or its URL normalized, so that all URLs of one queue are equal.

    Two older host names are replaced: `<region>.queue.amazonaws.com` by `sqs.<region>.amazonaws.com`, and
    `queue.amazonaws.com` by `sqs.us-east-1.amazonaws.com`.
    """
    if not is_url(queue):
        return queue
    parts = urlsplit(queue)
    host = (parts.hostname or "").removesuffix(".")
    if host == "queue.amazonaws.com":
        host = "sqs.us-east-1.amazonaws.com"
    elif host.endswith(".queue.amazonaws.com"):
        host = f"sqs.{host.removesuffix('.queue.amazonaws.com')}.amazonaws.com"
    if ":" in host:
        host = f"[{host}]"
    if parts.port is not None and parts.port != _USUAL_PORTS.get(parts.scheme):
        host = f"{host}:{parts.port}"
    return f"{parts.scheme}://{host}{parts.path.rstrip('/')}"


def identity(queue: str, connection: Mapping[str, Any]) -> str:
    """Return the same identity for a queue's name and URL, if the connection's settings show that they belong together.

    A name is its own identity. A URL is reduced to the name if it contains the connection's account, and the
    connection's endpoint or region. Any other URL is normalized by `canonical`.

    Args:
        connection: The keys and values of the connection's section.
    """
    if not is_url(queue):
        return queue
    url, name, account = canonical(queue), name_of(queue), account_of(connection)
    endpoint, region = connection.get("endpoint_url"), str(connection.get("region") or "")
    if not endpoint and region:
        suffix = ".cn" if region.startswith("cn-") else ""
        endpoint = f"https://sqs.{region}.amazonaws.com{suffix}"
    if account and endpoint and url == f"{canonical(str(endpoint))}/{account}/{name}":
        return name
    return url


def account_of(connection: Mapping[str, Any]) -> str | None:
    """Return the account of queues that are given by name: the key `account`, else the account in `role_arn`."""
    if account := connection.get("account"):
        return str(account)
    role = _ROLE.match(str(connection.get("role_arn") or ""))
    return None if role is None else role[1]


def describe(url: str, attributes: Mapping[str, str], visibility_timeout_s: int | None) -> Queue:
    """Make a queue from the attributes that SQS returned.

    Args:
        visibility_timeout_s: The connection's setting, which overrides the queue's own.
    """
    name = name_of(url)
    # With a timeout of 0, a received message would never be invisible to other receivers. So use a timeout of our own.
    own = int(attributes.get("VisibilityTimeout", 0)) or _WITHOUT_VISIBILITY_S
    retention = attributes.get("MessageRetentionPeriod")
    return Queue(
        url,
        name,
        # Look at the name too, because some compatible services do not send the attribute.
        attributes.get("FifoQueue") == "true" or name.endswith(".fifo"),
        min(visibility_timeout_s or own, LONGEST_VISIBILITY_S),
        _redrive(name, attributes.get("RedrivePolicy")),
        None if retention is None else int(retention),
    )


def _redrive(queue: str, policy: str | None) -> DeadLetterQueue | None:
    if not policy:
        return None
    try:
        stated = json.loads(policy)
        *_, account, name = str(stated["deadLetterTargetArn"]).split(":")
        return DeadLetterQueue(name, account, int(stated["maxReceiveCount"]))
    except (KeyError, TypeError, ValueError) as error:
        logger.warning("the redrive policy of queue %s cannot be read: %r", queue, error)
        return None
