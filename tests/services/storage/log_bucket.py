"""A bucket in moto's S3. Environment variables tell Amazon's SDK the address of moto, and credentials."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest

from tests.services.brokers.moto import open_moto


@dataclass(frozen=True)
class LogBucket:
    """An empty bucket, and the vendor's client."""

    name: str
    endpoint: str
    sdk: Any

    @property
    def url(self) -> str:
        """The value of `[logs] ship`: everything is below `team/`."""
        return f"s3://{self.name}/team"

    def list(self) -> list[str]:
        """Return the keys of all objects."""
        return [
            one["Key"] for one in self.sdk.list_objects_v2(Bucket=self.name).get("Contents", ())
        ]

    def put(self, key: str, body: bytes) -> None:
        self.sdk.put_object(Bucket=self.name, Key=key, Body=body)

    def create(self) -> None:
        self.sdk.create_bucket(Bucket=self.name)

    def delete(self) -> None:
        """Delete the bucket, which must be empty."""
        self.sdk.delete_bucket(Bucket=self.name)

    def read(self, key: str) -> bytes:
        body: bytes = self.sdk.get_object(Bucket=self.name, Key=key)["Body"].read()
        return body


@contextmanager
def open_log_bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[LogBucket]:
    """Serve S3 in threads of this process, with a bucket of its own."""
    name = f"logs-{uuid4().hex}"
    with open_moto() as moto:
        import botocore.session

        for variable, value in environment(moto.endpoint).items():
            monkeypatch.setenv(variable, value)
        sdk = botocore.session.Session().create_client("s3")
        bucket = LogBucket(name, moto.endpoint, sdk)
        bucket.create()
        yield bucket
        sdk.close()


def environment(endpoint: str) -> dict[str, str]:
    """Return the variables by which the SDK finds the service."""
    return {
        "AWS_ENDPOINT_URL_S3": endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
