"""The settings of a connection to Amazon SQS, or to a service that speaks its API.

This module is imported only when a connection is opened: pydantic would slow down the parsing of DAG files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from pydantic import Field

from triggerer.errors import ConfigurationError
from triggerer.pluginkit.connections import (
    DeliverySettings,
    OptionalText,
    Positive,
    PositiveSeconds,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SqsSettings(DeliverySettings):
    """`[connections.<id>]` for an AWS account. Every field is an optional key of that section.

    The section may contain access keys or a profile, and a role to assume. Without keys and without a profile, Amazon's
    SDK looks for credentials in the usual places: environment variables, `~/.aws`, and the metadata of the machine.
    """

    optional: ClassVar[str | None] = "sqs"
    examples: ClassVar[Mapping[str, str]] = {
        "access_key_id": "env:AWS_ACCESS_KEY_ID",
        "secret_access_key": "env:AWS_SECRET_ACCESS_KEY",
    }

    region: OptionalText = None
    """The queue's region. None: the region in the queue's URL, else the region of the profile or the environment."""
    endpoint_url: OptionalText = None
    """The URL of the API. None: Amazon's own."""
    account: OptionalText = None
    """The id of the account that owns queues given by name. None: the account of `role_arn` or of the credentials.

    With `account` or `role_arn`, and `region` or `endpoint_url`, a watcher that states a queue's name shares the stream
    of a watcher that states its URL.
    """
    access_key_id: OptionalText = None
    secret_access_key: OptionalText = field(default=None, repr=False)
    session_token: OptionalText = field(default=None, repr=False)
    profile: OptionalText = None
    """A profile in the SDK's configuration files."""
    role_arn: OptionalText = None
    """A role to assume with the credentials above."""
    external_id: OptionalText = field(default=None, repr=False)
    role_session_name: str = "triggerer"

    receivers: Positive = 4
    """The most polls at the same time. Usually one poll is open, and more only while the queue has many messages."""
    receive_wait_s: Annotated[int, Field(gt=0, le=20)] = 10
    """How long a poll waits for messages, in seconds. Stopping can take this long, because a stream waits for its open
    polls. The messages of a cancelled poll would stay invisible to all receivers for a while.
    """
    max_in_flight: Positive = 1_000
    """The most messages that are received, and neither deleted nor given back. Other receivers do not see them."""
    visibility_timeout_s: Positive | None = None
    """The visibility timeout in seconds; None: the queue's own. A receipt or a renewal keeps a message invisible for
    twice this time, so that one missed renewal loses no message. After a crash, messages come again after up to twice
    this time.
    """
    dead_letter_queue: OptionalText = None
    """Name or URL of the dead-letter queue. None: the queue of the redrive policy."""
    connect_timeout_s: PositiveSeconds = 5.0
    request_timeout_s: PositiveSeconds = 10.0
    unavailable_after_s: PositiveSeconds = 30.0
    """If SQS does not answer for this long, the stream ends and is opened again."""

    def check(self, where: str) -> None:
        """Check the settings that depend on each other, and the account's id.

        Raises:
            ConfigurationError: Two settings exclude each other, a setting needs one that is missing, or `account` is no
                number.
        """
        pair = {
            "access_key_id": self.access_key_id,
            "secret_access_key": self.secret_access_key,
        }
        missing = [name for name, value in pair.items() if not value]
        if len(missing) == 1 or (missing and self.session_token):
            raise ConfigurationError(
                f"{missing[0]} is missing in {where}",
                hint="give access_key_id and secret_access_key, or neither of them",
            )
        if self.access_key_id and self.profile:
            raise ConfigurationError(
                f"both profile and access_key_id are given in {where}", hint="give one of them"
            )
        if self.account and not (self.account.isascii() and self.account.isdigit()):
            raise ConfigurationError(
                f"account in {where} is {self.account!r}", hint="the account's id is twelve digits"
            )
        if self.external_id and not self.role_arn:
            raise ConfigurationError(
                f"external_id is given in {where}, and no role_arn",
                hint="external_id needs a role_arn",
            )
