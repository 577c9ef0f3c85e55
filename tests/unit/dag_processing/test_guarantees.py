"""The guarantees of watchers in `triggerer check`."""

from datetime import timedelta
from pathlib import Path

import pytest

from tests.unit.dag_processing.watched import parsed_watchers
from triggerer.dag_processing import CheckedGuarantees, check_guarantees, parse_once

_TRIGGERS = """
from triggerer.abc import DeliveryFacts, Finding, Guarantee
from triggerer.errors import BrokerUnavailable, ConfigurationError

class Fast(Base):
    pass

class Queue(Base):
    async def describe_delivery(self, *, ask):
        lock = None
        if ask:
            lock = __import__("datetime").timedelta(seconds=30)
        return DeliveryFacts(
            is_acknowledged=True, because="deleted last", key="the message id", redelivers_after=lock
        )

class Named(Base):
    async def describe_delivery(self, *, ask):
        source = f"queue {self.key.rpartition('/')[2]}" if ask else None
        if "," in self.key:
            source = tuple(self.key.split(","))
        return DeliveryFacts(is_acknowledged=True, because="deleted last", source=source)

class Away(Base):
    async def describe_delivery(self, *, ask):
        if ask:
            raise BrokerUnavailable("nobody at q:1")
        return DeliveryFacts(is_acknowledged=True, because="deleted last")

class Wrong(Base):
    async def describe_delivery(self, *, ask):
        raise ConfigurationError("unknown key 'x'")

class Seconds(Base):
    async def describe_delivery(self, *, ask):
        return DeliveryFacts(is_acknowledged=True, because="deleted last", retention=60.0, key=("id",))

class Texts(Base):
    async def describe_delivery(self, *, ask):
        found = Finding("it is old", most="at_least_once")
        return DeliveryFacts(is_acknowledged=True, because="deleted last", findings=(found,))

class Mapped(Base):
    async def describe_delivery(self, *, ask):
        return {"is_acknowledged": True}

class Broken(Base):
    async def describe_delivery(self, *, ask):
        return self.nothing
"""


async def checked(folder: Path, watchers: dict[str, str], *, ask: bool = True) -> CheckedGuarantees:
    found = await parsed_watchers(folder, _TRIGGERS, watchers)
    return await check_guarantees(
        found, dags_folder=folder, ack_timeout=timedelta(minutes=5), ask=ask
    )


async def test_each_watcher_gets_its_promise_with_the_reason(tmp_path: Path) -> None:
    found = await checked(tmp_path, {"fast": "Fast()", "queue": "Queue()", "away": "Away()"})
    assert [(one.watcher.asset_name, str(one.promised)) for one in found.results] == [
        (
            "fast",
            "at most once: it takes the fast path, which neither acknowledges nor redelivers messages",
        ),
        (
            "queue",
            "effectively once: deleted last; a repeated message is recognised by the message id",
        ),
        ("away", "at least once: deleted last; a repeated message is not recognised"),
    ]
    assert found.errors == ()
    (warning,) = found.warnings
    assert "watcher 'w' of asset 'queue': the source delivers a message again" in str(warning)


async def test_no_source_is_asked_offline(tmp_path: Path) -> None:
    found = await checked(tmp_path, {"queue": "Queue()"}, ask=False)
    assert found.warnings == ()


async def test_streams_that_divide_the_messages_of_one_source_are_warned_of(tmp_path: Path) -> None:
    watchers = {
        "a": "Named('q')",
        "b": "Named('https://x/q')",
        "c": "Named('https://x/other')",
        "d": "Named('https://x/q')",
    }
    found = await checked(tmp_path, watchers)
    assert [str(warning) for warning in found.warnings] == [
        (
            "dag.py:4: watcher 'w' of asset 'b': its stream and the stream of watcher 'w' of asset 'a' both read queue"
            " q: each gets a part of the messages (use the same name and connection for the source everywhere; each"
            " reader of a Kafka topic needs a group_id of its own)"
        )
    ]
    assert (await checked(tmp_path, watchers, ask=False)).warnings == ()


async def test_streams_that_share_some_of_their_sources_are_warned_of_once(tmp_path: Path) -> None:
    watchers = {"a": "Named('x,y,z')", "b": "Named('y,z,w')", "c": "Named('v,u')"}
    (warning,) = map(str, (await checked(tmp_path, watchers)).warnings)
    assert "watcher 'w' of asset 'b'" in warning
    assert "both read y, z: each gets a part" in warning


async def test_a_watcher_that_asks_for_more_is_an_error_and_its_sibling_is_not(
    tmp_path: Path,
) -> None:
    found = await checked(
        tmp_path,
        {
            "a": "Away(), guarantee='effectively_once'",
            "b": "Away()",
            "c": "Away(), guarantee='at_least_once'",
            "d": "Queue(), guarantee='effectively_once'",
        },
    )
    assert [str(error) for error in found.errors] == [
        (
            "dag.py:3: watcher 'w' of asset 'a': it asks for effectively once, and its trigger promises at least once:"
            " deleted last; a repeated message is not recognised (change what the reason names, or ask for"
            " less: docs/explanation/guarantees.md)"
        )
    ]
    assert [one.watcher.guarantee for one in found.results] == [
        "effectively_once",
        None,
        "at_least_once",
        "effectively_once",
    ]
    # The watchers have separate triggers but share a stream. Refusing one must not stop the other.
    a, b, *_ = (one.watcher for one in found.results)
    assert a.trigger_digest != b.trigger_digest
    assert a.stream_digest == b.stream_digest


async def test_an_unknown_guarantee_is_an_error_only_if_a_watcher_asks_for_one(
    tmp_path: Path,
) -> None:
    found = await checked(tmp_path, {"a": "Wrong()", "b": "Wrong('2'), guarantee='at_least_once'"})
    assert [one.promised for one in found.results] == [None, None]
    assert [str(error) for error in found.errors] == [
        "dag.py:4: watcher 'w' of asset 'b': unknown key 'x'"
    ]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (
            "Seconds",
            (
                "returned DeliveryFacts in which key is ('id',) instead of str | None; retention is 60.0 instead of"
                " timedelta | None"
            ),
        ),
        (
            "Texts",
            "returned DeliveryFacts in which findings[0].most is 'at_least_once' instead of Guarantee | None",
        ),
        ("Mapped", "returned dict, not triggerer.abc.DeliveryFacts"),
        ("Broken", "raised AttributeError: 'Broken' object has no attribute 'nothing'"),
    ],
)
@pytest.mark.parametrize("asks", ["", ", guarantee='at_least_once'"])
async def test_a_wrong_answer_is_an_error_of_the_plugin_and_not_of_the_dag_file(
    tmp_path: Path, kind: str, said: str, asks: str
) -> None:
    found = await checked(tmp_path, {"a": f"{kind}(){asks}"})
    (error,) = found.errors
    module = f"triggers_of_{tmp_path.name}"
    assert (error.file, error.line) == (str(tmp_path / f"{module}.py"), None)
    assert error.reason == (
        f"describe_delivery() of {module}.{kind} {said}; used by watcher 'w' of asset 'a' (dag.py:3): the plugin's"
        " author has to fix that; no DAG file is to blame"
    )


@pytest.mark.parametrize("guarantee", ["at_most_once", "exactly_once", ""])
async def test_other_guarantees_cannot_be_asked_for(tmp_path: Path, guarantee: str) -> None:
    (tmp_path / "dag.py").write_text(
        "from triggerer import Asset, AssetWatcher\n"
        "from watchers.directory import DirectoryFileDeleteTrigger\n"
        f"AssetWatcher('w', DirectoryFileDeleteTrigger('/x', 'y'), guarantee={guarantee!r})\n"
    )
    (error,) = (await parse_once(tmp_path)).errors
    assert 'guarantee must be "at_least_once" or "effectively_once"' in error.reason
