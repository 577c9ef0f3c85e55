"""moto's S3, and the jars (S3A) by which Hadoop, and so Spark, reaches it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.services.brokers.moto import open_moto
from tests.services.programs.java_program import find_jars


@dataclass(frozen=True)
class S3:
    """The service, with one empty bucket."""

    endpoint: str
    bucket: str
    sdk: Any
    """The vendor's client."""
    jars: Path

    @property
    def root(self) -> str:
        return f"s3a://{self.bucket}"

    def conf(self) -> dict[str, str]:
        """Return `[spark] conf` for paths below `root`."""
        settings = {
            "endpoint": self.endpoint,
            "endpoint.region": "us-east-1",
            "path.style.access": "true",
            "access.key": "test",
            "secret.key": "test",
            "aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
        }
        return {
            "spark.jars": ",".join(map(str, sorted(self.jars.glob("*.jar")))),
            **{f"spark.hadoop.fs.s3a.{key}": value for key, value in settings.items()},
        }

    def list_keys(self, prefix: str = "") -> list[str]:
        """Return the keys of the objects. Objects that stand for folders are left out."""
        pages = self.sdk.get_paginator("list_objects_v2").paginate(
            Bucket=self.bucket, Prefix=prefix
        )
        found = [one["Key"] for page in pages for one in page.get("Contents", ())]
        return sorted(key for key in found if not key.endswith("/"))


@contextmanager
def open_s3(bucket: str) -> Iterator[S3]:
    """Serve S3 in threads of this process.

    Raises:
        ServiceUnavailable: The jars are not cached, and Maven could not get them.
    """
    jars = find_jars("hadoop_aws")
    with open_moto() as moto:
        import botocore.session

        sdk = botocore.session.Session().create_client(
            "s3",
            region_name="us-east-1",
            endpoint_url=moto.endpoint,
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )
        sdk.create_bucket(Bucket=bucket)
        yield S3(moto.endpoint, bucket, sdk, jars)
