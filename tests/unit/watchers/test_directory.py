"""Files that appear, fire once and go, through the real runtime."""

import errno
import math
import os
import pickle
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from triggerer.abc import reject_shared_stream_event
from triggerer.errors import BrokerUnavailable, DagError
from triggerer.testing import StreamHarness
from watchers.directory import DirectoryFileDeleteTrigger, FileDeleteTrigger, Sighting
from watchers.files.claiming import claim, delete, set_aside

QUICK = 0.02


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(60):
        while not condition():  # noqa: ASYNC110 - the file system tells nobody
            await anyio.sleep(0.01)


async def scans(count: int = 5) -> None:
    """Wait for several scans. During these scans nothing may happen."""
    await anyio.sleep(QUICK * count)


def claims(directory: Path, name: str) -> list[Path]:
    """Return the claims of the files with this name, in their order."""
    try:
        return sorted((directory / ".claimed" / name).iterdir())
    except FileNotFoundError:
        # The folder goes with its last claim.
        return []


async def test_a_file_that_appears_fires_once_and_is_deleted(tmp_path: Path) -> None:
    async with StreamHarness() as streams:
        one = await streams.add(DirectoryFileDeleteTrigger(tmp_path, "a", poke_interval=QUICK))
        two = await streams.add(DirectoryFileDeleteTrigger(tmp_path, "b", poke_interval=QUICK))
        (tmp_path / "a").write_text("hello")
        (tmp_path / "other").touch()
        await until(lambda: len(one.events) == 1)
        await scans()
        assert not (tmp_path / "a").exists()
        assert claims(tmp_path, "a") == []
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
        assert claims(tmp_path, "a")
        assert len(one.unpersisted) == 1
        await streams.persist()
        await until(lambda: not claims(tmp_path, "a"))
        assert list(tmp_path.iterdir()) == [tmp_path / ".claimed"]


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
        assert len(claims(tmp_path, "a")) == 1
        (before,) = claims(tmp_path, "a")
    async with StreamHarness(persistence="manual") as streams:
        again = await streams.add(trigger)
        await until(lambda: len(again.unpersisted) == 1)
        assert claims(tmp_path, "a") == [before]
        await streams.persist()
        await until(lambda: not claims(tmp_path, "a"))
        assert len(again.events) == 1


async def test_a_file_that_was_there_before_the_trigger_fires(tmp_path: Path) -> None:
    (tmp_path / "b").touch()
    async with StreamHarness() as streams:
        await streams.add(DirectoryFileDeleteTrigger(tmp_path, "a", poke_interval=QUICK))
        await scans()
        assert (tmp_path / "b").exists()
        late = await streams.add(DirectoryFileDeleteTrigger(tmp_path, "b", poke_interval=QUICK))
        await until(lambda: len(late.events) == 1)
        await until(lambda: not claims(tmp_path, "b"))
        assert not (tmp_path / "b").exists()


async def test_a_missing_directory_is_waited_for_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "later"
    async with StreamHarness() as streams:
        one = await streams.add(DirectoryFileDeleteTrigger(directory, "a", poke_interval=QUICK))
        await until(lambda: "waiting for directory" in caplog.text)
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
        claims(tmp_path, "a")[0].unlink()
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
        await until(lambda: len(one.events) == 2)
        assert [event.payload["size_bytes"] for event in one.events] == [5, 10]


class Picky(DirectoryFileDeleteTrigger):
    """Rejects empty files."""

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
        await until(lambda: any("cannot be removed" in text for text in caplog.messages))
        await scans()
        assert len(claims(tmp_path, "a")) == 1
        assert any(str(claims(tmp_path, "a")[0]) in text for text in caplog.messages)
        (tmp_path / ".rejected").unlink()
        await until(lambda: not claims(tmp_path, "a"))
        assert len(list((tmp_path / ".rejected").iterdir())) == 1
    for once in ("was rejected", "cannot be removed"):
        assert sum(once in text for text in caplog.messages) == 1


async def test_a_file_that_cannot_be_deleted_fires_once_and_is_deleted_as_soon_as_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    async with StreamHarness() as streams:
        one = await streams.add(DirectoryFileDeleteTrigger(tmp_path, "a", poke_interval=QUICK))
        with monkeypatch.context() as patch:
            # Deleting an immutable file raises this error.
            patch.setattr("watchers.directory.delete", refuse)
            (tmp_path / "a").touch()
            await until(lambda: len(one.events) == 1)
            await scans()
            assert len(claims(tmp_path, "a")) == 1
        await until(lambda: not claims(tmp_path, "a"))
        (tmp_path / "a").touch()
        await until(lambda: len(one.events) == 2)
        assert one.error is None


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
        # Only the sibling runs now. It gets the file again, and rejects it.
        await until(lambda: (tmp_path / ".rejected").exists() and not claims(tmp_path, "a"))
        assert len(list((tmp_path / ".rejected").iterdir())) == 1


async def appear_in_the_same_way(tmp_path: Path, inbox: Path, *, content: str) -> None:
    """As with `cp -p` and `mv`: the copy has the template's time, and the inode is reused."""
    template = tmp_path / "template"
    template.write_text(content)
    os.utime(template, ns=(0, 1_700_000_000_000_000_000))
    shutil.copy2(template, inbox / "part")
    (inbox / "part").rename(inbox / "a")


async def test_six_files_with_the_same_inode_and_time_have_six_keys(tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    async with StreamHarness(persistence="manual") as streams:
        one = await streams.add(DirectoryFileDeleteTrigger(inbox, "a", poke_interval=QUICK))
        keys: set[str] = set()
        for count in range(1, 7):
            await appear_in_the_same_way(tmp_path, inbox, content="x")
            await until(lambda: len(one.unpersisted) == 1)
            keys.update(path.name for path in claims(inbox, "a"))
            await streams.persist()
            await until(lambda: not claims(inbox, "a"))
            assert len(keys) == len(one.events) == count


async def test_a_claim_is_found_again_and_the_next_appearance_is_another(tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    await appear_in_the_same_way(tmp_path, inbox, content="x")
    (found,), _ = claim(inbox, ["a"])
    assert claim(inbox, ["a"])[0] == [found]
    await appear_in_the_same_way(tmp_path, inbox, content="y")
    again, second = claim(inbox, ["a"])[0]
    assert again == found
    assert second.idempotency_key != found.idempotency_key
    delete(found)
    delete(second)
    assert [path.name for path in inbox.rglob("*")] == [".claimed"]


async def test_a_file_is_claimed_while_it_is_written_and_what_is_written_is_kept(
    tmp_path: Path,
) -> None:
    with (tmp_path / "a").open("w") as writer:
        writer.write("first")
        writer.flush()
        (found,), _ = claim(tmp_path, ["a"])
        writer.write(", second")
    assert found.claimed.read_text() == "first, second"


async def test_names_of_every_length_are_claimed_and_set_aside(tmp_path: Path) -> None:
    name = "é" * 127 + "a"
    for _ in range(2):
        (tmp_path / name).touch()
        (found,), failures = claim(tmp_path, [name])
        assert failures == {}
        set_aside(found)
    kept = [path.name for path in (tmp_path / ".rejected").iterdir()]
    assert len(kept) == 2
    assert all(len(os.fsencode(one)) <= 255 for one in kept)


async def test_a_link_is_claimed_with_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "content").write_text("12345")
    (tmp_path / "a").symlink_to("content")
    (found,), _ = claim(tmp_path, ["a"])
    assert found.size_bytes == 5
    delete(found)
    assert (tmp_path / "content").exists()


async def test_folders_of_claims_are_as_open_as_the_directory(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    (tmp_path / "a").touch()
    (found,), _ = claim(tmp_path, ["a"])
    for folder in (tmp_path / ".claimed", tmp_path / ".claimed" / "a"):
        assert folder.stat().st_mode & 0o7777 == 0o1777
    set_aside(found)
    assert (tmp_path / ".rejected").stat().st_mode & 0o7777 == 0o1777


async def test_what_cannot_be_looked_at_is_named_once_and_holds_up_no_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a").symlink_to("a")
    # Nobody can list the content of such a path.
    (tmp_path / ".claimed").mkdir()
    (tmp_path / ".claimed" / "c").symlink_to("c")
    async with StreamHarness() as streams:
        names = ["a", "b", "c"]
        watchers = [
            await streams.add(DirectoryFileDeleteTrigger(tmp_path, name, poke_interval=QUICK))
            for name in names
        ]
        (tmp_path / "b").touch()
        await until(lambda: len(watchers[1].events) == 1)
        (tmp_path / "a").unlink()
        (tmp_path / "a").touch()
        await until(lambda: len(watchers[0].events) == 1)
        assert [watcher.error for watcher in watchers] == [None] * 3
    told = [text for text in caplog.messages if "cannot be claimed" in text]
    assert sorted(Path(text.split()[0]).name for text in told) == ["a", "c"]


async def test_a_file_that_cannot_be_claimed_does_not_fire_and_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / ".claimed").mkdir()
    (tmp_path / ".claimed" / "a").touch()
    async with StreamHarness() as streams:
        one = await streams.add(DirectoryFileDeleteTrigger(tmp_path, "a", poke_interval=QUICK))
        two = await streams.add(DirectoryFileDeleteTrigger(tmp_path, "b", poke_interval=QUICK))
        for name in "ab":
            (tmp_path / name).touch()
        await until(lambda: len(two.events) == 1)
        await scans()
        assert (one.events, one.error) == ([], None)
        (tmp_path / ".claimed" / "a").unlink()
        await until(lambda: len(one.events) == 1)
    assert sum("cannot be claimed" in text for text in caplog.messages) == 1


_AS_NOBODY = """
import asyncio, os, sys
from watchers.directory import DirectoryFileDeleteTrigger
from triggerer.errors import TriggererError
from triggerer.testing import StreamHarness

async def main(directory):
    trigger = DirectoryFileDeleteTrigger(directory, "a", poke_interval=0.02)
    # Imports come first: the interpreter may lie where only root can read.
    await trigger.check_source()
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
    try:
        await trigger.check_source()
    except TriggererError as error:
        print("check:", error)
    async with StreamHarness() as streams:
        one = await streams.add(trigger)
        while one.error is None:
            await asyncio.sleep(0.01)
        print("shown:", one.error.__cause__, one.events)

asyncio.run(asyncio.wait_for(main(sys.argv[1]), 30))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
async def test_a_directory_in_which_the_user_may_not_write_is_an_error_of_the_watcher() -> None:
    # Not in pytest's own directory, which other users may not enter.
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        (directory / "a").touch()
        done = await anyio.run_process([sys.executable, "-c", _AS_NOBODY, name], check=True)
        # Standard output has the log, too.
        lines = done.stdout.decode().splitlines()
        check, shown = [line for line in lines if line.startswith(("check:", "shown:"))]
        text = f"files in the directory {directory} cannot be renamed and deleted"
        assert check.startswith(f"check: {text} by this user")
        assert shown.startswith(f"shown: {text} (give the user")
        assert shown.endswith(" []")
        assert (directory / "a").exists()


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
    for interval in (0, -1, True, "5", math.inf):
        with pytest.raises(DagError):
            FileDeleteTrigger(tmp_path / "a", poke_interval=interval)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "make",
    [
        lambda: DirectoryFileDeleteTrigger("/srv/inbox", "*.csv"),
        lambda: DirectoryFileDeleteTrigger("/srv/inbox", "orders-?.csv"),
        lambda: DirectoryFileDeleteTrigger("/srv/*/inbox", "orders.csv"),
        lambda: FileDeleteTrigger("/srv/inbox/*.csv"),
        lambda: FileDeleteTrigger(Path("/srv/inbox/*.csv")),
    ],
)
def test_a_pattern_is_refused_and_the_trigger_that_takes_one_is_named(
    make: Callable[[], object],
) -> None:
    with pytest.raises(DagError, match=r"is a pattern: no file would match it") as raised:
        make()
    assert raised.value.hint is not None
    assert raised.value.hint.startswith("FilePatternTrigger(directory, pattern)")


async def test_a_name_with_brackets_may_be_meant_and_is_warned_of() -> None:
    trigger = DirectoryFileDeleteTrigger("/srv/inbox", "orders-[0-9].csv")
    (finding,) = (await trigger.describe_delivery(ask=False)).findings
    assert str(finding) == (
        "it waits for a file that is literally named 'orders-[0-9].csv'"
        " (if that is a pattern, write FilePatternTrigger(directory, pattern))"
    )
    plain = DirectoryFileDeleteTrigger("/srv/inbox", "orders.csv")
    assert (await plain.describe_delivery(ask=False)).findings == ()


def test_a_sighting_is_not_copied_since_a_copys_answer_reaches_nobody() -> None:
    with pytest.raises(TypeError, match="change a Sighting in place"):
        pickle.dumps(Sighting(["a"]))
