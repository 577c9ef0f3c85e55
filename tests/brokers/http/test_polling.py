"""Polling a real server in the real runtime: which items fire, and which do not."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import anyio
import pytest

from producers.http.errors import TryLater
from tests.brokers.http.server import Asked, Reply, Server
from triggerer.abc import TriggerEvent
from triggerer.errors import BrokerRefused, BrokerUnavailable, ConfigurationError
from triggerer.testing import HostedView, StreamHarness
from watchers.http import HttpPollTrigger

EVERY = 0.02


pytestmark = pytest.mark.usefixtures("connection")


def polling(server: Server, path: str = "/orders", **arguments: Any) -> HttpPollTrigger:
    return HttpPollTrigger(server.url + path, poke_interval=EVERY, **arguments)


def ids(view: HostedView) -> list[Any]:
    return [event.payload["value"]["id"] for event in view.events]


async def until(condition: Callable[[], bool], view: HostedView | None = None) -> None:
    with anyio.fail_after(30):
        while not condition():
            assert view is None or view.error is None, view.error
            await anyio.sleep(0.005)


async def until_asked(server: Server, times: int = 2) -> None:
    """Wait for this number of further answers, so that the content before this call has been polled."""
    before = len(server.statuses)
    await until(lambda: len(server.statuses) >= before + times)


async def error_of(streams: StreamHarness, trigger: HttpPollTrigger) -> BaseException:
    view = await streams.add(trigger)
    await until(lambda: view.error is not None)
    error = view.error
    assert error is not None
    return error.__cause__ or error


async def test_each_new_item_fires_once_in_the_order_of_the_answer(
    server: Server, streams: StreamHarness
) -> None:
    server.document = [{"id": 1}, {"id": 2}]
    view = await streams.add(polling(server, items="@value", item_key="id"))
    await until(lambda: len(view.events) == 2, view)
    server.document = [{"id": 3}, {"id": 1}, {"id": 2}, {"id": 4}]
    await until(lambda: len(view.events) == 4, view)
    await until_asked(server)
    assert ids(view) == [1, 2, 3, 4]
    extra = view.events[0].payload
    assert extra["url"] == server.url + "/orders"
    assert extra["item_key"] == 1
    assert abs(extra["timestamp"] / 1000 - time.time()) < 60


async def test_an_answer_that_has_not_changed_is_not_sent_again_and_fires_nothing(
    server: Server, streams: StreamHarness
) -> None:
    server.document = [{"id": 1}]
    view = await streams.add(polling(server, items="@value", item_key="id"))
    await until_asked(server, 4)
    assert ids(view) == [1]
    assert server.statuses[:4] == [200, 304, 304, 304]
    assert server.asked[1].headers["If-None-Match"]


async def test_an_answer_may_begin_with_the_mark_of_its_byte_order(
    server: Server, streams: StreamHarness
) -> None:
    server.answer = lambda _: Reply(body=b'\xef\xbb\xbf[{"id": 1}]')
    view = await streams.add(polling(server, items="@value"))
    await until(lambda: len(view.events) == 1, view)
    assert ids(view) == [1]


async def test_last_modified_is_sent_back_where_there_is_no_etag(
    server: Server, streams: StreamHarness
) -> None:
    stamp = "Tue, 24 Nov 2026 10:00:00 GMT"

    def answer(asked: Asked) -> Reply:
        if asked.headers.get("If-Modified-Since") == stamp:
            return Reply(304)
        return Reply(body=b'[{"id": 1}]', headers={"Last-Modified": stamp})

    server.answer = answer
    view = await streams.add(polling(server, items="@value"))
    await until_asked(server, 3)
    assert ids(view) == [1]
    assert server.statuses[:3] == [200, 304, 304]


@pytest.mark.parametrize(("age_s", "is_sent"), [(0, False), (59, False), (60, True)])
async def test_a_last_modified_of_just_now_does_not_tell_contents_apart(
    server: Server, streams: StreamHarness, age_s: int, is_sent: bool
) -> None:
    """A `Last-Modified` younger than a minute is not sent back.

    The header counts whole seconds. If the content changed twice in a second, the server would answer 304.
    """
    answered = datetime(2026, 11, 24, 10, tzinfo=UTC)
    stamp = format_datetime(answered - timedelta(seconds=age_s), usegmt=True)
    server.date = format_datetime(answered, usegmt=True)
    server.answer = lambda _: Reply(body=b"[]", headers={"Last-Modified": stamp})
    await streams.add(polling(server, items="@value"))
    await until_asked(server, 3)
    assert server.asked[1].headers.get("If-Modified-Since") == (stamp if is_sent else None)


@pytest.mark.parametrize("broken", ["soon", "Mon, 01 Jan 99999999999999999999 00:00:00 GMT"])
async def test_a_time_that_cannot_be_read_does_not_end_the_poll(
    server: Server, streams: StreamHarness, broken: str
) -> None:
    stamp = "Tue, 24 Nov 2020 10:00:00 GMT"
    stamps = iter([broken, stamp])

    def answer(asked: Asked) -> Reply:
        return Reply(body=b'[{"id": 1}]', headers={"Last-Modified": next(stamps, stamp)})

    server.answer = answer
    server.date = broken
    view = await streams.add(polling(server, items="@value"))
    await until_asked(server, 3)
    assert view.error is None
    assert ids(view) == [1]
    sent = [asked.headers.get("If-Modified-Since") for asked in server.asked[:3]]
    assert sent == [None, None, stamp]


async def test_the_number_of_a_documents_version_is_stored_before_it_is_delivered(
    server: Server,
) -> None:
    server.document = {"state": "up"}
    trigger = polling(server)
    key = trigger.shared_stream_key()
    async with StreamHarness(persistence="manual") as streams:
        view = await streams.add(trigger)
        await until(lambda: len(view.unpersisted) == 1, view)
        assert streams.states[key]["delivered"][0] == 1
        server.document = {"state": "down"}
        await until(lambda: len(view.unpersisted) == 2, view)
        assert streams.states[key]["delivered"][0] == 2
        await streams.persist()
        await until(lambda: streams.states[key]["version"] == 2, view)
        assert streams.states[key]["delivered"] is None


async def test_a_changed_item_fires_if_all_of_it_counts_and_does_not_if_its_key_is_known(
    server: Server, streams: StreamHarness
) -> None:
    server.document = [{"id": 1, "state": "new"}]
    whole = await streams.add(polling(server, items="@value"))
    keyed = await streams.add(polling(server, items="@value", item_key="id"))
    await until(lambda: bool(whole.events and keyed.events))
    server.document = [{"id": 1, "state": "paid"}]
    await until(lambda: len(whole.events) == 2, whole)
    await until_asked(server, 4)
    assert [event.payload["value"]["state"] for event in whole.events] == ["new", "paid"]
    assert ids(keyed) == [1]


async def test_a_document_fires_when_it_changes_and_when_it_changes_back(
    server: Server, streams: StreamHarness
) -> None:
    view = await streams.add(polling(server))
    for number, state in enumerate(["up", "down", "up"], 1):
        server.document = {"state": state}
        await until(lambda number=number: len(view.events) == number, view)  # type: ignore[misc]
    await until_asked(server)
    assert [event.payload["value"]["state"] for event in view.events] == ["up", "down", "up"]


@pytest.mark.parametrize("items", [None, "@value"])
async def test_what_is_there_at_first_can_be_skipped(
    server: Server, streams: StreamHarness, items: str | None
) -> None:
    server.document = [{"id": 1}]
    view = await streams.add(polling(server, items=items, first="skip"))
    await until_asked(server, 3)
    assert view.events == []
    server.document = [{"id": 1}, {"id": 2}]
    await until(lambda: bool(view.events), view)
    await until_asked(server)
    assert len(view.events) == 1
    if items:
        assert ids(view) == [2]


def pages(asked: Asked) -> Reply:
    """Ten items, three to a page; the cursor is the last item's number."""
    after = int(asked.query.get("after", ["0"])[0])
    found = [{"id": number} for number in range(after + 1, min(after + 4, 11))]
    cursor = found[-1]["id"] if found else after
    return Reply(body=json.dumps({"data": {"items": found}, "next": cursor}).encode())


CURSOR = {"path": "next", "param": "after"}


async def test_a_cursor_goes_into_the_query_and_pages_are_fetched_in_a_row(
    server: Server, streams: StreamHarness
) -> None:
    server.answer = pages
    trigger = HttpPollTrigger(
        server.url + "/orders?limit=3",
        poke_interval=3600,
        items="data.items",
        item_key="id",
        cursor=CURSOR,
    )
    view = await streams.add(trigger)
    await until(lambda: len(view.events) == 10, view)
    assert ids(view) == list(range(1, 11))
    assert [asked.query.get("after") for asked in server.asked[:4]] == [None, ["3"], ["6"], ["9"]]
    assert all(asked.query["limit"] == ["3"] for asked in server.asked)


async def test_all_pages_that_are_there_at_first_are_skipped(
    server: Server, streams: StreamHarness
) -> None:
    server.answer = pages
    view = await streams.add(
        polling(server, items="data.items", item_key="id", cursor=CURSOR, first="skip")
    )
    await until_asked(server, 8)
    assert view.events == []
    assert server.asked[-1].query["after"] == ["10"]


async def test_pages_that_are_skipped_may_be_many_and_the_server_may_ask_for_patience(
    server: Server, streams: StreamHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("producers.http.producer.MOST_PAGES", 2)
    busy = [Reply(429, headers={"Retry-After": "0"})]

    def answer(asked: Asked) -> Reply:
        return busy.pop() if "after" in asked.query and busy else pages(asked)

    server.answer = answer
    view = await streams.add(
        polling(server, items="data.items", item_key="id", cursor=CURSOR, first="skip")
    )
    await until(lambda: server.asked[-1:] != [] and server.asked[-1].query.get("after") == ["10"])
    await until_asked(server, 3)
    assert view.error is None
    assert view.events == []
    assert 429 in server.statuses


async def test_a_cursor_is_not_stored_before_the_items_behind_it_are_durable(
    server: Server,
) -> None:
    server.answer = pages
    trigger = polling(server, items="data.items", item_key="id", cursor=CURSOR)
    key = trigger.shared_stream_key()
    async with StreamHarness(persistence="manual") as streams:
        view = await streams.add(trigger)
        await until(lambda: len(view.unpersisted) == 10, view)
        assert streams.states[key]["cursor"] is None
        await streams.persist(4)
        await until(lambda: len(streams.states[key]["known"]) == 4, view)
        assert streams.states[key]["cursor"] == 3
        await streams.persist()
        await until(lambda: streams.states[key]["cursor"] == 10, view)


async def test_a_successor_goes_on_where_its_predecessor_was(server: Server) -> None:
    server.document = [{"id": 1}, {"id": 2}]
    trigger = polling(server, items="@value", item_key="id")
    key = trigger.shared_stream_key()
    async with StreamHarness() as streams:
        view = await streams.add(trigger)
        await until(lambda: len(view.events) == 2, view)
        await until(lambda: len(streams.states[key]["known"]) == 2, view)
        await until_asked(server)
        state = streams.states[key]
    server.document = [{"id": 2}, {"id": 3}]
    before = len(server.asked)
    async with StreamHarness() as streams:
        streams.states[key] = state
        view = await streams.add(trigger)
        await until(lambda: bool(view.events), view)
        await until_asked(server)
        assert ids(view) == [3]
    assert server.asked[before].headers["If-None-Match"]


async def test_two_siblings_share_each_request_and_filter_for_themselves(
    server: Server, streams: StreamHarness
) -> None:
    server.document = [{"id": 1, "amount": 5}, {"id": 2, "amount": 50}]
    arguments = {"items": "@value", "item_key": "id"}
    large = await streams.add(polling(server, match={"amount": {"gt": 10}}, **arguments))
    every = await streams.add(polling(server, extra={"id": "id"}, **arguments))
    await until(lambda: len(every.events) == 2 and len(large.events) == 1)
    await until_asked(server)
    assert ids(large) == [2]
    assert [event.payload for event in every.events] == [{"id": 1}, {"id": 2}]
    assert [view.subscribers for view in streams.groups.values()] == [2]
    assert server.statuses.count(200) == 1


class FailsOnce(HttpPollTrigger):
    """Raises at the first delivery of item 2."""

    async def filter_shared_stream(self, shared_stream: Any) -> Any:
        async for message in shared_stream:
            if message.json()["id"] == 2 and message.deliveries == 1:
                raise ValueError("not today")
            yield TriggerEvent({"value": message.json()})


async def test_an_item_that_failed_comes_again_and_the_state_does_not_pass_it(
    server: Server,
) -> None:
    server.document = [{"id": 1}, {"id": 2}, {"id": 3}]
    trigger = FailsOnce(server.url, poke_interval=EVERY, items="@value", item_key="id")
    key = trigger.shared_stream_key()
    async with StreamHarness() as streams:
        view = await streams.add(trigger)
        await until(lambda: view.error is not None)
        await until(lambda: len(streams.states[key]["known"]) == 1)
        await streams.quiesce()
        assert len(streams.states[key]["known"]) == 1
        assert streams.states[key]["validators"] is None
        assert ids(view) == [1]
        again = await streams.add(polling(server, "", items="@value", item_key="id"))
        await until(lambda: len(again.events) == 2, again)
        assert ids(again) == [2, 3]


# What the server does


async def test_a_server_that_says_when_to_come_again_is_left_alone_until_then(
    server: Server, streams: StreamHarness
) -> None:
    first = [Reply(503, headers={"Retry-After": "1"})]
    server.answer = lambda _: first.pop() if first else None
    server.document = [{"id": 1}]
    view = await streams.add(polling(server, items="@value"))
    started = time.monotonic()
    await until(lambda: bool(view.events), view)
    assert time.monotonic() - started > 0.9
    assert server.statuses[:2] == [503, 200]


@pytest.mark.parametrize(
    ("reply", "kind", "said"),
    [
        (Reply(500), BrokerUnavailable, "answers 500 Internal Server Error"),
        (Reply(401), BrokerRefused, "check the connection's token"),
        (Reply(404), BrokerRefused, "check the URL"),
        (Reply(206 + 100), BrokerRefused, "which has no content"),
        (Reply(body=b"<html>"), BrokerRefused, "the answer is not JSON"),
        (Reply(body=b'{"items": []}'), BrokerRefused, "no list at '@value'"),
        (Reply(body=b"[" + b"1," * 20_000 + b"1]"), BrokerRefused, "has 20001 items"),
        (Reply(302, headers={"Location": "/orders"}), BrokerRefused, "more than 5 times"),
        (Reply(302, headers={"Location": "ftp://x/y"}), BrokerRefused, "redirects to ftp://x/y"),
        (
            Reply(302, headers={"Location": "http://x:99999/"}),
            BrokerRefused,
            "an invalid URL: Port",
        ),
        (Reply(body=b"[]" + b" " * 4096, delay_s=30), BrokerUnavailable, "no complete answer"),
        (Reply(body=b" " * 200_000), BrokerRefused, "more than 100000 bytes"),
    ],
)
async def test_what_is_no_answer_ends_the_stream_with_the_reason(
    server: Server,
    streams: StreamHarness,
    connection: dict[str, Any],
    reply: Reply,
    kind: type[Exception],
    said: str,
) -> None:
    connection |= {"timeout_s": 1.0, "max_bytes": 100_000}
    server.answer = lambda _: reply
    error = await error_of(streams, polling(server, "/orders?api_key=hush", items="@value"))
    assert isinstance(error, kind)
    assert said in str(error)
    assert "hush" not in str(error)


@pytest.mark.parametrize("nothing", [Reply(204), Reply(body=b"null")])
async def test_a_server_that_has_nothing_for_now_has_an_empty_list(
    server: Server, streams: StreamHarness, nothing: Reply
) -> None:
    replies = [nothing, nothing]
    server.answer = lambda _: replies.pop() if replies else None
    server.document = [{"id": 1}]
    view = await streams.add(polling(server, items="@value"))
    await until(lambda: bool(view.events), view)
    assert not replies


async def test_a_url_that_has_no_content_for_now_fires_nothing(
    server: Server, streams: StreamHarness
) -> None:
    replies = [Reply(204), Reply(204)]
    server.answer = lambda _: replies.pop() if replies else None
    server.document = {"id": 1}
    view = await streams.add(polling(server, decode="text"))
    await until(lambda: bool(view.events), view)
    assert [event.payload["value"] for event in view.events] == ['{"id": 1}']


async def test_a_cursor_that_the_server_knows_no_more_is_named(
    server: Server, streams: StreamHarness
) -> None:
    """The error of an unknown cursor must not say "check the URL", because the URL is right."""
    server.document = {"items": [{"id": 1}], "next": "t0k3n"}
    server.answer = lambda asked: Reply(410) if "after" in asked.query else None
    cursor = {"path": "next", "param": "after"}
    error = await error_of(streams, polling(server, items="items", cursor=cursor))
    assert "410 Gone" in str(error)
    assert "the stored cursor as 'after'" in str(error)
    assert "t0k3n" not in str(error)
    server.answer = lambda _: Reply(410)
    other = await error_of(streams, polling(server, "/x", items="items", cursor=cursor))
    assert "check the URL" in str(other)


async def test_requests_go_through_the_proxy_of_the_environment(
    server: Server, streams: StreamHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", server.url)
    server.document = [{"id": 1}]
    far = "http://shop.example/orders"
    view = await streams.add(HttpPollTrigger(far, poke_interval=EVERY, items="@value"))
    await until(lambda: bool(view.events), view)
    assert server.asked[0].headers["Host"] == "shop.example"
    server.answer = lambda _: Reply(407)
    refused = await error_of(streams, HttpPollTrigger("http://shop.example/other"))
    assert "check the proxy's user and password" in str(refused)


@pytest.mark.parametrize(
    ("proxy", "kind", "said"),
    [
        ("http://u:s3cret@127.0.0.1:9", BrokerUnavailable, "through the proxy of the environment"),
        ("http://u:s3cret@127.0.0.1:port", ConfigurationError, "HTTP_PROXY"),
        ("socks5://u:s3cret@127.0.0.1:9", ConfigurationError, "HTTP_PROXY"),
    ],
)
async def test_a_proxy_that_cannot_be_used_is_named(
    streams: StreamHarness,
    monkeypatch: pytest.MonkeyPatch,
    proxy: str,
    kind: type[Exception],
    said: str,
) -> None:
    """The error must not blame the server, and must not come from the client library."""
    monkeypatch.setenv("HTTP_PROXY", proxy)
    error = await error_of(streams, HttpPollTrigger("http://shop.example/orders"))
    assert type(error) is kind
    assert said in str(error)
    assert "s3cret" not in str(error)


async def test_a_server_that_is_not_there_is_unavailable(streams: StreamHarness) -> None:
    error = await error_of(streams, HttpPollTrigger("http://127.0.0.1:9/x"))
    assert type(error) is BrokerUnavailable
    assert "reachable from here" in str(error)


async def test_a_redirect_is_followed(server: Server, streams: StreamHarness) -> None:
    server.document = [{"id": 1}]
    moved = Reply(308, headers={"Location": "/v2/orders"})
    server.answer = lambda asked: moved if asked.path == "/orders" else None
    view = await streams.add(polling(server, items="@value"))
    await until(lambda: bool(view.events), view)
    await until_asked(server, 4)
    assert 304 in server.statuses
    assert view.events[0].payload["url"].endswith("/orders")


async def test_keys_of_more_than_64_bits_are_told_apart(
    server: Server, streams: StreamHarness
) -> None:
    """The keys of two items are long integers, which are equal as floating-point numbers."""
    first = 123456789012345678901234567890
    server.document = [{"id": first}, {"id": first + 1}, {"id": 1.5}, {"id": 7}]
    view = await streams.add(polling(server, items="@value", item_key="id"))
    await until(lambda: len(view.events) == 4, view)
    keys = [event.payload["item_key"] for event in view.events]
    assert keys == [str(first), str(first + 1), 1.5, 7]


# Connections


async def test_token_and_headers_are_sent_and_a_path_is_joined_to_the_base_url(
    server: Server, streams: StreamHarness, connection: dict[str, Any]
) -> None:
    connection |= {"base_url": server.url + "/v1/", "token": "s3cret", "headers": {"X-Team": "a"}}
    server.document = [{"id": 1}]
    view = await streams.add(HttpPollTrigger("orders", items="@value"))
    await until(lambda: bool(view.events), view)
    (asked, *_) = server.asked
    assert asked.path == "/v1/orders"
    assert asked.headers["Authorization"] == "Bearer s3cret"
    assert asked.headers["X-Team"] == "a"
    assert view.events[0].payload["url"] == "orders"


async def test_a_key_of_the_query_is_sent_and_is_in_no_event_and_no_state(
    server: Server, streams: StreamHarness, connection: dict[str, Any]
) -> None:
    connection |= {"base_url": server.url, "params": {"appid": "k3y"}}
    elsewhere = server.url.replace("127.0.0.1", "localhost") + "/there?n=2"
    server.answer = lambda asked: (
        Reply(302, headers={"Location": elsewhere}) if asked.path == "/orders" else None
    )
    server.document = [{"id": 1}]
    view = await streams.add(HttpPollTrigger("orders?n=1", items="@value", poke_interval=EVERY))
    await until(lambda: bool(view.events), view)
    await until_asked(server)
    asked = {one.path: one.query for one in server.asked}
    assert asked == {"/orders": {"n": ["1"], "appid": ["k3y"]}, "/there": {"n": ["2"]}}
    assert view.events[0].payload["url"] == "orders?n=1"


async def test_a_key_in_the_url_is_warned_of() -> None:
    plain, *_ = (await HttpPollTrigger("http://a/b?n=1").describe_delivery(ask=False)).findings
    found = (
        await HttpPollTrigger("http://a/b?n=1&api_key=x").describe_delivery(ask=False)
    ).findings
    assert found[0] == plain
    assert "'api_key' in the query" in str(found[1])
    assert 'params = { api_key = "env:NAME" }' in str(found[1])


async def test_secrets_go_to_no_other_server(
    server: Server, streams: StreamHarness, connection: dict[str, Any]
) -> None:
    connection |= {"token": "s3cret", "headers": {"X-Api-Key": "k3y"}}
    elsewhere = server.url.replace("127.0.0.1", "localhost") + "/there"
    server.answer = lambda asked: (
        Reply(302, headers={"Location": elsewhere}) if asked.path == "/orders" else None
    )
    server.document = [{"id": 1}]
    view = await streams.add(polling(server, items="@value"))
    await until(lambda: bool(view.events), view)
    sent = {
        asked.path: set(asked.headers) & {"Authorization", "X-Api-Key"} for asked in server.asked
    }
    assert sent == {"/orders": {"Authorization", "X-Api-Key"}, "/there": set()}


async def test_secrets_of_a_base_url_are_not_sent_to_an_absolute_one_elsewhere(
    server: Server, streams: StreamHarness, connection: dict[str, Any]
) -> None:
    connection |= {"base_url": "https://api.example.com", "token": "s3cret"}
    server.document = [{"id": 1}]
    view = await streams.add(polling(server, items="@value"))
    await until(lambda: bool(view.events), view)
    assert "Authorization" not in server.asked[0].headers


async def test_a_path_without_a_base_url_is_refused(streams: StreamHarness) -> None:
    error = await error_of(streams, HttpPollTrigger("orders"))
    assert isinstance(error, ConfigurationError)
    assert "base_url" in str(error)


async def test_the_source_can_be_checked(server: Server) -> None:
    server.document = [{"id": 1}]
    await polling(server, items="@value").check_source()
    with pytest.raises(BrokerRefused, match="no list at 'data'"):
        await polling(server, items="data").check_source()
    server.answer = lambda _: Reply(429, headers={"Retry-After": "5"})
    with pytest.raises(TryLater):
        await polling(server).check_source()


async def test_a_request_that_hangs_is_cancelled_with_the_stream(server: Server) -> None:
    server.answer = lambda _: Reply(body=b"[]" * 100, delay_s=30)
    with anyio.fail_after(10):
        async with StreamHarness() as streams:
            await streams.add(polling(server))
            await until(lambda: bool(server.asked))
