"""Access to the API: every route is tried with every kind of sender."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import httpx
import pytest
from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from structlog.testing import capture_logs

from tests.api.conftest import Api
from triggerer.errors import ServerBusy
from triggerer.store.access.sessions import create_login
from triggerer.store.access.tokens import list_tokens
from triggerer.store.audit.listing import list_audit
from triggerer.store.schema.models import ApiToken, AssetEvent, Audit, DagRun

SENDERS = ("none", "viewer", "operator", "admin", "run", "revoked")
V1 = "/api/v1"
VIEWER, OPERATOR, ADMIN, PUBLIC = "viewer", "operator", "admin", "public"
RUN = "/dags/{dag_id}/dagRuns/{run_id}"

MATRIX: dict[tuple[str, str], tuple[str, bool]] = {
    ("GET", "/overview"): (VIEWER, False),
    ("GET", "/instances"): (VIEWER, False),
    ("GET", "/whoami"): (VIEWER, True),
    ("GET", "/changes"): (VIEWER, False),
    ("GET", "/assets"): (VIEWER, False),
    ("GET", "/assets/{asset}"): (VIEWER, False),
    ("GET", "/assets/events"): (VIEWER, False),
    ("POST", "/assets/events"): (OPERATOR, True),
    ("GET", "/assets/events/{event_id}"): (VIEWER, False),
    ("GET", "/assets/events/{event_id}/trace"): (VIEWER, False),
    ("GET", "/assets/queuedEvent"): (VIEWER, False),
    ("DELETE", "/assets/queuedEvent"): (OPERATOR, False),
    ("GET", "/assets/queuedEvent/{uri}"): (VIEWER, False),
    ("DELETE", "/assets/queuedEvent/{uri}"): (OPERATOR, False),
    ("GET", "/dags"): (VIEWER, False),
    ("GET", "/dags/{dag_id}"): (VIEWER, False),
    ("PATCH", "/dags/{dag_id}"): (OPERATOR, False),
    ("GET", "/dags/{dag_id}/why-not"): (VIEWER, False),
    ("GET", "/dags/{dag_id}/next"): (VIEWER, False),
    ("GET", "/dags/{dag_id}/grid"): (VIEWER, False),
    ("GET", "/dags/{dag_id}/calendar"): (VIEWER, False),
    ("GET", "/assets/graph"): (VIEWER, False),
    ("GET", "/dags/{dag_id}/assets/queuedEvent"): (VIEWER, False),
    ("DELETE", "/dags/{dag_id}/assets/queuedEvent"): (OPERATOR, False),
    ("GET", "/dags/{dag_id}/assets/queuedEvent/{uri}"): (VIEWER, False),
    ("DELETE", "/dags/{dag_id}/assets/queuedEvent/{uri}"): (OPERATOR, False),
    ("GET", "/dags/{dag_id}/dagRuns"): (VIEWER, False),
    ("POST", "/dags/{dag_id}/dagRuns"): (OPERATOR, False),
    ("POST", "/dags/{dag_id}/backfills"): (OPERATOR, False),
    ("POST", "/dags/{dag_id}/backfills/plan"): (VIEWER, False),
    ("GET", RUN): (VIEWER, True),
    ("GET", f"{RUN}/why"): (VIEWER, True),
    ("GET", f"{RUN}/tasks"): (VIEWER, True),
    ("GET", f"{RUN}/events"): (VIEWER, True),
    ("GET", f"{RUN}/attempts"): (VIEWER, True),
    ("GET", "/assets/events/find"): (VIEWER, False),
    ("GET", f"{RUN}/logs"): (VIEWER, True),
    ("POST", f"{RUN}/cancel"): (OPERATOR, False),
    ("POST", f"{RUN}/retry"): (OPERATOR, False),
    ("POST", f"{RUN}/clear"): (OPERATOR, False),
    ("GET", "/runs"): (VIEWER, False),
    ("GET", "/watchers"): (VIEWER, False),
    ("GET", "/watchers/{asset}/{name}"): (VIEWER, False),
    ("POST", "/watchers/{asset}/{name}/replay"): (OPERATOR, False),
    ("GET", "/parked"): (VIEWER, False),
    ("GET", "/parked/{message_id}"): (VIEWER, False),
    ("GET", "/parked/{message_id}/body"): (VIEWER, False),
    ("POST", "/parked/replay"): (OPERATOR, False),
    ("POST", "/parked/discard"): (OPERATOR, False),
    ("GET", "/streams"): (VIEWER, False),
    ("GET", "/streams/{digest}"): (VIEWER, False),
    ("GET", "/backfills"): (VIEWER, False),
    ("POST", "/backfills/{backfill_id}/cancel"): (OPERATOR, False),
    ("POST", "/events"): (OPERATOR, False),
    ("OPTIONS", "/events"): (PUBLIC, False),
    ("GET", "/config"): (ADMIN, False),
    ("GET", "/audit"): (ADMIN, False),
    ("GET", "/tokens"): (ADMIN, False),
    ("POST", "/tokens"): (ADMIN, False),
    ("DELETE", "/tokens/{token_id}"): (ADMIN, False),
    ("GET", "/openapi.json"): (PUBLIC, False),
}
"""The lowest role for each route below /api/v1, and whether the route accepts a run token."""
AIRFLOW = {
    ("GET", "/api/v2/assets"): VIEWER,
    ("POST", "/api/v2/assets/events"): OPERATOR,
    ("POST", "/api/v2/dags/{dag_id}/dagRuns"): OPERATOR,
    ("GET", "/api/v2/dags/{dag_id}/dagRuns/{run_id}"): VIEWER,
    ("PATCH", "/api/v2/dags/{dag_id}"): OPERATOR,
}
OTHERS = {
    # These routes ignore a token in the header. They read a token from the body, a signature or a
    # cookie. The OPTIONS route checks nothing.
    ("POST", "/auth/token"),
    ("POST", "/api/v1/events/{hook}"),
    ("OPTIONS", "/api/v1/events/{hook}"),
    ("POST", "/api/v1/session"),
    ("DELETE", "/api/v1/session"),
    # Probes have no token. They name parts and no hosts.
    ("GET", "/health"),
    ("GET", "/livez"),
    ("GET", "/readyz"),
    # Signing in, by the code in a link or by an identity provider.
    ("GET", "/login"),
    ("GET", "/oidc/login"),
    ("GET", "/oidc/callback"),
    # The page's files and the description of errors have no data.
    ("GET", "/"),
    ("GET", "/{path}"),
    ("GET", "/docs/errors"),
}
STREAMS = {"/api/v1/changes", "/metrics"}
FILLED = {
    "{dag_id}": "daily",
    "{run_id}": "manual__1",
    "{event_id}": "1",
    "{message_id}": "1",
    "{asset}": "orders",
    "{name}": "w",
    "{uri}": "x-test:%2F%2Forders",
    "{digest}": "d",
    "{backfill_id}": "1",
    "{token_id}": "nobody",
}
BODIES = {
    "/assets/events": {"asset": "report"},
    "/dags/{dag_id}": {"is_paused": False},
    "/dags/{dag_id}/dagRuns": {},
    "/dags/{dag_id}/backfills": {
        "from_date": "2026-01-01T00:00:00Z",
        "to_date": "2026-01-02T00:00:00Z",
    },
    "/dags/{dag_id}/backfills/plan": {
        "from_date": "2026-01-01T00:00:00Z",
        "to_date": "2026-01-02T00:00:00Z",
    },
    "/watchers/{asset}/{name}/replay": {"start": "earliest"},
    "/parked/replay": {"all": True},
    "/parked/discard": {"all": True},
    "/tokens": {"role": "viewer"},
    "/api/v2/assets/events": {"asset_id": 1},
    "/api/v2/dags/{dag_id}/dagRuns": {},
    "/api/v2/dags/{dag_id}": {"is_paused": False},
}


def may(sender: str, role: str, by_run: bool) -> bool:
    if role == PUBLIC:
        return True
    if sender in ("none", "revoked"):
        return False
    if sender == "run":
        return by_run
    order = (VIEWER, OPERATOR, ADMIN)
    return order.index(sender) >= order.index(role)


def rows() -> dict[tuple[str, str], tuple[str, bool]]:
    """Return the lowest roles by whole path, including the routes for Airflow's clients and the metrics."""
    ours = {(method, f"{V1}{path}"): row for (method, path), row in MATRIX.items()}
    theirs = {**AIRFLOW, ("GET", "/metrics"): VIEWER}
    return ours | {route: (role, False) for route, role in theirs.items()}


async def test_each_route_has_a_row_of_the_matrix_and_each_row_a_route(api: Api) -> None:
    there = {(method, path) for method, path, handler in api.routes() if handler.opt.get("role")}
    assert {one for one in there if one[0] != "HEAD"} == set(rows()) | OTHERS


async def test_no_route_is_without_a_role(api: Api) -> None:
    without = {
        (method, path)
        for method, path, handler in api.routes()
        if handler.opt.get("role") is None and method != "OPTIONS"
    }
    assert without == set()


@pytest.mark.parametrize("sender", SENDERS)
async def test_a_sender_reaches_exactly_the_routes_of_its_role(api: Api, sender: str) -> None:
    wrong: list[str] = []
    async with api.client(None if sender == "none" else sender) as client:
        for (method, path), (role, by_run) in rows().items():
            if path in STREAMS and may(sender, role, by_run):
                # The answer has no end, or needs a running service. The tests of live services cover it.
                continue
            filled = path
            for name, value in FILLED.items():
                filled = filled.replace(name, value)
            body = BODIES.get(path.removeprefix(V1)) if method in ("POST", "PATCH") else None
            answer = await client.request(method, filled, json=body)
            is_refused = answer.status_code in (401, 403)
            if is_refused is may(sender, role, by_run) or answer.status_code >= 500:
                wrong.append(f"{method} {path}: {answer.status_code} {answer.text[:200]}")
    assert wrong == []


async def test_a_request_that_is_refused_changes_nothing(api: Api) -> None:
    for sender in ("none", "viewer", "revoked"):
        async with api.client(None if sender == "none" else sender) as client:
            for (method, path), (role, _) in rows().items():
                if method not in ("GET", "OPTIONS") and role != VIEWER:
                    filled = path
                    for name, value in FILLED.items():
                        filled = filled.replace(name, value)
                    body = BODIES.get(path.removeprefix(V1))
                    await client.request(method, filled, json=body)
    async with api.database.reading() as session:
        assert await session.scalar(select(func.count()).select_from(Audit)) == 0
        assert await session.scalar(select(func.count()).select_from(AssetEvent)) == 1


@pytest.mark.parametrize(
    "change",
    [{"attempt": 2}, {"state": "success"}, {"state": "queued"}, {"cancel_requested": True}],
)
async def test_the_token_of_a_run_ends_with_its_attempt(
    api: Api, change: dict[str, object]
) -> None:
    async with api.client("run") as client:
        assert (await client.get(f"{V1}/dags/daily/dagRuns/manual__1")).status_code == 200
        async with api.database.transaction() as session:
            await session.execute(update(DagRun).values(**change))
        assert (await client.get(f"{V1}/dags/daily/dagRuns/manual__1")).status_code == 401
        emitted = await client.post(f"{V1}/assets/events", json={"asset": "report"})
    assert emitted.status_code == 401
    async with api.database.reading() as session:
        assert await session.scalar(select(func.count()).select_from(AssetEvent)) == 1


async def test_a_run_emits_its_outlets_only_and_is_named_as_the_source(api: Api) -> None:
    async with api.client("run") as client:
        other = await client.post(f"{V1}/assets/events", json={"asset": "orders"})
        own = await client.post(f"{V1}/assets/events", json={"asset": "report"})
        another_run = await client.get(f"{V1}/dags/daily/dagRuns/manual__2")
    assert other.status_code == 403
    assert own.status_code == 201
    assert (own.json()["source_dag_id"], own.json()["source_run_id"]) == ("daily", "manual__1")
    assert own.json()["source_task_id"] == "work"
    assert another_run.status_code == 403


async def test_a_role_below_the_one_for_payloads_sees_none(api: Api) -> None:
    hiding = api.with_settings(payloads="operator")
    async with hiding.client("viewer") as client:
        events = (await client.get(f"{V1}/assets/events")).json()["items"]
        trace = (await client.get(f"{V1}/assets/events/1/trace")).json()
        log = await client.get(f"{V1}/dags/daily/dagRuns/manual__1/logs")
        body = await client.get(f"{V1}/parked/1/body")
    assert [event["extra"] for event in events] == [None]
    assert trace["event"]["extra"] is None
    assert (log.status_code, body.status_code) == (403, 403)
    async with hiding.client("operator") as client:
        assert (await client.get(f"{V1}/assets/events/1")).json()["extra"] == {"n": 1}


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8080", 200),
        ("localhost", 200),
        ("[::1]:8080", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("", 421),
        ("127.0.0.1:", 200),
        ("127.0.0.1:abc", 421),
        ("127.0.0.1:99999", 421),
        ("127.0.0.1:1:2", 421),
        ("[::1", 421),
        ("[::1]x", 421),
        ("::1", 421),
    ],
)
async def test_only_known_host_names_are_answered(api: Api, host: str, status: int) -> None:
    async with api.client() as client:
        answer = await client.get(f"{V1}/dags", headers={"Host": host})
        sign_in = await client.get("/login", headers={"Host": host})
    assert answer.status_code == status
    # Without the code of a link, a request that is for this host is a bad request.
    assert sign_in.status_code == (400 if status == 200 else status)


async def test_only_the_digest_of_a_token_is_stored(api: Api) -> None:
    async with api.client() as client:
        made = (await client.post(f"{V1}/tokens", json={"role": "operator", "name": "ci"})).json()
        listed = await client.get(f"{V1}/tokens")
        audit = await client.get(f"{V1}/audit")
    secret = made["token"].split("_", 2)[2]
    async with api.database.reading() as session:
        rows = [vars(row) for row in await session.scalars(select(ApiToken))]
    assert made["token"].startswith(f"trg_{made['id']}_")
    assert secret not in listed.text + audit.text + repr(rows)


async def test_a_token_ends_at_its_time_and_when_it_is_revoked(api: Api) -> None:
    async with api.client() as client:
        past = {"role": "admin", "expires_at": "2020-01-01T00:00:00Z"}
        over = (await client.post(f"{V1}/tokens", json=past)).json()
        good = (await client.post(f"{V1}/tokens", json={"role": "admin"})).json()
        named = replace(api, tokens={"over": over["token"], "good": good["token"]})
        async with named.client("over") as ended, named.client("good") as valid:
            assert (await ended.get(f"{V1}/dags")).status_code == 401
            assert (await valid.get(f"{V1}/dags")).status_code == 200
            await client.delete(f"{V1}/tokens/{good['id']}")
            assert (await valid.get(f"{V1}/dags")).status_code == 401
    async with api.database.reading() as session:
        revoked = [one.id for one in await list_tokens(session) if one.revoked_at]
    assert good["id"] in revoked


async def sign_in(api: Api, client: httpx.AsyncClient, role: str = "admin") -> None:
    answer = await client.post(
        f"{V1}/session",
        json={"token": api.tokens[role]},
        headers={"Sec-Fetch-Site": "same-origin"},
    )
    assert answer.status_code == 200, answer.text
    assert "HttpOnly" in answer.headers["set-cookie"]
    assert "samesite=lax" in answer.headers["set-cookie"].lower()


async def test_a_session_lasts_until_it_is_ended_or_its_token_is_revoked(api: Api) -> None:
    async with api.client(None) as browser:
        await sign_in(api, browser)
        assert (await browser.get(f"{V1}/whoami")).json()["role"] == "admin"
        await browser.request(
            "DELETE",
            f"{V1}/session",
            headers={"Sec-Fetch-Site": "same-origin", "Content-Type": "application/json"},
        )
        assert (await browser.get(f"{V1}/whoami")).status_code == 401
        await sign_in(api, browser, "operator")
        token_id = api.tokens["operator"].split("_")[1]
        async with api.client() as admin:
            await admin.delete(f"{V1}/tokens/{token_id}")
        assert (await browser.get(f"{V1}/whoami")).status_code == 401


async def test_each_sign_in_and_sign_out_has_a_row_in_the_audit(api: Api) -> None:
    admin, operator = (api.tokens[role].split("_")[1] for role in ("admin", "operator"))
    ours = {"Sec-Fetch-Site": "same-origin", "Content-Type": "application/json"}
    async with api.database.transaction() as session:
        code = await create_login(session, name="me", role="viewer")
    async with api.client(None) as browser, api.client(None) as other, api.client() as program:
        await other.get("/login", params={"code": code})
        await other.get("/login", params={"code": code})
        await sign_in(api, browser)
        via = (await browser.get(f"{V1}/whoami")).json()["via"]
        for _ in range(2):
            await browser.request("DELETE", f"{V1}/session", headers=ours)
        await sign_in(api, other, "operator")
        await program.delete(f"{V1}/tokens/{operator}")
    assert await api.audit() == [
        ("session.open", "me", "link"),
        ("session.open", "admin", f"token:{admin}"),
        ("session.end", "admin", via),
        ("session.open", "operator", f"token:{operator}"),
        ("token.revoke", "admin", f"token:{admin}"),
    ]
    async with api.database.reading() as session:
        revoked, _, ended, opened, _ = await list_audit(session)
    assert revoked.after == {"sessions_ended": 1}
    assert ended.subject == opened.subject == via.removeprefix("session:")
    assert opened.request_id
    assert api.tokens["admin"] not in str((opened, ended))


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Origin": "http://127.0.0.1"}, 200),
        ({}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "none"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://["}, 403),
        ({"Origin": "http://127.0.0.1/"}, 403),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "http://["}, 403),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "http://evil.example"}, 403),
        ({"Sec-Fetch-Site": "same-origin", "Content-Type": "text/plain"}, 415),
    ],
)
async def test_a_change_by_cookie_comes_from_our_own_page(
    api: Api, headers: dict[str, str], status: int
) -> None:
    async with api.client(None) as browser:
        await sign_in(api, browser)
        answer = await browser.patch(
            f"{V1}/dags/daily",
            content='{"is_paused": true}',
            headers={"Content-Type": "application/json", **headers},
        )
    assert answer.status_code == status


@pytest.mark.parametrize("method", ["POST", "DELETE"])
async def test_a_stranger_whose_origin_is_malformed_is_refused_without_an_error_in_the_log(
    api: Api, method: str
) -> None:
    async with api.client(None, Origin="http://[") as stranger:
        with capture_logs() as logged:
            answer = await stranger.request(method, f"{V1}/session", json={"token": "x"})
    assert answer.status_code == 403
    assert logged == []


async def test_a_login_link_signs_in_once(api: Api) -> None:
    async with api.database.transaction() as session:
        code = await create_login(session, name="me", role="viewer")
    async with api.client(None) as first, api.client(None) as second:
        used = await first.get("/login", params={"code": code})
        assert (used.status_code, used.headers["location"]) == (303, "/")
        assert (await first.get(f"{V1}/whoami")).json() == {
            "name": "me",
            "role": "viewer",
            "via": (await first.get(f"{V1}/whoami")).json()["via"],
            "sees_payloads": True,
        }
        assert (await second.get("/login", params={"code": code})).status_code == 401


async def test_behind_a_proxy_the_cookie_is_for_https_only_and_links_have_the_prefix(
    api: Api,
) -> None:
    proxied = api.with_settings(behind_proxy=True, allowed_hosts=("triggerer.example",))
    forwarded = {
        "X-Forwarded-Proto": "https",
        "X-Forwarded-Host": "triggerer.example",
        "X-Forwarded-Prefix": "/events",
        "Sec-Fetch-Site": "same-origin",
    }
    async with proxied.client(None, **forwarded) as browser:
        answer = await browser.post(f"{V1}/session", json={"token": api.tokens["viewer"]})
        page = await browser.get("/streams")
        problem = await browser.get(f"{V1}/dags")
    assert answer.headers["set-cookie"].startswith("__Host-triggerer=")
    assert "Secure" in answer.headers["set-cookie"]
    assert '<base href="/events/">' in page.text
    assert problem.json()["type"].startswith("/events/docs/errors#")


async def test_too_many_requests_of_one_token_are_told_when_to_come_again(api: Api) -> None:
    limited = api.with_settings(rate_limit=1)
    async with limited.client("viewer") as client, limited.client("operator") as other:
        statuses = [(await client.get(f"{V1}/whoami")).status_code for _ in range(12)]
        refused = await client.get(f"{V1}/whoami")
        assert (await other.get(f"{V1}/whoami")).status_code == 200
    assert statuses.count(200) in (10, 11)
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "1"


async def test_a_request_succeeds_though_the_last_use_of_its_token_is_not_stored(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of the last use is only information for people. So a busy store must not fail the request."""

    @asynccontextmanager
    async def refuse() -> AsyncIterator[AsyncSession]:
        raise ServerBusy("too many requests")
        yield

    monkeypatch.setattr(api.context.use, "changing", refuse)
    async with api.client("viewer") as client:
        assert (await client.get(f"{V1}/whoami")).status_code == 200
