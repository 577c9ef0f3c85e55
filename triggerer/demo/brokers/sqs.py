"""`triggerer demo --broker sqs`, with moto in this process or a server that the user names."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self

import anyio
from aiobotocore.session import get_session
from botocore.exceptions import BotoCoreError, ClientError

from triggerer.demo.brokers.source import NAME, REMOVAL_S, TrialSource
from triggerer.errors import BrokerUnavailable, ConfigurationError

_BATCH = 10
# A local server requires keys and accepts any.
_KEYS = {"access_key_id": "demo", "secret_access_key": "demo", "region": "us-east-1"}


class SqsTrial(TrialSource):
    """A standard queue. Without an endpoint, moto is the server, if it is installed."""

    trigger = f'SqsEventTrigger("{NAME}")', "from watchers.sqs import SqsEventTrigger"

    def __init__(self, endpoint: str | None) -> None:
        self._server: Any = None
        endpoint = self._endpoint = endpoint or self._start_moto()
        self.where = f"SQS at {endpoint}"
        self.connection = "sqs", {"endpoint_url": endpoint, **_KEYS}
        self._stack = AsyncExitStack()
        self._client: Any = None
        self._queue = ""

    async def __aenter__(self) -> Self:
        try:
            self._client = await self._stack.enter_async_context(
                get_session().create_client(
                    "sqs",
                    endpoint_url=self._endpoint,
                    region_name=_KEYS["region"],
                    aws_access_key_id=_KEYS["access_key_id"],
                    aws_secret_access_key=_KEYS["secret_access_key"],
                )
            )
            # moto sometimes loses one of several simultaneous deletions. A short visibility timeout makes moto
            # redeliver that message soon, so that the service deletes it again.
            created = await self._client.create_queue(
                QueueName=NAME, Attributes={"VisibilityTimeout": "5"}
            )
            self._queue = created["QueueUrl"]
            if await self.count_left():
                # Delete the messages that a killed trial left, because they would be counted too.
                await self._client.purge_queue(QueueUrl=self._queue)
        except (BotoCoreError, ClientError, OSError, ValueError) as error:
            await self._stack.aclose()
            raise BrokerUnavailable(
                f"no queue can be made at {self._endpoint}: {error}",
                hint="is ElasticMQ, LocalStack or moto running there? A URL is needed: http://localhost:9324",
            ) from error
        return self

    def _start_moto(self) -> str:
        try:
            from moto.server import ThreadedMotoServer
        except ImportError as error:
            raise ConfigurationError(
                "no SQS server is available",
                hint="pip install moto flask-cors, which serve SQS in this process; or start ElasticMQ"
                " (deploy/compose.yaml has it) and name it: --endpoint http://localhost:9324",
            ) from error
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        _, port = self._server.get_host_and_port()
        return f"http://127.0.0.1:{port}"

    async def publish(self, values: Sequence[bytes]) -> None:
        for start in range(0, len(values), _BATCH):
            entries = [
                {"Id": str(number), "MessageBody": value.decode()}
                for number, value in enumerate(values[start : start + _BATCH])
            ]
            answer = await self._client.send_message_batch(QueueUrl=self._queue, Entries=entries)
            if refused := answer.get("Failed"):
                raise BrokerUnavailable(f"SQS refused a message: {refused[0]['Message']}")

    async def count_left(self) -> int:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        answer = await self._client.get_queue_attributes(QueueUrl=self._queue, AttributeNames=names)
        return sum(int(answer["Attributes"][name]) for name in names)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Delete the queue after Ctrl-C too.
        with anyio.move_on_after(REMOVAL_S, shield=True):
            try:
                await self._client.delete_queue(QueueUrl=self._queue)
            finally:
                await self._stack.aclose()

    def close(self) -> None:
        if self._server is not None:
            self._server.stop()
