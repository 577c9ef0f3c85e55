"""What is known of a queue. Synchronous, without I/O."""

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
"""The service renews a message's visibility timeout for at most this long after it was received."""
_WITHOUT_VISIBILITY_S: Final = 30
_USUAL_PORTS: Final = {"https": 443, "http": 80}
_ROLE: Final = re.compile(r"arn:[^:]*:iam::(\d+):role/")


@dataclass(frozen=True, slots=True)
class DeadLetterQueue:
    """Where a queue's redrive policy sends what was received too often."""

    name: str
    account: str
    max_receive_count: int


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue as its attributes describe it.

    Attributes:
        visibility_s: How long a message is kept invisible to others: the period that is renewed.
        redrive: The queue's own redrive policy; None: it has none.
        retention_s: How long it keeps a message; None: the service does not say.
    """

    url: str
    name: str
    is_fifo: bool
    visibility_s: int
    redrive: DeadLetterQueue | None
    retention_s: int | None = None

    @property
    def lease_s(self) -> int:
        """For how long messages are taken, and renewed: two periods, so that one without a renewal loses none."""
        return min(2 * self.visibility_s, LONGEST_VISIBILITY_S)


def is_url(queue: str) -> bool:
    """Whether a queue is given by its URL."""
    return "://" in queue


def name_of(queue: str) -> str:
    """The name of a queue that is given by its name or its URL."""
    return queue.rstrip("/").rpartition("/")[2] if is_url(queue) else queue


def canonical(queue: str) -> str:
    """A queue's name as it is, and one spelling of all that its URL may have: two URLs of a queue are equal then.

    Source: the service's older endpoints, `queue.amazonaws.com` and `<region>.queue.amazonaws.com`, name the same
    queues as `sqs.<region>.amazonaws.com`.
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
    """What a queue is known by among all ways to name it, as far as the connection's settings say.

    The name alone for the URL of a queue in the account, and in the region or at the endpoint, whose names the
    connection looks up; of any other URL its one spelling. A connection that states no account, or neither region nor
    endpoint, leaves that to credentials and environment: then a name and a URL are two.

    Args:
        connection: The section's keys and values.
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
    """The account in which a connection looks names up, as far as its settings say: `account`, or that of its role."""
    if account := connection.get("account"):
        return str(account)
    role = _ROLE.match(str(connection.get("role_arn") or ""))
    return None if role is None else role[1]


def describe(url: str, attributes: Mapping[str, str], visibility_timeout_s: int | None) -> Queue:
    """A queue, from what the service says of it.

    Args:
        visibility_timeout_s: The connection's setting, which is preferred to the queue's own.
    """
    name = name_of(url)
    # A queue whose messages stay visible would give each to several receivers.
    own = int(attributes.get("VisibilityTimeout", 0)) or _WITHOUT_VISIBILITY_S
    retention = attributes.get("MessageRetentionPeriod")
    return Queue(
        url,
        name,
        # Not all services tell.
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
