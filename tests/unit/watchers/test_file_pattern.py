"""Files that match a pattern, through the real runtime: which of them fire, when, and what becomes of them."""

from __future__ import annotations

import errno
import os
import pickle
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from triggerer.abc import TriggerEvent, reject_shared_stream_event
from triggerer.errors import BrokerRefused, BrokerUnavailable, DagError
from triggerer.streams.supervision.stream_state import encode_state
from triggerer.testing import StreamHarness
from watchers.directory import DirectoryFileDeleteTrigger, FilePatternTrigger
from watchers.files import moving
from watchers.files.appeared import AppearedFile, PatternSighting, SeenFile, scan
from watchers.files.claiming import FoundFile
from watchers.files.moving import Pending, move, pending, release
from watchers.files.remembering import Memory, appeared, digests_of

QUICK = 0.02
CLAIMS = ("move", "remember")


def watch(directory: Path, pattern: str = "*.csv", **options: Any) -> FilePatternTrigger:
    return FilePatternTrigger(directory, pattern, poke_interval=QUICK, **options)


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(60):
        while not condition():  # noqa: ASYNC110 - the file system tells nobody
            await anyio.sleep(0.01)


async def scans(count: int = 10) -> None:
    """Wait for several scans. During these scans nothing may happen."""
    await anyio.sleep(QUICK * count)


def names(events: list[TriggerEvent]) -> list[str]:
    return sorted(event.payload["name"] for event in events)


def markers(directory: Path) -> list[str]:
    folder = directory / ".moving"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@pytest.fixture(params=CLAIMS)
def claim(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# Which files fire, whichever way they are claimed


async def test_each_file_that_matches_fires_once_with_what_a_run_needs(
    tmp_path: Path, claim: str
) -> None:
    (tmp_path / "before.csv").write_text("12345")
    os.utime(tmp_path / "before.csv", (0, 1_700_000_000))
    async with StreamHarness() as streams:
        one = await streams.add(watch(tmp_path, claim=claim))
        await until(lambda: len(one.events) == 1)
        (tmp_path / "later.csv").touch()
        (tmp_path / "other.txt").touch()
        await until(lambda: len(one.events) == 2)
        await scans()
        assert one.error is None
    folder = tmp_path / "processed" if claim == "move" else tmp_path
    assert one.events[0].payload == {
        "path": str(folder / "before.csv"),
        "name": "before.csv",
        "size": 5,
        "modified_at": "2023-11-14T22:13:20+00:00",
    }
    assert names(one.events) == ["before.csv", "later.csv"]
    assert Path(one.events[0].payload["path"]).read_text() == "12345"
    assert (tmp_path / "other.txt").exists()


async def _each(*events: Any) -> AsyncIterator[Any]:
    for event in events:
        yield event


@pytest.mark.parametrize("year", [-20_000, 30_000, 10**11])
async def test_a_file_whose_time_is_no_date_fires_without_a_time(year: int) -> None:
    """Some file systems keep such times; a broken file on a share from Windows can have the year 30828."""
    ns = year * 365 * 86_400 * 10**9
    appeared_file = AppearedFile("a.csv", Path("/in/a.csv"), 5, ns, "7", None)
    pattern = FilePatternTrigger("/in", "*.csv")
    (event,) = [one async for one in pattern.filter_shared_stream(_each(appeared_file))]
    assert event.payload == {"path": "/in/a.csv", "name": "a.csv", "size": 5, "modified_at": None}
    one_name = DirectoryFileDeleteTrigger("/in", "a.csv")
    found_file = FoundFile(Path("/in/a.csv"), "7", ns, 5)
    (event,) = [one async for one in one_name.filter_shared_stream(_each(found_file))]
    assert (event.payload["size_bytes"], event.payload["modified_at"]) == (5, None)


async def test_a_file_that_still_grows_waits_until_it_is_whole(tmp_path: Path, claim: str) -> None:
    async with StreamHarness() as streams:
        one = await streams.add(watch(tmp_path, claim=claim))
        with (tmp_path / "a.csv").open("w") as writer:
            for _ in range(20):
                writer.write("0123456789")
                writer.flush()
                await anyio.sleep(QUICK / 4)
                assert one.events == []
        await until(lambda: len(one.events) == 1)
        assert one.events[0].payload["size"] == 200


async def test_a_file_that_is_renamed_into_place_fires_with_its_new_name_only(
    tmp_path: Path, claim: str
) -> None:
    async with StreamHarness() as streams:
        one = await streams.add(watch(tmp_path, "a*", claim=claim))
        (tmp_path / ".a.csv.part").write_text("half")
        await scans()
        assert one.events == []
        (tmp_path / ".a.csv.part").rename(tmp_path / "a.csv")
        await until(lambda: len(one.events) == 1)
        await scans()
        assert names(one.events) == ["a.csv"]


async def test_folders_pipes_and_files_in_folders_do_not_fire(tmp_path: Path, claim: str) -> None:
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "folder.csv" / "inner.csv").touch()
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "file.csv").touch()
    async with StreamHarness() as streams:
        one = await streams.add(watch(tmp_path, claim=claim))
        await until(lambda: len(one.events) == 1)
        await scans()
        assert names(one.events) == ["file.csv"]
        assert (tmp_path / "folder.csv" / "inner.csv").exists()


async def test_symbolic_links_are_remembered_as_what_they_lead_to_and_never_moved(
    tmp_path: Path, claim: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "content").write_text("123")
    (tmp_path / "link.csv").symlink_to("content")
    (tmp_path / "nowhere.csv").symlink_to("missing")
    (tmp_path / "circle.csv").symlink_to("circle.csv")
    (tmp_path / "file.csv").touch()
    async with StreamHarness() as streams:
        one = await streams.add(watch(tmp_path, claim=claim))
        expected = ["file.csv"] if claim == "move" else ["file.csv", "link.csv"]
        await until(lambda: len(one.events) >= len(expected))
        await scans()
        assert names(one.events) == expected
        assert one.error is None
        if claim == "remember":
            # The link's target is replaced: that is another file.
            (tmp_path / "content").write_text("1234")
            await until(lambda: len(one.events) == 3)
    assert (tmp_path / "link.csv").is_symlink()
    told = [text for text in caplog.messages if "is a symbolic link" in text]
    assert len(told) == (claim == "move")


async def test_a_file_that_the_service_may_not_read_fires_all_the_same(
    tmp_path: Path, claim: str
) -> None:
    # The watcher reads only the file's name, not its content. The run that reads the content may have other rights.
    (tmp_path / "a.csv").write_text("x")
    (tmp_path / "a.csv").chmod(0)
    async with StreamHarness() as streams:
        one = await streams.add(watch(tmp_path, claim=claim))
        await until(lambda: len(one.events) == 1)
        assert (Path(one.events[0].payload["path"]).stat().st_mode & 0o777) == 0


async def test_a_directory_that_is_missing_is_waited_for_and_logged_once(
    tmp_path: Path, claim: str, caplog: pytest.LogCaptureFixture
) -> None:
    inbox = tmp_path / "inbox"
    async with StreamHarness() as streams:
        one = await streams.add(watch(inbox, claim=claim))
        await scans()
        inbox.mkdir()
        (inbox / "a.csv").touch()
        await until(lambda: len(one.events) == 1)
        assert one.error is None
    assert sum("waiting for directory" in text for text in caplog.messages) == 1


@pytest.mark.full
@pytest.mark.parametrize(
    "claim", ["remember", pytest.param("move", marks=pytest.mark.soak)], indirect=True
)
async def test_ten_thousand_files_fire_once_each_from_one_scan(tmp_path: Path, claim: str) -> None:
    for number in range(10_000):
        (tmp_path / f"{number:05}.csv").touch()
    async with StreamHarness() as streams:
        one = await streams.add(FilePatternTrigger(tmp_path, "*.csv", claim=claim, poke_interval=1))
        await until(lambda: len(one.events) == 10_000)
        # Two more scans find nothing new.
        await anyio.sleep(2.5)
        assert names(one.events) == [f"{number:05}.csv" for number in range(10_000)]
        assert one.error is None
        if claim == "move":
            await until(lambda: not markers(tmp_path))


async def test_watchers_with_overlapping_patterns_each_fire_from_one_shared_scan(
    tmp_path: Path, claim: str
) -> None:
    async with StreamHarness() as streams:
        some = await streams.add(watch(tmp_path, "a*.csv", claim=claim))
        others = await streams.add(watch(tmp_path, "*1.csv", claim=claim))
        assert len(streams.groups) == 1
        for name in ("a1.csv", "a2.csv", "b1.csv", "b2.csv"):
            (tmp_path / name).touch()
        await until(lambda: len(some.events) == 2 and len(others.events) == 2)
        await scans()
        assert names(some.events) == ["a1.csv", "a2.csv"]
        assert names(others.events) == ["a1.csv", "b1.csv"]
        both = [
            e.payload["path"] for e in some.events + others.events if e.payload["name"] == "a1.csv"
        ]
        assert both[0] == both[1]
        assert (tmp_path / "b2.csv").exists()


async def test_a_name_that_is_not_utf_8_fires_and_its_bytes_are_in_the_event(
    tmp_path: Path, claim: str
) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9.csv")).touch()
    async with StreamHarness(persistence="auto") as streams:
        one = await streams.add(watch(tmp_path, "caf*.csv", claim=claim))
        await until(lambda: len(one.events) == 1)
        await scans()
        assert len(one.events) == 1
    # The name cannot be stored as text. Such keys and attributes of messages have the same form.
    assert one.events[0].payload["name"] == "base64:Y2Fm6S5jc3Y="
    assert one.events[0].payload["path"].startswith("base64:")


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("*", ["a", "a.b"], [".a"]),
        (".*", [".a"], ["a"]),
        ("a?c", ["abc", "a.c"], ["ac", "abbc", "ABC"]),
        ("*.CSV", ["x.CSV"], ["x.csv"]),
        ("*.[cC][sS][vV]", ["x.csv", "x.CSV"], ["x.txt"]),
        ("[!0-9]*", ["a1"], ["1a"]),
        ("a.b", ["a.b"], ["axb"]),
        ("a[*]", ["a*"], ["ab"]),
        ("[{]a}", ["{a}"], ["a"]),
        ("**", ["ab"], [".ab"]),
    ],
)
async def test_the_dialect_of_patterns(
    tmp_path: Path, pattern: str, matching: list[str], others: list[str]
) -> None:
    for name in matching + others:
        (tmp_path / name).touch()
    async with StreamHarness() as streams:
        one = await streams.add(watch(tmp_path, pattern, claim="remember"))
        await until(lambda: len(one.events) == len(matching))
        await scans(3)
        assert names(one.events) == sorted(matching)


class Picky(FilePatternTrigger):
    """Rejects empty files."""

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for event in super().filter_shared_stream(shared_stream):
            if event.payload["size"]:
                yield event
            else:
                reject_shared_stream_event()


async def test_a_rejected_file_does_not_come_again(
    tmp_path: Path, claim: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with StreamHarness() as streams:
        one = await streams.add(Picky(tmp_path, "*", claim=claim, poke_interval=QUICK))
        (tmp_path / "a").touch()
        await until(lambda: any("was rejected" in text for text in caplog.messages))
        await scans()
        assert one.events == []
    assert sum("was rejected" in text for text in caplog.messages) == 1
    if claim == "move":
        (aside,) = (tmp_path / ".rejected").iterdir()
        assert aside.name.startswith("a.")
        assert markers(tmp_path) == []


async def test_a_file_whose_event_was_refused_fires_again_under_the_same_key(
    tmp_path: Path, claim: str
) -> None:
    (tmp_path / "a.csv").touch()
    async with StreamHarness(persistence="manual") as streams:
        one = await streams.add(watch(tmp_path, claim=claim))
        await until(lambda: len(one.unpersisted) == 1)
        await streams.refuse()
        again = one if one.error is None else await streams.restart(one)
        await until(lambda: len((again or one).unpersisted) == 1)


# Moving


def moved(directory: Path) -> tuple[list[AppearedFile], dict[str, OSError]]:
    files = sorted(scan(directory).values(), key=lambda file: file.name)
    return move(directory, directory / "to", files, pending(directory).intended)


async def test_the_marker_stays_until_the_event_is_durable_and_a_crash_repeats_the_file(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.csv").write_text("x")
    paths = set()
    for _ in range(2):
        # The first harness ends before the event is durable, as after a crash.
        async with StreamHarness(persistence="manual") as streams:
            one = await streams.add(watch(tmp_path))
            await until(lambda one=one: len(one.unpersisted) == 1)
            paths.add(one.unpersisted[0].payload["path"])
            before = markers(tmp_path)
            assert len(before) == 1
    async with StreamHarness(persistence="manual") as streams:
        one = await streams.add(watch(tmp_path))
        await until(lambda: len(one.unpersisted) == 1)
        assert markers(tmp_path) == before
        await streams.persist()
        await until(lambda: not markers(tmp_path))
        await scans()
        assert len(one.events) == 1
    assert paths == {str(tmp_path / "processed" / "a.csv")}
    assert Path(paths.pop()).read_text() == "x"


async def test_what_was_moved_for_a_watcher_that_is_gone_waits_for_the_next_of_its_pattern(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.csv").touch()
    async with StreamHarness(persistence="manual") as streams:
        one = await streams.add(watch(tmp_path))
        await until(lambda: len(one.unpersisted) == 1)
    async with StreamHarness() as streams:
        other = await streams.add(watch(tmp_path, "*.txt"))
        await scans()
        assert other.events == []
        assert len(markers(tmp_path)) == 1
        again = await streams.add(watch(tmp_path))
        await until(lambda: len(again.events) == 1)
        await until(lambda: not markers(tmp_path))


@pytest.mark.parametrize("changed", [{"move_to": "done"}, {"poke_interval": QUICK * 2}])
async def test_what_was_moved_fires_after_a_change_of_the_arguments(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    """The new arguments make another stream. The file stays in the folder that it was moved to."""
    arguments: dict[str, Any] = {"poke_interval": QUICK}
    (tmp_path / "a.csv").touch()
    async with StreamHarness(persistence="manual") as streams:
        one = await streams.add(FilePatternTrigger(tmp_path, "*.csv", **arguments))
        await until(lambda: len(one.unpersisted) == 1)
    async with StreamHarness() as streams:
        one = await streams.add(FilePatternTrigger(tmp_path, "*.csv", **(arguments | changed)))
        await until(lambda: len(one.events) == 1)
        await until(lambda: not markers(tmp_path))
    assert one.events[0].payload["path"] == str(tmp_path / "processed" / "a.csv")


async def test_a_move_replaces_no_file(tmp_path: Path) -> None:
    processed = tmp_path / "processed"
    processed.mkdir()
    (processed / "a.csv").write_text("was there")
    async with StreamHarness() as streams:
        one = await streams.add(watch(tmp_path))
        for count in (1, 2):
            (tmp_path / "a.csv").write_text(f"new {count}")
            await until(lambda count=count: len(one.events) == count)
    assert (processed / "a.csv").read_text() == "was there"
    paths = [Path(event.payload["path"]) for event in one.events]
    assert [path.read_text() for path in paths] == ["new 1", "new 2"]
    assert all(path.name.startswith("a.1") and path.suffix == ".csv" for path in paths)


@pytest.mark.parametrize("name", ["é" * 127 + "a", "a." + "b" * 253, "x" * 251 + ".csv"])
def test_names_of_every_length_are_moved_beside_one_of_the_same_name(
    tmp_path: Path, name: str
) -> None:
    for content in ("one", "two"):
        (tmp_path / name).write_text(content)
        (file,), failures = moved(tmp_path)
        assert failures == {}
        assert file.path.read_text() == content
        assert pending(tmp_path) == Pending([file])
        release(tmp_path, file)
    assert len(list((tmp_path / "to").iterdir())) == 2


def test_a_file_that_changes_between_the_scan_and_the_move_stays(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    seen = list(scan(tmp_path).values())
    (tmp_path / "a").write_text("xy")
    assert move(tmp_path, tmp_path / "to", seen, {}) == ([], {})
    (tmp_path / "a").unlink()
    assert move(tmp_path, tmp_path / "to", seen, {}) == ([], {})
    assert markers(tmp_path) == []
    assert list((tmp_path / "to").iterdir()) == []


class Crash(BaseException):
    pass


def crash(*_: object) -> None:
    raise Crash


@pytest.mark.parametrize("at", ["marked", "reserved", "moved"])
def test_a_crash_at_any_step_of_a_move_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    source, to = tmp_path / "a", tmp_path / "to"
    source.write_text("x")
    with monkeypatch.context() as patch:
        if at == "marked":
            patch.setattr(moving, "_move_one", crash)
        elif at == "reserved":
            patch.setattr(Path, "rename", crash)
        else:
            done = Path.rename

            def rename_and_crash(path: Path, target: Path) -> None:
                done(path, target)
                raise Crash

            patch.setattr(Path, "rename", rename_and_crash)
        with pytest.raises(Crash):
            moved(tmp_path)
    (marker,) = markers(tmp_path)
    if at == "moved":
        (found,) = pending(tmp_path).moved
        assert (found.path, found.path.read_text()) == (to / "a", "x")
        return
    assert pending(tmp_path).moved == []
    (found,), failures = moved(tmp_path)
    assert (found.path.read_text(), failures, found.key) == ("x", {}, marker)
    assert pending(tmp_path) == Pending([found])


def test_a_move_that_an_earlier_owner_completes_late_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The earlier owner hangs in its rename, and its rename is done while the new owner moves the file."""
    (tmp_path / "a").write_text("x")
    rename, found = Path.rename, []

    def hang(source: Path, target: Path) -> Path:
        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", done_meanwhile)
            found.append(moved(tmp_path))
        raise Crash

    def done_meanwhile(source: Path, target: Path) -> Path:
        rename(tmp_path / "a", tmp_path / "to" / "a")
        return rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", hang)
        with pytest.raises(Crash):
            moved(tmp_path)
    assert found == [([], {})]
    (file,) = pending(tmp_path).moved
    assert (file.name, file.path.read_text()) == ("a", "x")


@pytest.mark.parametrize("is_name_taken", [False, True])
def test_a_rename_that_fails_although_the_file_was_moved_loses_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_name_taken: bool
) -> None:
    (tmp_path / "a").write_text("x")
    (tmp_path / "to").mkdir()
    if is_name_taken:
        (tmp_path / "to" / "a").write_text("was there")
    rename = Path.rename

    def lose_the_answer(source: Path, target: Path) -> Path:
        rename(source, target)
        if source.name == "a":
            # The server renamed the file, its answer was lost, and the client asked again.
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return target

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", lose_the_answer)
        (file,), failures = moved(tmp_path)
    assert (file.path.read_text(), failures) == ("x", {})
    assert pending(tmp_path) == Pending([file])


@pytest.mark.parametrize("is_marked", [True, False])
def test_a_new_file_with_the_name_and_inode_of_a_moved_one_has_an_id_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_marked: bool
) -> None:
    (tmp_path / "a").write_text("x")
    with monkeypatch.context() as patch:
        if not is_marked:
            # A crash between the move of the file and the next step has the same result.
            patch.setattr(moving, "_mark_moved", lambda *_: None)
        (first,), _ = moved(tmp_path)
    # Simulate a process that dies after the event is durable, but before it calls `release`.
    assert pending(tmp_path) == Pending([first])
    # Move the file back, so that its name and inode occur again, as if a new file had reused the inode.
    first.path.rename(tmp_path / "a")
    (second,), failures = moved(tmp_path)
    assert (failures, second.path) == ({}, first.path)
    assert second.key != first.key
    assert pending(tmp_path) == Pending([second])
    release(tmp_path, second)
    assert markers(tmp_path) == []


def test_the_marker_of_a_move_that_never_came_about_is_deleted_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").touch()
    with monkeypatch.context() as patch:
        patch.setattr(moving, "_move_one", crash)
        with pytest.raises(Crash):
            moved(tmp_path)
    found = pending(tmp_path)
    assert (found.moved, list(found.intended.values())) == ([], markers(tmp_path))
    (tmp_path / "a").unlink()
    # From now on the marker counts as too old for a move that is still under way.
    monkeypatch.setattr(moving, "_STALE_NS", 0)
    assert pending(tmp_path) == Pending()
    assert markers(tmp_path) == []


@pytest.mark.parametrize(("name", "text"), [("1", "host:8080"), ("²-a", "7:nowhere")])
def test_a_foreign_link_among_the_markers_hides_no_file(
    tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / "a").write_text("x")
    (file,), _ = moved(tmp_path)
    (tmp_path / ".moving" / name).symlink_to(text)
    assert pending(tmp_path).moved == [file]


async def test_another_file_system_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cross(self: Path, target: Path) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(Path, "rename", cross)
    (tmp_path / "a.csv").touch()
    async with StreamHarness() as streams:
        one = await streams.add(watch(tmp_path))
        await until(lambda: one.error is not None)
        assert "is on another file system than" in str(one.error)
        assert 'claim="remember"' in str(one.error)
    assert (tmp_path / "a.csv").exists()
    assert list((tmp_path / "processed").iterdir()) == []


async def test_a_file_that_cannot_be_moved_is_named_once_and_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rename = Path.rename

    def refuse(self: Path, target: Path) -> Path:
        if self.name == "a.csv":
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        return rename(self, target)

    async with StreamHarness() as streams:
        one = await streams.add(watch(tmp_path))
        with monkeypatch.context() as patch:
            # Moving another user's file in a directory with the sticky bit raises this error.
            patch.setattr(Path, "rename", refuse)
            (tmp_path / "a.csv").touch()
            (tmp_path / "b.csv").touch()
            await until(lambda: len(one.events) == 1)
            await scans()
        await until(lambda: len(one.events) == 2)
        assert one.error is None
    assert sum("cannot be moved" in text for text in caplog.messages) == 1


async def test_a_trigger_that_deletes_and_one_that_moves_share_a_directory(tmp_path: Path) -> None:
    async with StreamHarness() as streams:
        moved = await streams.add(watch(tmp_path))
        deleted = await streams.add(
            DirectoryFileDeleteTrigger(tmp_path, "ready", poke_interval=QUICK)
        )
        (tmp_path / "a.csv").touch()
        (tmp_path / "ready").touch()
        await until(lambda: len(moved.events) == 1 and len(deleted.events) == 1)
        await scans()
        assert (moved.error, deleted.error) == (None, None)


# Remembering


def seen(name: str, inode: int = 1, size: int = 2, modified_ns: int = 3) -> SeenFile:
    return SeenFile(name, inode, size, modified_ns, is_link=False)


async def test_a_file_of_the_same_name_that_replaced_one_fires_again(tmp_path: Path) -> None:
    async with StreamHarness() as streams:
        one = await streams.add(watch(tmp_path, claim="remember"))
        (tmp_path / "a.csv").write_text("one")
        await until(lambda: len(one.events) == 1)
        (tmp_path / "new").write_text("two")
        (tmp_path / "new").rename(tmp_path / "a.csv")
        await until(lambda: len(one.events) == 2)
        # Overwritten in place.
        (tmp_path / "a.csv").write_text("three")
        await until(lambda: len(one.events) == 3)
        (tmp_path / "a.csv").chmod(0o600)
        await scans()
        assert [event.payload["size"] for event in one.events] == [3, 3, 5]


async def test_a_watcher_that_joins_later_gets_what_is_there_if_its_pattern_is_new(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.csv").touch()
    async with StreamHarness() as streams:
        one = await streams.add(watch(tmp_path, claim="remember"))
        await until(lambda: len(one.events) == 1)
        late = await streams.add(watch(tmp_path, "a*", claim="remember"))
        await until(lambda: len(late.events) == 1)
        await scans()
        assert (len(one.events), len(late.events)) == (1, 1)


def test_what_is_remembered_survives_and_is_bounded_by_what_is_there(tmp_path: Path) -> None:
    memory = Memory(tmp_path, None)
    for name in ("a", "b"):
        memory.add(appeared(tmp_path, seen(name), frozenset({"*"})))
    again = Memory(tmp_path, memory.dump())
    assert again.new_for(seen("a"), ["*", "a*"]) == {"a*"}
    for other in (seen("c"), seen("a", inode=2), seen("a", size=3), seen("a", modified_ns=4)):
        assert again.new_for(other, ["*"]) == {"*"}
    again.forget_all_but(digests_of([seen("b")]))
    assert again.new_for(seen("a"), ["*"]) == {"*"}
    assert again.new_for(seen("b"), ["*"]) == set()
    again.add(appeared(tmp_path, seen("c"), frozenset({"a*"})))
    again.forget_all_but(digests_of([seen("c"), seen("d")]))
    only = Memory(tmp_path, None)
    only.add(appeared(tmp_path, seen("c"), frozenset({"a*"})))
    assert again.dump() == only.dump()


@pytest.mark.parametrize("others", [[], ["readme.csv"]])
async def test_files_of_a_volume_that_was_unmounted_do_not_fire_again(
    tmp_path: Path, others: list[str]
) -> None:
    inbox, volume, mount_point = (tmp_path / name for name in ("inbox", "volume", "mount_point"))
    for folder in (inbox, mount_point):
        folder.mkdir()
    for name in others:
        (mount_point / name).touch()
    for name in ("a.txt", "b.txt"):
        (inbox / name).touch()
    async with StreamHarness() as streams:
        one = await streams.add(watch(inbox, "*.txt", claim="remember"))
        await until(lambda: len(one.events) == 2)
        inbox.rename(volume)
        mount_point.rename(inbox)
        await scans()
        inbox.rename(mount_point)
        volume.rename(inbox)
        (inbox / "c.txt").touch()
        await until(lambda: len(one.events) > 2)
        await scans()
        assert names(one.events) == ["a.txt", "b.txt", "c.txt"]


def test_a_value_of_the_store_holds_ninety_thousand_files_and_more_are_refused(
    tmp_path: Path,
) -> None:
    memory = Memory(tmp_path, None)
    for number in range(90_000):
        memory.add(appeared(tmp_path, seen(f"{number}"), frozenset({"*"})))
    encode_state(memory.dump())
    memory.add(appeared(tmp_path, seen("one more"), frozenset({"*"})))
    with pytest.raises(BrokerRefused, match="90001 files of the directory") as refused:
        memory.dump()
    assert 'claim="move"' in str(refused.value.hint)


# Arguments


def test_arguments_are_checked_and_serialised_in_one_way(tmp_path: Path) -> None:
    trigger = FilePatternTrigger(f"{tmp_path}/./", "*.csv", poke_interval=5)
    assert trigger.serialize() == (
        "watchers.directory.FilePatternTrigger",
        {
            "directory": str(tmp_path),
            "pattern": "*.csv",
            "claim": "move",
            "move_to": None,
            "poke_interval": 5.0,
        },
    )
    refused: list[tuple[dict[str, Any], str]] = [
        ({"pattern": ""}, "pattern must be"),
        ({"pattern": "a/*.csv"}, "cannot have a /"),
        ({"pattern": "*.{csv,json}"}, "no braces"),
        ({"pattern": "a["}, "not closed"),
        ({"directory": "/data/*"}, "is a pattern"),
        ({"claim": "delete"}, '"move" or "remember"'),
        ({"claim": "remember", "move_to": "done"}, 'only with claim="move"'),
        ({"move_to": "."}, "another folder than directory"),
        ({"poke_interval": 0}, "above 0"),
    ]
    for arguments, said in refused:
        with pytest.raises(DagError, match=said):
            FilePatternTrigger(**({"directory": tmp_path, "pattern": "*"} | arguments))


async def test_a_relative_directory_and_folder_mean_the_same_after_serialising(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").touch()
    trigger = FilePatternTrigger("in", "*", move_to="../done/2026", poke_interval=QUICK)
    async with StreamHarness() as streams:
        one = await streams.add(trigger)
        await until(lambda: len(one.events) == 1)
    assert one.events[0].payload["path"] == "done/2026/a.csv"
    assert (tmp_path / "done" / "2026" / "a.csv").exists()


@pytest.mark.parametrize("claim_", CLAIMS)
async def test_check_is_told_of_a_directory_that_is_missing_or_elsewhere(
    tmp_path: Path, claim_: str
) -> None:
    trigger = FilePatternTrigger(tmp_path / "inbox", "*", claim=claim_)
    with pytest.raises(BrokerUnavailable, match="cannot be read"):
        await trigger.check_source()
    (tmp_path / "inbox").mkdir()
    await trigger.check_source()
    if claim_ == "move" and Path("/dev/shm").is_dir():
        if Path("/dev/shm").stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("one file system")
        elsewhere = FilePatternTrigger(tmp_path / "inbox", "*", move_to="/dev/shm/none/of/ours")
        with pytest.raises(BrokerUnavailable, match="another file system"):
            await elsewhere.check_source()


def test_a_sighting_is_not_copied_since_a_copys_answer_reaches_nobody() -> None:
    with pytest.raises(TypeError, match="change a PatternSighting in place"):
        pickle.dumps(PatternSighting())
