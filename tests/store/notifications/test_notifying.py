"""Messages reach real HTTP receivers through Apprise, even receivers that refuse, hang or die."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import pytest
from sqlalchemy import select, update
from structlog.testing import capture_logs

from tests.services.http_answers import JsonHandler
from triggerer.config import load_settings
from triggerer.domain.notifications import Event, NotificationText
from triggerer.errors import ConfigurationError, NotificationFailed
from triggerer.notifications import callback, notify
from triggerer.notifications.sending import check_targets
from triggerer.notifications.texts import Writer
from triggerer.observability.metrics.table import NOTIFICATIONS_FAILED, NOTIFICATIONS_SENT
from triggerer.operations.notifying import test_targets as send_test
from triggerer.scheduler.notifying.notifier import Notifier
from triggerer.store.database.transactions import Database, database_now
from triggerer.store.notifications import queue
from triggerer.store.schema.models import Notification

SECRET = "Sup3rS3cret"
LONG = timedelta(seconds=60)


class Receiver(ThreadingHTTPServer):
    """Collects the messages that it receives. It answers after `may_answer` is set, with `status`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.received: list[dict[str, Any]] = []
        self.status = 200
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.has_received = threading.Event()

    @property
    def url(self) -> str:
        return f"json://127.0.0.1:{self.server_port}/{SECRET}"

    @property
    def titles(self) -> list[str]:
        return [one["title"] for one in self.received]


class _Handler(JsonHandler):
    server: Receiver

    def respond(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received.append(json.loads(body))
        self.server.has_received.set()
        self.server.may_answer.wait(60)
        self.answer({"echo": self.path}, self.server.status)


@contextmanager
def receiving() -> Iterator[Receiver]:
    with Receiver() as receiver:
        thread = threading.Thread(target=receiver.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield receiver
        finally:
            receiver.may_answer.set()
            receiver.shutdown()
            thread.join()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as one:
        yield one


@pytest.fixture(autouse=True)
def _nothing_counted() -> Iterator[None]:
    yield
    NOTIFICATIONS_SENT.clear()
    NOTIFICATIONS_FAILED.clear()


def notifier(
    database: Database, urls: dict[str, str], *, deadline: timedelta = LONG, **options: timedelta
) -> Notifier:
    return Notifier(
        database,
        tuple(Event),
        targets=list(urls),
        get_url=urls.__getitem__,
        get_writer=lambda: Writer("here", ""),
        deadline=deadline,
        **options,
    )


async def put(database: Database, *titles: str, targets: list[str]) -> None:
    async with database.transaction() as session:
        now = await database_now(session)
        await queue.put(session, targets, [NotificationText(one, "body") for one in titles], now)


async def left(database: Database) -> list[tuple[str, str, int]]:
    async with database.reading() as session:
        rows = await session.scalars(select(Notification).order_by(Notification.id))
        return [(row.target, row.title, row.attempts) for row in rows]


async def make_due(database: Database) -> None:
    async with database.transaction() as session:
        now = await database_now(session)
        await session.execute(update(Notification).values(due_at=now))


async def test_a_target_that_fails_delays_no_other_and_gets_its_messages_later(
    sqlite: Database, receiver: Receiver
) -> None:
    with receiving() as ill:
        with receiving() as gone:
            urls = {"well": receiver.url, "ill": ill.url, "gone": gone.url}
        # `gone` is closed by now, so it refuses connections.
        ill.status = 500
        one = notifier(sqlite, urls)
        await put(sqlite, "first", "second", targets=list(urls))
        with capture_logs() as lines:
            await one.send_due()
        assert receiver.titles == ["first", "second"]
        assert receiver.received[0]["type"] == "failure"
        assert ill.titles == ["first"]
        assert await left(sqlite) == [
            ("ill", "first", 1),
            ("ill", "second", 0),
            ("gone", "first", 1),
            ("gone", "second", 0),
        ]
        assert NOTIFICATIONS_SENT.values() == {("well",): 2}
        assert NOTIFICATIONS_FAILED.values() == {("ill",): 1, ("gone",): 1}
        errors = {line["target"]: line["error"] for line in lines}
        assert "error=500" in errors["ill"]
        assert "onnection error" in errors["gone"]
        assert SECRET not in repr(lines)

        ill.status = 200
        urls["gone"] = receiver.url
        await make_due(sqlite)
        with capture_logs() as lines:
            await one.send_due()
        assert await left(sqlite) == []
        assert ill.titles == ["first", "first", "second"]
        assert [line["event"] for line in lines] == [
            "a target of notifications accepts messages again"
        ] * 2


async def test_a_target_whose_url_cannot_be_resolved_delays_no_other(
    sqlite: Database, receiver: Receiver, tmp_path: Path
) -> None:
    (tmp_path / "url").write_text(receiver.url)
    file = tmp_path / "triggerer.toml"
    file.write_text('[notify]\nurls = ["file:gone", "file:url"]\n')
    settings = load_settings(file, {})
    one = Notifier(
        sqlite,
        tuple(Event),
        targets=["file:gone", "file:url"],
        get_url=settings.resolve_target,
        get_writer=lambda: Writer("here", ""),
    )
    await put(sqlite, "first", "second", targets=["file:gone", "file:url"])
    with capture_logs() as lines:
        wait = await one.send_due()
    assert receiver.titles == ["first", "second"]
    assert await left(sqlite) == [("file:gone", "first", 1), ("file:gone", "second", 0)]
    assert wait is not None
    assert wait > timedelta(seconds=5)
    (line,) = lines
    assert line["target"] == "file:gone"
    assert f"{tmp_path}/gone" in line["error"]

    (tmp_path / "gone").write_text(receiver.url)
    await make_due(sqlite)
    await one.send_due()
    assert await left(sqlite) == []


async def test_a_target_that_does_not_answer_is_left_at_the_deadline(
    sqlite: Database, receiver: Receiver
) -> None:
    receiver.may_answer.clear()
    urls = {"slow": receiver.url}
    await put(sqlite, "first", "second", targets=["slow"])
    with capture_logs() as lines:
        await notifier(sqlite, urls, deadline=timedelta(seconds=0.5)).send_due()
    assert [line["error"] for line in lines] == ["no answer within 0.5 s"]
    assert await left(sqlite) == [("slow", "first", 1), ("slow", "second", 0)]


async def test_a_message_whose_sending_was_stopped_is_sent_again(
    sqlite: Database, receiver: Receiver
) -> None:
    receiver.may_answer.clear()
    urls = {"chat": receiver.url}
    await put(sqlite, "first", targets=["chat"])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(notifier(sqlite, urls).run)
        assert await anyio.to_thread.run_sync(receiver.has_received.wait, 50)
        tasks.cancel_scope.cancel()
    assert await left(sqlite) == [("chat", "first", 1)]
    receiver.may_answer.set()
    await make_due(sqlite)
    await notifier(sqlite, urls).send_due()
    assert await left(sqlite) == []
    assert receiver.titles == ["first", "first"]


async def test_a_backlog_is_sent_without_waiting_for_the_next_search(
    sqlite: Database, receiver: Receiver
) -> None:
    urls = {"chat": receiver.url}
    sent = [str(number) for number in range(12)]
    await put(sqlite, *sent, targets=["chat"])
    one = notifier(sqlite, urls, look_every=timedelta(hours=1), gap=timedelta(0))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.run)
        with anyio.fail_after(50):
            while await left(sqlite):  # noqa: ASYNC110 (the store announces no sending)
                await anyio.sleep(0.05)
        tasks.cancel_scope.cancel()
    assert receiver.titles == sent


async def test_a_target_that_fails_is_not_tried_again_for_each_of_its_messages(
    sqlite: Database, receiver: Receiver
) -> None:
    receiver.status = 500
    one = notifier(sqlite, {"chat": receiver.url})
    await put(sqlite, "first", "second", targets=["chat"])
    for _ in range(2):
        wait = await one.send_due()
        assert wait is not None
        assert wait > timedelta(seconds=5)
    assert receiver.titles == ["first"]
    assert await left(sqlite) == [("chat", "first", 1), ("chat", "second", 0)]


async def test_urls_that_apprise_does_not_understand_are_refused_without_their_secrets() -> None:
    urls = {"env:CHAT": f"slak://{SECRET}/x", "ok": "json://localhost", "bad": f"slack://{SECRET}"}
    with pytest.raises(ConfigurationError) as raised:
        await check_targets(urls)
    assert "does not understand env:CHAT, bad" in str(raised.value)
    assert SECRET not in str(raised.value)


async def test_a_test_reports_each_target(receiver: Receiver) -> None:
    found = await send_test({"ok": receiver.url, "bad": "json://127.0.0.1:1/x"}, Writer("me", ""))
    assert [(one.target, one.error is None) for one in found] == [("ok", True), ("bad", False)]
    assert receiver.titles == ["triggerer: test"]


# A call of `notify` imports Apprise in pytest's process. The import warns on Python 3.11 and 3.12.

in_process = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")


class Run:
    dag_id, run_id = "sales", "r1"


@in_process
def test_the_callback_of_a_dag_sends_the_end_of_a_run(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHAT", receiver.url)
    notify("env:CHAT")({"dag_run": Run, "state": "failed", "error": "ValueError: no rows"})
    notify(receiver.url)({"dag_run": Run, "state": "success", "error": None})
    assert receiver.titles == ["DAG sales: run r1 failed", "DAG sales: run r1 ended with success"]
    assert "Error: ValueError: no rows" in receiver.received[0]["message"]


@in_process
def test_the_callback_of_a_dag_tries_again_and_then_says_which_target_failed(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callback, "_DELAYS_S", (0.0, 0.0))
    receiver.status = 500
    with pytest.raises(NotificationFailed) as raised:
        notify(receiver.url)({"dag_run": Run, "state": "failed", "error": None})
    assert len(receiver.titles) == 3
    assert "json://***: " in str(raised.value)
    assert SECRET not in str(raised.value)


@in_process
def test_the_callback_of_a_dag_sends_to_the_other_targets_if_one_cannot_be_resolved(
    receiver: Receiver, tmp_path: Path
) -> None:
    gone = f"file:{tmp_path}/gone"
    with pytest.raises(NotificationFailed) as raised:
        notify(gone, receiver.url)({"dag_run": Run, "state": "failed", "error": None})
    assert receiver.titles == ["DAG sales: run r1 failed"]
    assert f"{gone}: " in str(raised.value)
