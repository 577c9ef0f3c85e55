"""The only watcher raises at some messages. Only these are dead-lettered, and all other messages make events."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from tests.acceptance.broker_scene import ON_EACH
from tests.acceptance.instance import Instance, wait_until
from tests.acceptance.records import Records
from tests.services.availability import service
from tests.services.brokers.elasticmq import ElasticMqServer, open_elasticmq

DAGS = (
    """
from triggerer import DAG, Asset, AssetWatcher, task
from watchers.sqs import SqsEventTrigger


class Poisoned(SqsEventTrigger):
    def serialize(self):
        return f"{__name__}.Poisoned", super().serialize()[1]

    async def filter_shared_stream(self, shared_stream):
        async def raising():
            async for message in shared_stream:
                if message.json()["is_poison"]:
                    raise RuntimeError("it cannot be read")
                yield message

        async for event in super().filter_shared_stream(raising()):
            yield event


assets = [
    Asset(name=name, uri=f"x-poison://{name}", watchers=[
        AssetWatcher(name, Poisoned(queue, extra=dict(n="n", group="group")))
    ])
    for name, queue in {"plain": "plain", "ordered": "ordered.fifo"}.items()
]
"""
    + ON_EACH
)


@pytest.fixture
def server() -> Iterator[ElasticMqServer]:
    with service(open_elasticmq()) as opened:
        yield opened


def _body(number: int, group: int, *, is_poison: bool) -> str:
    return orjson.dumps({"n": number, "group": group, "is_poison": is_poison}).decode()


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.rule(
    "poison messages that are nacked at once fill all slots, and nothing else gets through"
)
def test_a_poison_message_takes_none_of_those_beside_it_to_the_dead_letter_queue(
    server: ElasticMqServer, tmp_path: Path
) -> None:
    dead = {name: server.create_queue(f"dead-{name}") for name in ("plain", "ordered.fifo")}
    plain, ordered = (
        server.create_queue(name, dead_letters=url, max_receive_count=3)
        for name, url in dead.items()
    )
    server.send(plain, [_body(n, 0, is_poison=n == 13) for n in range(60)])
    for group in range(3):
        bodies = [_body(n, group, is_poison=group < 2 and n == 3) for n in range(20)]
        server.send(ordered, bodies, group=f"g{group}")
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "poison.py").write_text(DAGS)
    quick = {"redelivery_delay_s": 0.2, "redelivery_delay_max_s": 1.0}
    url = f"sqlite:///{tmp_path / 'triggerer.db'}"
    instance = Instance(
        tmp_path / "home",
        dags_folder=dags,
        database_url=url,
        bootstrap="127.0.0.1:1",
        settings="[connections.sqs]\n"
        + "".join(
            f"{key} = {orjson.dumps(value).decode()}\n"
            for key, value in (server.connection | quick).items()
        ),
    )
    instance.start()
    try:
        wait_until(
            lambda: not (server.count(plain) or server.count(ordered)),
            within_s=200,
            what="the queues are empty",
            of=instance,
        )
        assert instance.stop() == 0
    finally:
        if instance.is_running:
            instance.kill()
    found: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for name, extra in Records(url).rows(
        "SELECT a.name, e.extra FROM asset_event e JOIN asset a ON a.id = e.asset_id ORDER BY e.id"
    ):
        event = orjson.loads(extra)
        found[name][event["group"]].append(event["n"])
    lost = {
        name: Counter(orjson.loads(one["Body"])["n"] for one in server.take_all(url))
        for name, url in dead.items()
    }
    assert lost == {"plain": {13: 1}, "ordered.fifo": {3: 2}}, instance.tail(80)
    assert sorted(found["plain"][0]) == [n for n in range(60) if n != 13]
    without = [n for n in range(20) if n != 3]
    assert found["ordered"] == {0: without, 1: without, 2: list(range(20))}
