"""Files that appear, fire once and go, through the real runtime."""

import os
import pickle
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from triggerer.abc import reject_shared_stream_event
from triggerer.errors import BrokerUnavailable, DagError
from triggerer.testing import StreamHarness
from watchers.directory import DirectoryFileDeleteTrigger, FileDeleteTrigger, Sighting

QUICK = 0.02


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(10):
        while not condition():  # noqa: ASYNC110 - the file system tells nobody
            await anyio.sleep(0.01)


async def scans(count: int = 5) -> None:
    """Time for several scans: in it nothing may happen."""
    await anyio.sleep(QUICK * count)


async def test_a_file_that_appears_fires_once_and_is_deleted(tmp_path: Path) -> None:
    async with StreamHarness() as streams:
        one = await streams.add(DirectoryFileDeleteTrigger(tmp_path, "a", poke_interval=QUICK))
        two = await streams.add(DirectoryFileDeleteTrigger(tmp_path, "b", poke_interval=QUICK))
        (tmp_path / "a").write_text("hello")
        (tmp_path / "other").touch()
        await until(lambda: not (tmp_path / "a").exists())
        await scans()
        assert [event.payload["filename"] for event in one.events] == ["a"]
        assert one.events[0].payload["size_bytes"] == 5
        assert two.events == []
        assert (tmp_path / "other").exists()
        assert len(streams.groups) == 1
        (tmp_path / "a").touch()
        await until(lambda: len(one.events) == 2)
        assert one.error is None


async def test_the_file_stays_until_its_event_is_durable(tmp_path: Path) -> None:
    async with StreamHarness(persistence="manual") as streams:
        one = await streams.add(DirectoryFileDeleteTrigger(tmp_path, "a", poke_interval=QUICK))
        (tmp_path / "a").touch()
        await until(lambda: len(one.unpersisted) == 1)
        await scans()
        assert (tmp_path / "a").exists()
        assert len(one.unpersisted) == 1
        await streams.persist()
        await until(lambda: not (tmp_path / "a").exists())


async def test_a_file_whose_event_was_refused_fires_again_under_the_same_key(
    tmp_path: Path,
) -> None:
    trigger = DirectoryFileDeleteTrigger(tmp_path, "a", poke_interval=QUICK)
    async with StreamHarness(persistence="manual") as streams:
        one = await streams.add(trigger)
        (tmp_path / "a").touch()
        await until(lambda: len(one.unpersisted) == 1)
        await streams.refuse()
        await scans()
        assert (tmp_path / "a").exists()
    async with StreamHarness() as streams:
        again = await streams.add(trigger)
        await until(lambda: not (tmp_path / "a").exists())
        assert len(again.events) == 1


async def test_a_file_that_was_there_before_the_trigger_fires(tmp_path: Path) -> None:
    (tmp_path / "b").touch()
    async with StreamHarness() as streams:
        await streams.add(DirectoryFileDeleteTrigger(tmp_path, "a", poke_interval=QUICK))
        await scans()
        assert (tmp_path / "b").exists()
        late = await streams.add(DirectoryFileDeleteTrigger(tmp_path, "b", poke_interval=QUICK))
        await until(lambda: not (tmp_path / "b").exists())
        assert len(late.events + late.unpersisted) == 1


async def test_a_missing_directory_is_waited_for_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "later"
    async with StreamHarness() as streams:
        one = await streams.add(DirectoryFileDeleteTrigger(directory, "a", poke_interval=QUICK))
        await scans()
        directory.mkdir()
        (directory / "a").touch()
        await until(lambda: len(one.events) == 1)
        assert one.error is None
    assert sum("waiting for directory" in text for text in caplog.messages) == 1


@pytest.mark.parametrize(
    "trigger", [DirectoryFileDeleteTrigger("inbox", "a"), FileDeleteTrigger("inbox/a")]
)
async def test_check_is_told_of_a_missing_directory_and_content_without_the_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    trigger: DirectoryFileDeleteTrigger | FileDeleteTrigger,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BrokerUnavailable, match="inbox cannot be read: No such file"):
        await trigger.check_source()
    (tmp_path / "inbox").mkdir()
    await trigger.check_source()


async def test_a_file_that_somebody_else_took_is_no_error(tmp_path: Path) -> None:
    async with StreamHarness(persistence="manual") as streams:
        one = await streams.add(DirectoryFileDeleteTrigger(tmp_path, "a", poke_interval=QUICK))
        (tmp_path / "a").touch()
        await until(lambda: len(one.unpersisted) == 1)
        (tmp_path / "a").unlink()
        await streams.persist()
        await scans()
        assert one.error is None
        assert len(one.events) == 1


async def test_a_file_that_replaced_the_one_that_fired_is_kept_and_fires_itself(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a"
    async with StreamHarness(persistence="manual") as streams:
        one = await streams.add(DirectoryFileDeleteTrigger(tmp_path, "a", poke_interval=QUICK))
        path.write_text("first")
        await until(lambda: len(one.unpersisted) == 1)
        (tmp_path / "new").write_text("second one")
        os.replace(tmp_path / "new", path)  # noqa: PTH105
        await streams.persist()
        await until(lambda: len(one.unpersisted) == 1)
        await streams.persist()
        await until(lambda: not path.exists())
        assert [event.payload["size_bytes"] for event in one.events] == [5, 10]


class Picky(DirectoryFileDeleteTrigger):
    """Rejects what is empty."""

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for event in super().filter_shared_stream(shared_stream):
            if event.payload["size_bytes"]:
                yield event
            else:
                reject_shared_stream_event()


async def test_a_rejected_file_is_set_aside_and_not_handed_over_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    aside = tmp_path / ".rejected"
    async with StreamHarness() as streams:
        one = await streams.add(Picky(tmp_path, "a", poke_interval=QUICK))
        for count in (1, 2):
            (tmp_path / "a").touch()
            await until(lambda count=count: aside.is_dir() and len(list(aside.iterdir())) == count)
            assert not (tmp_path / "a").exists()
        (tmp_path / "a").write_text("full")
        await until(lambda: len(one.events) == 1)
    assert sum("was rejected" in text for text in caplog.messages) == 2


async def test_a_rejected_file_that_cannot_be_set_aside_is_named_and_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / ".rejected").touch()
    async with StreamHarness() as streams:
        await streams.add(Picky(tmp_path, "a", poke_interval=QUICK))
        (tmp_path / "a").touch()
        await until(lambda: any("cannot be taken away" in text for text in caplog.messages))
        await scans()
        assert (tmp_path / "a").exists()
    assert sum("was rejected" in text for text in caplog.messages) == 1


async def test_a_file_that_one_rejects_and_another_fails_stays_and_comes_again(
    tmp_path: Path,
) -> None:
    class Failing(DirectoryFileDeleteTrigger):
        async def filter_shared_stream(
            self, shared_stream: AsyncIterator[Any]
        ) -> AsyncIterator[Any]:
            async for event in super().filter_shared_stream(shared_stream):
                raise RuntimeError(event)
                yield event

    async with StreamHarness() as streams:
        await streams.add(Picky(tmp_path, "a", poke_interval=QUICK))
        failing = await streams.add(Failing(tmp_path, "a", poke_interval=QUICK))
        (tmp_path / "a").touch()
        await until(lambda: failing.error is not None)
        # Its sibling alone is left, and is given the file again.
        await until(lambda: not (tmp_path / "a").exists())
        assert len(list((tmp_path / ".rejected").iterdir())) == 1


async def test_one_file_can_be_watched_alone(tmp_path: Path) -> None:
    async with StreamHarness() as streams:
        one = await streams.add(FileDeleteTrigger(tmp_path / "a", poke_interval=QUICK))
        (tmp_path / "b").touch()
        (tmp_path / "a").touch()
        await until(lambda: len(one.events) == 1)
        await until(lambda: not (tmp_path / "a").exists())
        assert (tmp_path / "b").exists()


def test_arguments_are_checked_and_serialised_in_one_way(tmp_path: Path) -> None:
    trigger = DirectoryFileDeleteTrigger(f"{tmp_path}/./", "a", poke_interval=5)
    assert trigger.serialize() == (
        "watchers.directory.DirectoryFileDeleteTrigger",
        {"directory": str(tmp_path), "filename": "a", "poke_interval": 5.0},
    )
    assert (
        trigger.shared_stream_key() == DirectoryFileDeleteTrigger(tmp_path, "b").shared_stream_key()
    )
    for name in ("", "..", "a/b", None):
        with pytest.raises(DagError):
            DirectoryFileDeleteTrigger(tmp_path, name)  # type: ignore[arg-type]
    for interval in (0, -1, True, "5"):
        with pytest.raises(DagError):
            FileDeleteTrigger(tmp_path / "a", poke_interval=interval)  # type: ignore[arg-type]


def test_a_sighting_is_not_copied_since_a_copys_answer_reaches_nobody() -> None:
    with pytest.raises(TypeError, match="change it in place"):
        pickle.dumps(Sighting(["a"]))
