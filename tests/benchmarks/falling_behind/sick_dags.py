"""The DAG files of `sick_watchers`. Each watcher accepts a tenth of a topic's messages, and some fall sick."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Final

SICK: Final = ("absent", "hanging", "raising", "slow")
TAKES_ONE_IN: Final = 10

_HEALTHY_DAG: Final = """
from triggerer import DAG, Asset, AssetWatcher, task
from watchers.kafka import KafkaEventTrigger


def watched(number):
    # Equal triggers would be one: the constant tells them apart.
    extra = {extra} | {{"w": {{"const": number}}}}
    trigger = KafkaEventTrigger("{topic}", match={{"d": number % {takes_one_in}}}, extra=extra)
    return Asset(name=f"well-{{number}}", uri=f"x-bench://well/{{number}}", watchers=[AssetWatcher("w", trigger)])


assets = [watched(number) for number in range({healthy})]
"""

_SICK_DAG: Final = """
from pathlib import Path

import anyio

from triggerer import DAG, Asset, AssetWatcher, task
from watchers.kafka import KafkaEventTrigger

SICK = Path("{sick}")


class Sick(KafkaEventTrigger):
    \"\"\"Is given every message, and is well while the file is not there.\"\"\"

    def serialize(self):
        return f"{{__name__}}.{{type(self).__name__}}", super().serialize()[1]

    def shared_stream_selector(self):
        return None

    async def suffer(self):
        raise NotImplementedError

    async def filter_shared_stream(self, shared_stream):
        async def suffering():
            async for message in shared_stream:
                if SICK.exists():
                    await self.suffer()
                yield message

        async for event in super().filter_shared_stream(suffering()):
            yield event


class Raising(Sick):
    async def suffer(self):
        raise RuntimeError("cannot take this")


class Hanging(Sick):
    async def suffer(self):
        while SICK.exists():
            await anyio.sleep(0.2)


class Slow(Sick):
    async def suffer(self):
        await anyio.sleep(0.05)


def watched(name, kind):
    trigger = kind("{topic}", match={{"d": 0, "sick": True}}, extra={extra})
    return Asset(name=name, uri=f"x-bench://{{name}}", watchers=[AssetWatcher("w", trigger)])


kinds = {{"raising": Raising, "hanging": Hanging, "slow": Slow}}
assets = [watched(name, kind) for name, kind in kinds.items() if name in {names}]
"""

_ABSENT_DAG: Final = """
import sys

from triggerer import DAG, Asset, AssetWatcher, task
from watchers.kafka import KafkaEventTrigger


class Absent(KafkaEventTrigger):
    def __init__(self, *args, is_broken=False, **kwargs):
        # The process that reads the files can make it, the one that hosts it cannot.
        if is_broken and "standalone" in sys.argv:
            raise RuntimeError("cannot be made of these arguments")
        self.is_broken = is_broken
        super().__init__(*args, **kwargs)

    def serialize(self):
        return f"{{__name__}}.Absent", super().serialize()[1] | {arguments}

    def shared_stream_selector(self):
        return None


trigger = Absent("{topic}", match={{"d": 0, "sick": True}}, extra={extra})
assets = [Asset(name="absent", uri="x-bench://absent", watchers=[AssetWatcher("w", trigger)])]
"""

_PAUSED_DAG: Final = """
with DAG("{dag_id}", schedule=assets, is_paused_upon_creation=True):

    @task
    def nothing():
        \"\"\"Ends at once.\"\"\"

    nothing()
"""

_EXTRA: Final = '{"n": "n", "at": "at", "partition": "@partition", "offset": "@offset"}'


class DagFiles:
    """The DAG files of one benchmark, in a folder that the service reads.

    Args:
        healthy: The number of watchers that are always well.
        sick: The kinds of sick watchers, out of `SICK`.
    """

    def __init__(self, folder: Path, topic: str, *, healthy: int, sick: Collection[str]) -> None:
        self.folder = folder / "dags"
        self.folder.mkdir()
        self._topic = topic
        self._flag = folder / "sick"
        self._healthy = healthy
        self._sick = sorted(sick)
        self._write("well", _HEALTHY_DAG, healthy=healthy, takes_one_in=TAKES_ONE_IN)
        if set(sick) - {"absent"}:
            self._write("sick", _SICK_DAG, sick=self._flag, names=self._sick)
        self._write_absent("{}")

    @property
    def names(self) -> list[str]:
        """The names of the assets, one for each watcher."""
        return [*(f"well-{n}" for n in range(self._healthy)), *self._sick]

    def fall_sick(self) -> None:
        """Make the sick watchers fail from the next message on; `absent` fails once its file has been read again."""
        self._flag.touch()
        self._write_absent('{"is_broken": True}')

    def mend(self) -> None:
        """Make the sick watchers well again; `absent` is well once its file has been read again."""
        self._write_absent("{}")
        self._flag.unlink()

    def _write_absent(self, arguments: str) -> None:
        if "absent" in self._sick:
            self._write("absent", _ABSENT_DAG, arguments=arguments)

    def _write(self, name: str, text: str, **values: object) -> None:
        text = text.format(topic=self._topic, extra=_EXTRA, **values)
        text += _PAUSED_DAG.format(dag_id=f"on_{name}")
        # Replace the file in one step, because the service might read a half-written one.
        new = self.folder.parent / f"{name}.py.new"
        new.write_text(text)
        new.replace(self.folder / f"{name}.py")
