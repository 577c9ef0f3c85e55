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

# Redis answers each of these while it starts, fails over or has no room: the same call may succeed later.
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
    """The keys of the delivery policy come with the base class.

    Attributes:
        dead_letters: Whether what was given up, or rejected, is added to the stream `<stream>:dead-letters`. If not,
            what is rejected is passed, and what fails is delivered again for ever.
        answer_within_s: Seconds after which a server that does not answer counts as away.
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
        """For messages: where, without a secret."""
        return f"{self.host}:{self.port}/{self.db}"

    def connect(self) -> Redis:
        """A client; it connects with its first command.

        It repeats nothing by itself: an addition whose answer was lost would be made twice.
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
    """Await a command, with the client's errors translated.

    Raises:
        BrokerUnavailable, BrokerRefused: Redis does not answer, or says no.
    """
    return await guarded(call, what, translate=_translate, catch=(exceptions.RedisError, OSError))


def is_answer(refused: BrokerRefused, *answers: str) -> bool:
    """Whether Redis said no with one of these answers (their beginnings)."""
    return str(refused.__cause__).startswith(answers)


def _translate(error: BaseException, what: str) -> BrokerError:
    message = f"{what}: {str(error) or type(error).__name__}"
    if isinstance(error, _REFUSALS):
        return BrokerRefused(message)
    if isinstance(error, exceptions.ResponseError) and not str(error).startswith(_PASSING):
        return BrokerRefused(message)
    return BrokerUnavailable(message)
