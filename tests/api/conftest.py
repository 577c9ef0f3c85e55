"""The API over a real SQLite store, without sockets and other processes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from tests.store.seeding import NOW, asset_json
from triggerer.api.app import make_app, make_routes
from triggerer.api.context import ApiContext, DatabaseUse
from triggerer.config import Settings, load_settings
from triggerer.domain.run_logs import log_path
from triggerer.store.access.run_tokens import run_token
from triggerer.store.access.service_key import service_key
from triggerer.store.access.tokens import create_token, revoke_token
from triggerer.store.audit.listing import list_audit
from triggerer.store.database.opening import open_database
from triggerer.store.database.transactions import Database
from triggerer.store.events.emit import NewAssetEvent, record_events
from triggerer.store.schema.models import Asset, Dag, DagRun, DagScheduleAsset

ROLES = ("viewer", "operator", "admin")


@dataclass
class Api:
    """The API's application, with a token of each role, a revoked token, and the token of a run."""

    context: ApiContext
    tokens: dict[str, str]

    @cached_property
    def _app(self) -> Any:
        return make_app(self.context)

    @property
    def database(self) -> Database:
        return self.context.database

    def client(self, role: str | None = "admin", **headers: str) -> httpx.AsyncClient:
        """Return a client with the token of a role, or without a token."""
        if role is not None:
            headers["Authorization"] = f"Bearer {self.tokens[role]}"
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(self._app, raise_app_exceptions=False),
            base_url="http://127.0.0.1",
            headers=headers,
        )

    async def audit(self) -> list[tuple[str, str, str]]:
        """Return the action, the actor and the interface (`via`) of each audited change, oldest first."""
        async with self.database.reading() as session:
            rows = await list_audit(session)
        return [(row.action, row.actor, row.via) for row in reversed(rows)]

    def routes(self) -> list[tuple[str, str, Any]]:
        """Return the method, path and handler of each route."""
        return [
            (method, route.path_format, handler)
            for route in make_routes(self.context).routes
            for method, (handler, _) in route.route_handler_map.items()  # type: ignore[union-attr]
        ]

    def with_settings(self, **api: Any) -> Api:
        """Return an API on this database, with other values in `[api]`."""
        settings = replace(self.context.settings, api=replace(self.context.settings.api, **api))
        return Api(make_context(settings, self.database), self.tokens)


def make_context(settings: Settings, database: Database) -> ApiContext:
    return ApiContext(settings, database, DatabaseUse(database))


@pytest.fixture
async def api(sqlite_url: str, tmp_path: Path) -> AsyncIterator[Api]:
    async with open_database(sqlite_url) as database:
        yield await filled(database, tmp_path)


async def filled(database: Database, home: Path) -> Api:
    """Fill a database with tokens, a DAG with a queued event and a running run; return the API on it."""
    settings = load_settings(environ={"TRIGGERER__CORE__HOME": str(home)})
    settings = replace(settings, api=replace(settings.api, rate_limit=100_000))
    tokens: dict[str, str] = {}
    async with database.transaction() as session:
        for role in ROLES:
            _, tokens[role] = await create_token(session, name=role, role=role)
        view, tokens["revoked"] = await create_token(session, name="revoked", role="admin")
        await revoke_token(session, view.id)
        await _running(session, home)
    tokens["run"] = run_token(await service_key(database), 1, 1, 1)
    return Api(make_context(settings, database), tokens)


async def _running(session: AsyncSession, home: Path) -> None:
    """Store a DAG with a queued event and a running run, and write the log of the run."""
    session.add(
        Asset(id=1, name="orders", uri="x-test://orders", declared_in="a.py", created_at=NOW)
    )
    session.add(
        Asset(id=2, name="report", uri="x-test://report", declared_in="a.py", created_at=NOW)
    )
    task = {"task_id": "work", "upstream": [], "inlets": [], "needs_spark": False}
    task["outlets"] = [asset_json("report")]
    session.add(
        Dag(
            dag_id="daily",
            path="a.py",
            schedule={"all": [asset_json("orders")]},
            tasks=[task],
            updated_at=NOW,
        )
    )
    await session.flush()
    session.add(DagScheduleAsset(dag_id="daily", asset_id=1))
    run = DagRun(
        id=1,
        dag_id="daily",
        run_id="manual__1",
        run_type="manual",
        state="running",
        run_after=NOW,
        queued_at=NOW,
        started_at=NOW,
        attempt=1,
        epoch=1,
        log_home=str(home),
    )
    session.add(run)
    await session.flush()
    await record_events(session, [NewAssetEvent(1, {"n": 1})])
    log = Path(log_path(str(home), "daily", "manual__1"))
    log.parent.mkdir(parents=True)
    log.write_bytes(b"first line\nsecond line\n")
