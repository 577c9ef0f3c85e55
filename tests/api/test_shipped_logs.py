"""The API shows the log of a run whose machine is gone, from the log's copy in a bucket."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from sqlalchemy import update

from tests.api.conftest import Api
from tests.services.storage.log_bucket import LogBucket, open_log_bucket
from triggerer.store.schema.models import DagRun

LOGS = "/api/v1/dags/daily/dagRuns/manual__1/logs"
WHOLE = b"".join(b"line %d\n" % number for number in range(300_000))


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[LogBucket]:
    with open_log_bucket(monkeypatch) as bucket:
        yield bucket


async def ended_elsewhere(api: Api, bucket: LogBucket, **changes: str | None) -> None:
    """Store that the run has ended on a machine that is gone, and set `[logs] ship` to the bucket."""
    values = {"executor": "gone:1:dead", "log_home": "/not/here", "state": "success", **changes}
    async with api.database.transaction() as session:
        await session.execute(update(DagRun).values(**values))
    ship_to(api, bucket)


def ship_to(api: Api, bucket: LogBucket) -> None:
    settings = api.context.settings
    api.context.settings = replace(settings, logs=replace(settings.logs, ship=bucket.url))


@pytest.mark.parametrize("log_home", ["/not/here", None])
async def test_the_copy_is_shown_where_the_log_is_out_of_reach_or_deleted_by_age(
    api: Api, bucket: LogBucket, log_home: str | None
) -> None:
    await ended_elsewhere(api, bucket, log_home=log_home)
    bucket.put("team/gone/daily/manual__1.log", WHOLE)
    async with api.client("viewer") as client:
        part = await client.get(LOGS, params={"offset": 7, "limit": 14})
        tail = await client.get(LOGS, params={"tail": 12})
        beyond = await client.get(LOGS, params={"offset": len(WHOLE)})
        download = await client.get(LOGS, params={"download": True})
    assert part.content == b"line 1\nline 2\n"
    assert tail.content == b"line 299999\n"
    assert beyond.content == b""
    assert tail.headers["x-log-size"] == str(len(WHOLE))
    assert download.content == WHOLE


async def test_without_a_copy_the_machine_is_named_that_had_the_log(
    api: Api, bucket: LogBucket
) -> None:
    await ended_elsewhere(api, bucket)
    async with api.client("viewer") as client:
        answer = await client.get(LOGS)
    assert answer.status_code == 409
    assert "gone:1:dead" in answer.json()["hint"]


async def test_a_bucket_that_does_not_exist_is_an_error_with_a_hint(
    api: Api, bucket: LogBucket
) -> None:
    await ended_elsewhere(api, bucket)
    bucket.delete()
    async with api.client("viewer") as client:
        answer = await client.get(LOGS)
    assert answer.status_code == 409
