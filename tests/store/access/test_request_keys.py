"""An `Idempotency-Key` is reserved for one request, on each database."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from triggerer.store.access.requests import claim_key, delete_keys
from triggerer.store.database.transactions import Database, database_now


async def _claim(database: Database, request: str) -> str | None:
    async with database.transaction() as session:
        return await claim_key(session, sender="me", key="k", request=request)


async def _delete_all(database: Database) -> None:
    async with database.transaction() as session:
        await delete_keys(session, await database_now(session) + timedelta(days=1))


async def test_a_key_belongs_to_its_first_request_until_it_is_deleted(database: Database) -> None:
    assert await _claim(database, "first") is None
    assert await _claim(database, "second") == "first"
    await _delete_all(database)
    assert await _claim(database, "second") is None
    assert await _claim(database, "first") == "second"


async def test_a_key_that_is_deleted_while_a_request_claims_it_is_new(
    postgres: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _claim(postgres, "old")
    async with postgres.transaction() as session:
        scalar = session.scalar

        async def delete_after_insert(*args: Any, **options: Any) -> Any:
            monkeypatch.setattr(session, "scalar", scalar)
            found = await scalar(*args, **options)
            await _delete_all(postgres)
            return found

        monkeypatch.setattr(session, "scalar", delete_after_insert)
        assert await claim_key(session, sender="me", key="k", request="new") is None
    assert await _claim(postgres, "other") == "new"
