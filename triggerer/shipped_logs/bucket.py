"""Writes and reads objects of a bucket. Credentials and endpoint come from the SDK's default chain."""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import anyio
from anyio import to_thread

from triggerer.errors import BucketError, ConfigurationError

CHUNK_BYTES: Final = 8 * 1024 * 1024
"""The size of the parts of a large object, except the last part. S3 refuses parts below 5 MiB."""
_HINTS: Final[Mapping[str, str]] = {
    "NoSuchBucket": "check the bucket's name in [logs] ship; the service makes no bucket",
    "AccessDenied": "the identity needs s3:PutObject, s3:GetObject and s3:AbortMultipartUpload on the bucket's objects",
    "InvalidAccessKeyId": "check AWS_ACCESS_KEY_ID, and that the key is still active",
    "SignatureDoesNotMatch": "check AWS_SECRET_ACCESS_KEY",
    "ExpiredToken": "the credentials have expired",
}
_CONNECT_S: Final = 5
_READ_S: Final = 30
_ABORT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class ObjectPart:
    """Some bytes of an object."""

    start: int
    size: int
    """The length of the whole object."""
    body: bytes


def require_sdk() -> None:
    """Check that the SDK is installed, without importing it.

    Raises:
        ConfigurationError: The SDK is not installed.
    """
    if importlib.util.find_spec("aiobotocore") is None:
        raise ConfigurationError(
            "[logs] ship needs the library aiobotocore, which is not installed",
            hint="pip install 'triggerer[s3]'",
        )


class Bucket:
    """A bucket, and the client of the SDK for it. Made by `open_bucket`."""

    def __init__(self, name: str, client: Any) -> None:
        self.name = name
        self._client = client

    async def put(self, key: str, chunks: AsyncIterator[bytes]) -> None:
        """Write an object from chunks of `CHUNK_BYTES`; the last chunk may be smaller.

        Only a few chunks are in memory at a time. After an error or a cancellation, the object is either complete or as
        it was before the call.

        Raises:
            BucketError: S3 refuses, or does not answer.
        """
        first = await anext(chunks, b"")
        where = {"Bucket": self.name, "Key": key}
        if len(first) < CHUNK_BYTES:
            with self._explained("write"):
                await self._client.put_object(**where, Body=first)
            return
        with self._explained("write"):
            upload_id = (await self._client.create_multipart_upload(**where))["UploadId"]
        upload = {**where, "UploadId": upload_id}
        try:
            await self._put_parts(upload, first, chunks)
        except BaseException:
            # Otherwise the uploaded parts would stay in the bucket. A list of the bucket's objects does not show them.
            with (
                anyio.move_on_after(_ABORT_S, shield=True),
                suppress(BucketError),
                self._explained("write"),
            ):
                await self._client.abort_multipart_upload(**upload)
            raise

    async def read(self, key: str, start: int, limit: int) -> ObjectPart | None:
        """Return up to `limit` bytes from `start` on, or None if there is no such object.

        Args:
            start: The position of the first byte. A negative number counts from the end.
        Raises:
            BucketError: S3 refuses, or does not answer.
        """
        with self._explained("read"):
            try:
                head = await self._client.head_object(Bucket=self.name, Key=key)
            except self._client.exceptions.ClientError as error:
                if error.response["ResponseMetadata"]["HTTPStatusCode"] == 404:
                    return None
                raise
            size = int(head["ContentLength"])
            first = max(0, size + start) if start < 0 else start
            end = min(size, first + limit)
            if first >= end:
                return ObjectPart(first, size, b"")
            answer = await self._client.get_object(
                Bucket=self.name, Key=key, Range=f"bytes={first}-{end - 1}"
            )
            async with answer["Body"] as body:
                return ObjectPart(first, size, await body.read())

    async def _put_parts(
        self, upload: dict[str, str], first: bytes, chunks: AsyncIterator[bytes]
    ) -> None:
        parts: list[dict[str, Any]] = []
        chunk = first
        while chunk:
            number = len(parts) + 1
            with self._explained("write"):
                answer = await self._client.upload_part(**upload, PartNumber=number, Body=chunk)
            parts.append({"PartNumber": number, "ETag": answer["ETag"]})
            chunk = await anext(chunks, b"")
        with self._explained("write"):
            await self._client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})

    def _explained(self, what: str) -> AbstractContextManager[None]:
        return _explained(self.name, what)


@asynccontextmanager
async def open_bucket(name: str) -> AsyncIterator[Bucket]:
    """Open a client for the bucket. No request is sent, except for credentials that need one.

    Raises:
        BucketError: The client cannot be made, for example because the SDK finds no region.
    """
    # The first call of `_loader` imports the SDK and reads its description of S3, which takes a quarter of a second.
    loader = await to_thread.run_sync(_loader)
    from aiobotocore.config import AioConfig
    from aiobotocore.session import AioSession

    session = AioSession()
    session.register_component("data_loader", loader)
    config = AioConfig(
        connect_timeout=_CONNECT_S,
        read_timeout=_READ_S,
        retries={"mode": "standard", "total_max_attempts": 3},
    )
    with _explained(name, "open"):
        client = await session.create_client("s3", config=config).__aenter__()
    try:
        yield Bucket(name, client)
    finally:
        await client.__aexit__(None, None, None)


@cache
def _loader() -> Any:
    """Return a reader of the API's descriptions that remembers what it has read."""
    from aiobotocore.session import AioSession

    loader = AioSession().get_component("data_loader")
    loader.load_service_model("s3", "service-2")
    loader.load_service_model("s3", "endpoint-rule-set-1")
    return loader


@contextmanager
def _explained(bucket: str, what: str) -> Iterator[None]:
    """Turn the SDK's errors into `BucketError`."""
    from aiohttp import ClientError
    from botocore.exceptions import BotoCoreError
    from botocore.exceptions import ClientError as Refused

    try:
        yield
    except Refused as error:
        code = error.response.get("Error", {}).get("Code", "")
        raise BucketError(
            f"bucket {bucket!r} refuses to {what} logs: {error}", hint=_HINTS.get(code)
        ) from error
    except (BotoCoreError, ClientError, OSError, TimeoutError) as error:
        raise BucketError(
            f"bucket {bucket!r} cannot be reached to {what} logs: {error}",
            hint="check the network, and AWS_DEFAULT_REGION and AWS_ENDPOINT_URL_S3",
        ) from error
