"""Odd, wrong and repeated requests get clear answers."""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest
from sqlalchemy import func, select, text

from tests.actors import TESTER
from tests.api.conftest import Api
from triggerer.api import context
from triggerer.api.context import MOST_INSIDE, POOL_SIZE
from triggerer.config.sections import HookSettings
from triggerer.domain.run_logs import log_path
from triggerer.errors import StoreError
from triggerer.operations.cleaning import Limits, clean
from triggerer.store.dags.listing import list_dags
from triggerer.store.schema.models import ApiRequest, AssetEvent, Audit

V1 = "/api/v1"
CLOUD_EVENT = {"specversion": "1.0", "id": "7", "source": "/shop", "type": "sold", "data": {"n": 1}}


@pytest.mark.parametrize(
    ("method", "path", "sent", "status", "said"),
    [
        ("POST", "/assets/events", {"json": {"asset": "orders", "n": 1}}, 400, "unknown field `n`"),
        ("POST", "/assets/events", {"json": {}}, 400, "asset"),
        ("POST", "/assets/events", {"content": b"{nope"}, 400, "malformed"),
        ("POST", "/assets/events", {"json": {"asset": "order"}}, 404, "did you mean 'orders'"),
        (
            "POST",
            "/assets/events",
            {"json": {"asset": "orders", "extra": {"a": "\0"}}},
            422,
            "NUL",
        ),
        ("POST", "/assets/events", {"content": b"x" * 2 * 1024 * 1024}, 413, "over the limit"),
        ("GET", "/dags?limit=0", {}, 400, "'limit'"),
        ("GET", "/dags?limit=1001", {}, 400, "'limit'"),
        ("GET", "/dags?cursor=nonsense", {}, 400, "cursor"),
        ("GET", "/dags/a%2Fb", {}, 404, "'a/b'"),
        ("GET", "/assets/x-test:%2F%2Fnone", {}, 404, "x-test://none"),
        ("GET", "/assets/queuedEvent/x-test://none", {}, 404, "x-test://none"),
        ("GET", "/dags/%00", {}, 400, "cannot be printed"),
        ("GET", "/dags/%FF", {}, 400, "UTF-8"),
        ("GET", "/nothing", {}, 404, "nothing at this path"),
        ("PUT", "/dags", {}, 405, "method"),
        ("GET", "/assets/events/9999999999999999999999", {}, 404, "no asset event"),
        ("GET", "/dags/daily/dagRuns/manual__1/logs?offset=-1", {}, 400, "'offset'"),
        ("POST", "/watchers/orders/w/replay", {"json": {"start": "yesterday"}}, 400, "earliest"),
        ("POST", "/parked/replay", {"json": {}}, 400, "one of ids, watcher and all"),
        ("DELETE", "/assets/queuedEvent", {}, 422, "neither a DAG nor an asset"),
        ("POST", "/tokens", {"json": {"role": "king"}}, 400, "king"),
        ("GET", "/runs?state=done", {}, 400, "'state': Invalid enum value 'done' (one of queued, "),
        ("GET", "/dags?limit=x", {}, 400, "the parameter 'limit': Expected `int`"),
        ("POST", "/dags/daily/dagRuns", {"json": {"run_id": ".."}}, 422, "cannot be called '..'"),
        ("POST", "/dags/daily/dagRuns", {"content": b""}, 400, "the body is missing"),
        ("POST", "/dags/daily/dagRuns", {"content": b"{"}, 400, "the body cannot be read: "),
    ],
)
async def test_a_wrong_request_gets_a_clear_answer(
    api: Api, method: str, path: str, sent: dict[str, Any], status: int, said: str
) -> None:
    headers = {"Content-Type": "application/json"}
    async with api.client() as client:
        answer = await client.request(method, f"{V1}{path}", headers=headers, **sent)
    problem = answer.json()
    assert answer.status_code == problem["status"] == status, problem
    assert answer.headers["content-type"] == "application/problem+json"
    assert said in problem["detail"]
    assert problem["request_id"] == answer.headers["x-request-id"]


async def test_a_method_that_is_not_there_is_told_which_are(api: Api) -> None:
    async with api.client() as client:
        answer = await client.put(f"{V1}/dags/daily")
    assert {"GET", "PATCH"} <= set(answer.headers["allow"].split(", "))


async def test_a_cursor_belongs_to_its_filters(api: Api) -> None:
    async with api.client() as client:
        first = (await client.get(f"{V1}/assets", params={"limit": 1})).json()
        cursor = first["next_cursor"]
        second = (await client.get(f"{V1}/assets", params={"limit": 1, "cursor": cursor})).json()
        other = await client.get(f"{V1}/assets", params={"dag": "daily", "cursor": cursor})
    assert [one["name"] for one in first["items"] + second["items"]] == ["orders", "report"]
    assert second["next_cursor"] is None
    assert other.status_code == 400


async def test_an_unchanged_answer_is_not_sent_again(api: Api) -> None:
    async with api.client() as client:
        first = await client.get(f"{V1}/dags")
        again = await client.get(f"{V1}/dags", headers={"If-None-Match": first.headers["etag"]})
        await client.patch(f"{V1}/dags/daily", json={"is_paused": True})
        changed = await client.get(f"{V1}/dags", headers={"If-None-Match": first.headers["etag"]})
    assert (first.status_code, again.status_code, changed.status_code) == (200, 304, 200)
    assert again.content == b""


async def test_an_answer_has_the_bytes_that_the_command_prints(api: Api) -> None:
    async with api.client() as client:
        answer = await client.get(f"{V1}/dags/daily")
    async with api.database.reading() as session:
        (view,) = await list_dags(session, dag="daily")
    assert answer.content == orjson.dumps(view, default=str, option=orjson.OPT_NON_STR_KEYS)


async def test_a_repeat_with_the_key_is_the_first_event_and_another_body_is_refused(
    api: Api,
) -> None:
    async with api.client() as client, api.client("operator") as other:
        keyed = {"Idempotency-Key": "k"}
        body = {"asset": "orders", "extra": {"n": 1, "list": [1, 2]}}
        first = await client.post(f"{V1}/assets/events", json=body, headers=keyed)
        again = await client.post(f"{V1}/assets/events", json=body, headers=keyed)
        wrong = await client.post(f"{V1}/assets/events", json={"asset": "report"}, headers=keyed)
        theirs = await other.post(f"{V1}/assets/events", json=body, headers=keyed)
    assert (first.status_code, again.status_code, wrong.status_code) == (201, 200, 422)
    assert first.json() == again.json()
    assert theirs.status_code == 201
    async with api.database.reading() as session:
        assert await session.scalar(select(func.count()).select_from(AssetEvent)) == 3
        assert await session.scalar(select(func.count()).select_from(Audit)) == 2


async def test_a_run_that_is_asked_for_twice_with_a_key_is_queued_once(api: Api) -> None:
    async with api.client() as client:
        keyed = {"Idempotency-Key": "k"}
        first = await client.post(f"{V1}/dags/daily/dagRuns", json={}, headers=keyed)
        again = await client.post(f"{V1}/dags/daily/dagRuns", json={}, headers=keyed)
        other = await client.post(
            f"{V1}/dags/daily/dagRuns", json={"params": {"x": 1}}, headers=keyed
        )
    assert (first.status_code, again.status_code, other.status_code) == (201, 200, 422)
    assert first.json()["run_id"] == again.json()["run_id"]


async def test_keys_are_deleted_with_the_data_of_their_time(api: Api) -> None:
    async with api.client() as client:
        keyed = {"Idempotency-Key": "k"}
        body = {"asset": "orders"}
        first = await client.post(f"{V1}/assets/events", json=body, headers=keyed)
        long = timedelta(days=1)
        for before, left in ((datetime.now(UTC) - long, 1), (datetime.now(UTC), 0)):
            await clean(
                api.database, TESTER, Limits().with_events_and_runs(before), ack_timeout=long
            )
            async with api.database.reading() as session:
                assert await session.scalar(select(func.count()).select_from(ApiRequest)) == left
        # The request's row is gone. But cleaning keeps the newest event of each asset, and this event's key detects the
        # repeat.
        again = await client.post(f"{V1}/assets/events", json=body, headers=keyed)
    assert (again.status_code, again.json()) == (200, first.json())


async def test_one_cloud_event_may_become_an_event_of_two_assets(api: Api) -> None:
    async with api.client() as client:
        sent = {"content": json.dumps(CLOUD_EVENT), "headers": STRUCTURED}
        statuses = [
            (await client.post(f"{V1}/events", params={"asset": asset}, **sent)).status_code  # type: ignore[arg-type]
            for asset in ("orders", "report", "orders")
        ]
        other = {"content": json.dumps({**CLOUD_EVENT, "data": 2}), "headers": STRUCTURED}
        changed = await client.post(f"{V1}/events", params={"asset": "orders"}, **other)  # type: ignore[arg-type]
    assert statuses == [201, 201, 200]
    assert changed.status_code == 422


BINARY = {"ce-specversion": "1.0", "ce-id": "7", "ce-source": "/shop", "ce-type": "sold"}
STRUCTURED = {"Content-Type": "application/cloudevents+json"}
BATCH = {"Content-Type": "application/cloudevents-batch+json"}


@pytest.mark.parametrize(
    ("headers", "body", "ids"),
    [
        ({**BINARY, "Content-Type": "application/json"}, {"n": 1}, ["7"]),
        (STRUCTURED, CLOUD_EVENT, ["7"]),
        (BATCH, [CLOUD_EVENT, {**CLOUD_EVENT, "id": "8"}], ["7", "8"]),
    ],
)
async def test_cloud_events_come_in_every_mode_and_once(
    api: Api, headers: dict[str, str], body: Any, ids: list[str]
) -> None:
    async with api.client() as client:
        sent = {"content": json.dumps(body), "headers": headers, "params": {"asset": "orders"}}
        first = await client.post(f"{V1}/events", **sent)  # type: ignore[arg-type]
        again = await client.post(f"{V1}/events", **sent)  # type: ignore[arg-type]
    assert (first.status_code, again.status_code) == (201, 200)
    assert [event["extra"]["id"] for event in first.json()["items"]] == ids
    assert [event["extra"]["data"] for event in first.json()["items"]] == [{"n": 1}] * len(ids)
    assert [event["id"] for event in again.json()["items"]] == [
        event["id"] for event in first.json()["items"]
    ]


async def test_cloud_events_whose_sources_and_ids_have_slashes_are_told_apart(api: Api) -> None:
    pairs = [("/a", "b/c"), ("/a/b", "c"), ("/a", "b%2Fc"), ("/a", "b%252Fc"), ("/a/b/", "c")]
    batch = [{**CLOUD_EVENT, "source": source, "id": id_} for source, id_ in pairs]
    async with api.client() as client:
        sent = {"content": json.dumps(batch), "headers": BATCH, "params": {"asset": "orders"}}
        first = await client.post(f"{V1}/events", **sent)  # type: ignore[arg-type]
        again = await client.post(f"{V1}/events", **sent)  # type: ignore[arg-type]
    assert (first.status_code, again.status_code) == (201, 200)
    events = first.json()["items"]
    assert [(one["extra"]["source"], one["extra"]["id"]) for one in events] == pairs
    assert len({one["id"] for one in events}) == len(pairs)


async def test_a_hook_is_known_by_its_signature(api: Api) -> None:
    hooked = api.with_settings(hooks={"shop": HookSettings(asset="orders", secret="hush-hush")})
    body = json.dumps(CLOUD_EVENT).encode()
    right = "sha256=" + hmac.new(b"hush-hush", body, hashlib.sha256).hexdigest()
    async with hooked.client(None) as client:
        statuses = [
            (
                await client.post(
                    f"{V1}/events/{name}",
                    content=body,
                    headers={**STRUCTURED, **({"X-Signature-256": sign} if sign else {})},
                )
            ).status_code
            for name, sign in (
                ("shop", right),
                ("shop", right.replace("sha256=", "sha256=0")),
                ("shop", None),
                ("other", right),
            )
        ]
        shaken = await client.options(
            f"{V1}/events/shop", headers={"WebHook-Request-Origin": "shop.example"}
        )
    assert statuses == [201, 401, 401, 401]
    assert shaken.headers["webhook-allowed-origin"] == "shop.example"
    assert int(shaken.headers["webhook-allowed-rate"]) > 0


async def test_the_handshake_does_not_tell_which_hooks_exist(api: Api) -> None:
    hooked = api.with_settings(hooks={"shop": HookSettings(asset="orders", secret="unread")})
    headers = {"WebHook-Request-Origin": "shop.example", "X-Request-Id": "one"}
    async with hooked.client(None) as client:
        known, unknown = [
            await client.options(f"{V1}/events/{name}", headers=headers)
            for name in ("shop", "other")
        ]
    assert known.status_code == unknown.status_code == 200
    assert known.content == unknown.content
    assert known.headers == unknown.headers


@pytest.mark.parametrize("key", [b"", b"-"])
async def test_a_hook_whose_secret_is_an_empty_variable_takes_no_events(
    api: Api, key: bytes
) -> None:
    hook = HookSettings(asset="orders", secret="env:SHOP_SECRET")
    settings = replace(api.context.settings, environ={"SHOP_SECRET": ""})
    hooked = Api(replace(api.context, settings=settings), api.tokens).with_settings(
        hooks={"shop": hook}
    )
    body = json.dumps(CLOUD_EVENT).encode()
    signature = "sha256=" + hmac.new(key, body, hashlib.sha256).hexdigest()
    async with hooked.client(None) as client:
        answer = await client.post(
            f"{V1}/events/shop",
            content=body,
            headers={**STRUCTURED, "X-Signature-256": signature},
        )
    assert answer.status_code == 500
    assert answer.json()["detail"] == "api.hooks.shop.secret is empty"
    assert await api.audit() == []


async def test_more_requests_than_fit_are_told_to_come_again(api: Api) -> None:
    async with api.client() as client:
        async with anyio.create_task_group() as tasks:
            statuses: list[int] = []

            async def ask() -> None:
                statuses.append((await client.get(f"{V1}/overview")).status_code)

            for _ in range(3 * MOST_INSIDE):
                tasks.start_soon(ask)
        assert (await client.get(f"{V1}/overview")).status_code == 200
    assert set(statuses) <= {200, 503}
    assert statuses.count(503) > 0


@pytest.mark.parametrize("path", ["/dags", "/streams"])
async def test_changes_that_wait_for_the_write_lock_do_not_delay_reads(api: Api, path: str) -> None:
    async with api.client() as client, anyio.create_task_group() as tasks:
        statuses: list[int] = []

        async def emit() -> None:
            answer = await client.post(f"{V1}/assets/events", json={"asset": "orders"})
            statuses.append(answer.status_code)

        read = anyio.Event()

        async def read_often() -> None:
            for _ in range(20):
                assert (await client.get(f"{V1}{path}")).status_code == 200
            read.set()

        async with api.database.transaction():
            for _ in range(2 * POOL_SIZE):
                tasks.start_soon(emit)
            # In the task that holds the lock, a request could not wait for it.
            tasks.start_soon(read_often)
            with anyio.fail_after(20):
                await read.wait()
            assert statuses == []
    assert statuses == [201] * 2 * POOL_SIZE


async def test_a_log_of_a_gigabyte_is_read_by_range(api: Api, tmp_path: Path) -> None:
    log = Path(log_path(str(tmp_path), "daily", "manual__1"))
    with log.open("wb") as file:
        file.truncate(1024**3)
        file.seek(0, 2)
        file.write(b"the end\n")
    async with api.client() as client:
        tail = await client.get(f"{V1}/dags/daily/dagRuns/manual__1/logs", params={"tail": 8})
        part = await client.get(
            f"{V1}/dags/daily/dagRuns/manual__1/logs", params={"offset": 1024**3, "limit": 3}
        )
        whole = await client.get(f"{V1}/dags/daily/dagRuns/manual__1/logs", params={"limit": 2**30})
    assert tail.content == b"the end\n"
    assert tail.headers["x-log-size"] == str(1024**3 + 8)
    assert part.content == b"the"
    assert whole.status_code == 400


async def test_a_payload_is_never_markup(api: Api) -> None:
    script = "<script>alert(1)</script>"
    async with api.client() as client:
        body = {"asset": "orders", "extra": {"a": script}}
        event = await client.post(f"{V1}/assets/events", json=body)
        problem = await client.get(f"{V1}/dags/{script.replace('/', '%2F')}")
        page = await client.get("/docs/errors")
    for answer in (event, problem, page):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert event.headers["content-type"] == "application/json"
    assert problem.headers["content-type"] == "application/problem+json"


async def test_canary_secrets_are_in_no_answer(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    from triggerer.observability.redaction import remember_secrets_in

    remember_secrets_in("", {"password": "tweety-one", "url": "postgresql://u:tweety-two@h/db"})
    sent = b""
    async with api.client() as client:
        for method, path, _ in api.routes():
            if method == "GET" and "{" not in path and not path.endswith("/changes"):
                sent += (await client.get(path)).content
        sent += (await client.get(f"{V1}/dags/tweety-one")).content
    assert len(sent) > 10_000
    assert [sent[at - 80 : at + 80] for at in [sent.find(b"tweety")] if at >= 0] == []


_ENDLESS = text(
    "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n"
)


async def test_a_query_that_takes_too_long_is_stopped(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "STATEMENT_TIMEOUT", timedelta(seconds=0.2))
    with anyio.fail_after(5):
        with pytest.raises(StoreError):
            async with api.context.use.reading() as session:
                await session.execute(_ENDLESS)
        async with api.context.use.reading() as session:
            assert await session.scalar(text("SELECT 1")) == 1


async def test_a_query_that_begins_after_the_time_is_over_is_stopped(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request may do other work at the moment when its time is over, and then send another query."""
    limit = timedelta(seconds=0.2)
    monkeypatch.setattr(context, "STATEMENT_TIMEOUT", limit)

    async def work() -> None:
        async with api.context.use.reading() as session:
            await anyio.sleep(2 * limit.total_seconds())
            await session.execute(_ENDLESS)

    with anyio.fail_after(10), pytest.raises(StoreError):
        await work()
    async with api.context.use.reading() as session:
        assert await session.scalar(text("SELECT 1")) == 1


@pytest.mark.parametrize("path", ["/dags?lmit=5", "/runs?dagid=x", "/overview?x=1"])
async def test_an_unknown_parameter_is_named(api: Api, path: str) -> None:
    async with api.client() as client:
        answer = await client.get(f"{V1}{path}")
    assert answer.status_code == 400
    assert path.partition("?")[2].partition("=")[0] in answer.json()["detail"]


async def test_a_path_that_is_too_long_for_a_file_system_shows_the_page(api: Api) -> None:
    """An earlier version looked up each path in the file system. A long path raised an error there."""
    async with api.client(None) as client:
        for path in (f"/{'x' * 300}", f"/assets/{'x' * 5_000}.js"):
            assert (await client.get(path)).status_code == 200


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("order", ["orders"]),
        ("ORD%ERS", ["orders"]),
        ("o%d%s", ["orders"]),
        ("r%r", ["orders", "report"]),
        ("%", ["orders", "report"]),
        ("", ["orders", "report"]),
        ("d%o", []),
        ("or%rd", []),
        ("ord_rs", []),
        (".*", []),
        ("%" * 200 + "Z", []),
        ("o%" * 200, []),
    ],
)
async def test_a_pattern_of_airflow_is_found_in_order_and_in_a_moment(
    api: Api, pattern: str, found: list[str]
) -> None:
    """A regular expression made of the pattern took time that doubled with each `%`."""
    async with api.client("viewer") as client:
        answer = (await client.get("/api/v2/assets", params={"name_pattern": pattern})).json()
    assert [asset["name"] for asset in answer["assets"]] == found
    assert answer["total_entries"] == len(found)
