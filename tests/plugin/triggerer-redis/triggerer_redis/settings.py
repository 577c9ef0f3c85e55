"""The settings under `[connections.<id>]`, and the client that they make."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from redis import exceptions
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from triggerer.errors import BrokerError, BrokerRefused, BrokerUnavailable, ConfigurationError
from triggerer.pluginkit.connections import DeliverySettings, OptionalText
from triggerer.pluginkit.guarding import guarded

T = TypeVar("T")

# Errors of a Redis that starts, fails over or has no room. A command may succeed when it is repeated later.
_PASSING = (
    "LOADING",
    "BUSY ",
    "MASTERDOWN",
    "NOREPLICAS",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "READONLY",
    "OOM ",
)
_REFUSALS = (exceptions.AuthenticationError, exceptions.NoPermissionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisSettings(DeliverySettings):
    """The keys of `[connections.<id>]`. The base class has the keys of the delivery policy.

    Attributes:
        dead_letters: If True, an entry that was given up or rejected goes to the stream `<stream>:dead-letters`. If
            False, a rejected entry is skipped, and a failed entry is delivered again for ever.
        answer_within_s: Seconds that a command may take. After that the server counts as unavailable.
    """

    host: str = "localhost"
    port: int = 6379
    db: int = 0
    username: OptionalText = None
    password: OptionalText = field(default=None, repr=False)
    tls: bool = False
    tls_ca_file: OptionalText = None
    dead_letters: bool = True
    answer_within_s: float = 10.0

    def check(self, where: str) -> None:
        if self.username and not self.password:
            raise ConfigurationError(f"password is missing in {where}: there is a username")
        if self.tls_ca_file and not self.tls:
            raise ConfigurationError(f"tls is not set in {where}, and tls_ca_file is")

    @property
    def server(self) -> str:
        """The server's address for messages, without a secret."""
        return f"{self.host}:{self.port}/{self.db}"

    def connect(self) -> Redis:
        """Return a client, which connects at its first command.

        The client does not retry. A retry after a lost answer might add an entry twice.
        """
        tls: dict[str, Any] = {"ssl": True, "ssl_ca_certs": self.tls_ca_file} if self.tls else {}
        return Redis(
            host=self.host,
            port=self.port,
            db=self.db,
            username=self.username,
            password=self.password,
            socket_timeout=self.answer_within_s,
            socket_connect_timeout=self.answer_within_s,
            retry=Retry(NoBackoff(), 0),
            client_name="triggerer",
            **tls,
        )


async def ask(call: Awaitable[T], what: str) -> T:
    """Await a command, and translate the client's errors.

    Raises:
        BrokerUnavailable: Redis does not answer, or cannot do the command now.
        BrokerRefused: Redis refuses the command.
    """
    return await guarded(call, what, translate=_translate, catch=(exceptions.RedisError, OSError))


def is_answer(refused: BrokerRefused, *answers: str) -> bool:
    """Return True if Redis refused with an answer that begins with one of these texts."""
    return str(refused.__cause__).startswith(answers)


def _translate(error: BaseException, what: str) -> BrokerError:
    message = f"{what}: {str(error) or type(error).__name__}"
    if isinstance(error, _REFUSALS):
        return BrokerRefused(message)
    if isinstance(error, exceptions.ResponseError) and not str(error).startswith(_PASSING):
        return BrokerRefused(message)
    return BrokerUnavailable(message)
