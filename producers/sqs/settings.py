"""The settings of a connection to Amazon SQS, or to what speaks its API.

Imported when a connection is opened, not with the watchers: see `triggerer.pluginkit.connections`.
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
    """`[connections.<id>]` of an account. Every field is a key of that section, and none is needed.

    Without keys, a profile or a role the SDK looks in the places that all AWS tools look in.
    """

    optional: ClassVar[str | None] = "sqs"
    examples: ClassVar[Mapping[str, str]] = {
        "access_key_id": "env:AWS_ACCESS_KEY_ID",
        "secret_access_key": "env:AWS_SECRET_ACCESS_KEY",
    }

    region: OptionalText = None
    """None: as the queue's URL has it, or as the profile or the environment says."""
    endpoint_url: OptionalText = None
    """None: Amazon's own."""
    account: OptionalText = None
    """The id of the account that has the queues which are given by their names. With it, a queue's name and its URL are
    one stream, and a queue of another account may be read by its name. None: that of the credentials; where they are
    those of `role_arn`, it is known too."""
    access_key_id: OptionalText = None
    secret_access_key: OptionalText = field(default=None, repr=False)
    session_token: OptionalText = field(default=None, repr=False)
    profile: OptionalText = None
    """Of the SDK's configuration files."""
    role_arn: OptionalText = None
    """A role to assume with the credentials above."""
    external_id: OptionalText = field(default=None, repr=False)
    role_session_name: str = "triggerer"

    receivers: Positive = 4
    """The most polls at the same time. One is open always; the others only while there is a backlog."""
    receive_wait_s: Annotated[int, Field(gt=0, le=20)] = 10
    """How long a poll waits for messages. A poll that is open when the stream stops is waited for: what it brings would
    be invisible to others else. So stopping takes up to this long."""
    max_in_flight: Positive = 1_000
    """Messages that are received and neither deleted nor given back. Each of them is kept invisible to others."""
    visibility_timeout_s: Positive | None = None
    """What is renewed, in seconds; None: the queue's own. A message is received, and kept, for twice as long, so that
    one such period without a renewal loses none. After a crash, messages come again after up to twice this long."""
    dead_letter_queue: OptionalText = None
    """Name or URL. None: that of the queue's redrive policy."""
    connect_timeout_s: PositiveSeconds = 5.0
    request_timeout_s: PositiveSeconds = 10.0
    unavailable_after_s: PositiveSeconds = 30.0
    """A service that has not answered for this long ends the stream, which is then opened anew."""

    def check(self, where: str) -> None:
        """Refuse half of a pair of keys, and an account that is none.

        Raises:
            ConfigurationError: They do not go together.
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
                f"external_id is given in {where}, and no role_arn", hint="it goes with a role"
            )
