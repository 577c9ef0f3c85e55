"""Opens clients of the SDK, and looks queues up."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from aiobotocore.config import AioConfig
from aiobotocore.credentials import (
    AioAssumeRoleCredentialFetcher,
    AioDeferredRefreshableCredentials,
)
from aiobotocore.session import AioSession
from anyio import to_thread

from producers.sqs.errors import CAUGHT, asked, translate
from producers.sqs.queue import Queue, describe, is_url, name_of

if TYPE_CHECKING:
    from producers.sqs.settings import SqsSettings

logger = logging.getLogger(__name__)

_REGION_OF_URL: Final = re.compile(
    r"https?://(?:sqs\.([a-z0-9-]+)|([a-z0-9-]+)\.queue)\.amazonaws\.com"
)
_SPARE_CONNECTIONS: Final = 16
"""The number of connections for concurrent deletions, renewals and dead letters. In addition, each receiver has a
connection.
"""


@asynccontextmanager
async def open_client(settings: SqsSettings, queue: str) -> AsyncIterator[Any]:
    """Open an SDK client for the queue. No request is sent, except for credentials that need one.

    Raises:
        BrokerRefused: There is no such profile, or the region is not known.
    """
    what = f"connection to queue {name_of(queue)!r}"
    try:
        session = AioSession(profile=settings.profile)
        session.register_component("data_loader", _loader())
        # Read the file with the API's description in a thread, because the first reading takes a tenth of a second.
        await to_thread.run_sync(_loader().load_service_model, "sqs", "service-2")
        region = settings.region or _region_of(queue)
        if settings.role_arn is not None:
            await _assume_role(session, settings, region)
        client = session.create_client("sqs", region_name=region, **_arguments(settings))
        context = await client.__aenter__()
    except (*CAUGHT, ValueError) as error:
        raise translate(error, what) from error
    try:
        yield context
    finally:
        await client.__aexit__(None, None, None)


async def find_queue(client: Any, queue: str, settings: SqsSettings) -> Queue:
    """Look a queue up by its name or URL.

    Raises:
        BrokerRefused: There is no such queue, or this identity may not look it up.
        BrokerUnavailable: SQS does not answer.
    """
    url = await find_url(client, queue, account=settings.account)
    what = f"looking up queue {name_of(queue)!r}"
    answer = await asked(client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"]), what)
    return describe(url, answer.get("Attributes", {}), settings.visibility_timeout_s)


async def find_url(client: Any, queue: str, *, account: str | None = None) -> str:
    """Return the URL of a queue. `account` owns the queue; None: the credentials' account owns it.

    Raises:
        BrokerRefused, BrokerUnavailable: As `find_queue`.
    """
    if is_url(queue):
        return queue
    arguments = {"QueueName": queue}
    if account:
        arguments["QueueOwnerAWSAccountId"] = account
    answer = await asked(client.get_queue_url(**arguments), f"looking up queue {queue!r}")
    return str(answer["QueueUrl"])


@functools.cache
def _loader() -> Any:
    # All clients share one loader, so that the file with the API's description is read only once.
    return AioSession().get_component("data_loader")


def _arguments(settings: SqsSettings) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "config": AioConfig(
            # Turn off the SDK's retries: our callers repeat requests, with growing delays and the newest receipt
            # handles.
            retries={"mode": "standard", "total_max_attempts": 1},
            connect_timeout=settings.connect_timeout_s,
            read_timeout=settings.receive_wait_s + settings.request_timeout_s,
            max_pool_connections=settings.receivers + _SPARE_CONNECTIONS,
        )
    }
    if settings.endpoint_url is not None:
        arguments["endpoint_url"] = settings.endpoint_url
    if settings.role_arn is None:
        arguments |= _keys(settings)
    return arguments


def _keys(settings: SqsSettings) -> dict[str, Any]:
    if settings.access_key_id is None:
        return {}
    return {
        "aws_access_key_id": settings.access_key_id,
        "aws_secret_access_key": settings.secret_access_key,
        "aws_session_token": settings.session_token,
    }


async def _assume_role(session: AioSession, settings: SqsSettings, region: str | None) -> None:
    """Make the session use the role's credentials, which are fetched at the first request and renewed in time."""
    if settings.access_key_id is not None:
        session.set_credentials(
            settings.access_key_id, settings.secret_access_key, settings.session_token
        )
    source = await session.get_credentials()
    extra = {"RoleSessionName": settings.role_session_name}
    if settings.external_id is not None:
        extra["ExternalId"] = settings.external_id
    fetcher = AioAssumeRoleCredentialFetcher(
        client_creator=functools.partial(session.create_client, region_name=region),
        source_credentials=source,
        role_arn=settings.role_arn,
        extra_args=extra,
    )
    session._credentials = AioDeferredRefreshableCredentials(  # noqa: SLF001  (there is no public way)
        refresh_using=fetcher.fetch_credentials, method="assume-role"
    )


def _region_of(queue: str) -> str | None:
    found = _REGION_OF_URL.match(queue)
    return None if found is None else found[1] or found[2]
