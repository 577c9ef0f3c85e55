"""A scan finds the files of a folder. Files in an unreadable folder do not count as deleted."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from errno import EACCES, EIO
from pathlib import Path
from typing import Any

import pytest

from triggerer.dag_processing import scanning
from triggerer.dag_processing.checking import parse_once
from triggerer.dag_processing.scanning import HERE, Scanned, outdated, scan, with_hidden
from triggerer.domain.dag_files.parsed import ParsedFile

OLD = (1, 1, 1, 1)
NEW = (2, 2, 2, 2)


@pytest.fixture
def full(folder: Path) -> Path:
    (folder / "sub" / "inner").mkdir(parents=True)
    for name in ("a.py", "sub/b.py", "sub/inner/c.py"):
        (folder / name).touch()
    return folder


Listing = Callable[[Path], None]


@pytest.fixture
def when_listed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Listing], None]:
    """Register a function that is called with each folder, between making and reading its listing."""

    def install(happens: Listing) -> None:
        @contextmanager
        def listed(path: Path) -> Iterator[Any]:
            with os.scandir(path) as entries:
                found = list(entries)
            happens(Path(path))
            yield iter(found)

        system = type("System", (), {"scandir": staticmethod(listed), "DirEntry": os.DirEntry})
        monkeypatch.setattr(scanning, "os", system)

    return install


def test_files_are_found_by_path_and_hidden_names_left_out(full: Path) -> None:
    for name in ("..data/a.py", "__pycache__/a.py", "sub/.b.py", "notes.txt"):
        (full / name).parent.mkdir(exist_ok=True)
        (full / name).touch()
    (full / "linked").symlink_to(full / "sub", target_is_directory=True)
    # A volume's own folder, which only root can read, and names that can be no folder.
    (full / "lost+found").mkdir()
    (full / "lost+found" / "a.py").touch()
    (full / "README.md").symlink_to(full / "absent.md")
    found = scan(full)
    assert list(found.files) == [
        "a.py",
        "linked/b.py",
        "linked/inner/c.py",
        "sub/b.py",
        "sub/inner/c.py",
    ]
    assert found.unreadable == {}


@pytest.mark.parametrize(("link", "target"), [("self", "."), ("sub/inner/up", "../..")])
def test_a_link_that_leads_back_is_not_followed(full: Path, link: str, target: str) -> None:
    (full / link).symlink_to(target, target_is_directory=True)
    found = scan(full)
    assert list(found.files) == ["a.py", "sub/b.py", "sub/inner/c.py"]
    assert found.unreadable == {}


def test_a_folder_that_is_missing_is_not_an_empty_one(tmp_path: Path) -> None:
    found = scan(tmp_path / "nowhere")
    assert found.unreadable == {HERE: "No such file or directory"}
    assert found.hides("a.py")
    assert found.hides("sub/b.py")


@pytest.mark.parametrize("code", [EACCES, EIO])
def test_a_subfolder_that_cannot_be_listed_hides_what_is_below_it(
    full: Path, when_listed: Callable[[Listing], None], code: int
) -> None:
    def refuse(path: Path) -> None:
        if path.name == "sub":
            raise OSError(code, os.strerror(code))

    when_listed(refuse)
    found = scan(full)
    assert list(found.files) == ["a.py"]
    assert found.unreadable == {"sub": os.strerror(code)}
    assert found.hides("sub/inner/c.py")
    assert not found.hides("a.py")


def test_a_folder_that_vanishes_after_it_was_listed_has_lost_no_file(
    full: Path, when_listed: Callable[[Listing], None]
) -> None:
    def go(path: Path) -> None:
        if path.name == "sub":
            full.rename(full.with_name("away"))

    when_listed(go)
    found = scan(full)
    assert (found.files, list(found.unreadable)) == ({}, [HERE])


def test_a_file_that_vanishes_after_it_was_listed_is_gone(
    full: Path, when_listed: Callable[[Listing], None]
) -> None:
    when_listed(lambda _: (full / "a.py").unlink(missing_ok=True))
    found = scan(full)
    assert not found.hides("a.py")
    assert list(found.files) == ["sub/b.py", "sub/inner/c.py"]


def test_a_link_that_leads_nowhere_hides_what_it_led_to(full: Path) -> None:
    (full / "linked").symlink_to(full.with_name("not-mounted"), target_is_directory=True)
    (full / "file.py").symlink_to(full.with_name("absent.py"))
    found = scan(full)
    assert list(found.unreadable) == ["file.py", "linked"]
    assert found.hides("linked/x.py")


def test_files_out_of_sight_stay_and_files_that_are_not_listed_go() -> None:
    before = Scanned({"a.py": OLD, "gone.py": OLD, "sub/b.py": OLD}, devices={HERE: 1})
    now = with_hidden(before, Scanned({"a.py": NEW}, {"sub": "no permission"}, devices={HERE: 1}))
    assert now.files == {"a.py": NEW, "sub/b.py": OLD}


def test_an_emptied_folder_is_empty() -> None:
    before = Scanned({"a.py": OLD}, devices={HERE: 1})
    assert with_hidden(before, Scanned({}, devices={HERE: 1})).files == {}


def test_the_empty_folder_below_a_mount_that_went_hides_what_was_mounted() -> None:
    before = Scanned({"a.py": OLD}, devices={HERE: 1})
    now = with_hidden(before, Scanned({}, devices={HERE: 2}))
    assert now.files == {"a.py": OLD}
    assert "another file system" in now.unreadable[HERE]
    # The result is stable, even after a scan that found nothing.
    assert with_hidden(now, Scanned({}, devices={HERE: 2})).files == {"a.py": OLD}
    missing = with_hidden(before, Scanned({}, {HERE: "gone"}))
    assert with_hidden(missing, Scanned({}, devices={HERE: 2})).files == {"a.py": OLD}
    mounted = Scanned({"b.py": NEW}, devices={HERE: 3})
    assert with_hidden(now, mounted) == replace(mounted, unreadable={})


def test_below_the_folder_a_mount_that_went_hides_what_was_mounted_there() -> None:
    files = {"a.py": OLD, "team/b.py": OLD, "team/inner/c.py": OLD}
    before = Scanned(files, devices={HERE: 1, "team": 2, "team/inner": 2})
    unmounted = Scanned({"a.py": NEW}, devices={HERE: 1, "team": 1})
    now = with_hidden(before, unmounted)
    assert now.files == {**files, "a.py": NEW}
    assert list(now.unreadable) == ["team"]
    assert with_hidden(now, unmounted) == now
    mounted = Scanned({**files, "team/b.py": NEW}, devices=before.devices)
    assert with_hidden(now, mounted) == mounted


def test_a_folder_below_that_is_emptied_where_it_is_has_lost_its_files() -> None:
    before = Scanned({"a.py": OLD, "team/b.py": OLD}, devices={HERE: 1, "team": 2})
    now = Scanned({"a.py": OLD}, devices={HERE: 1, "team": 2})
    assert with_hidden(before, now) == now


def parsed(path: str, *imports: str, is_broken: bool = False) -> ParsedFile:
    return ParsedFile(path=path, parse_seconds=0.0, imports=imports, is_broken=is_broken)


def test_files_in_sight_again_are_read_and_so_are_files_that_broke_meanwhile() -> None:
    files = {"a.py": OLD, "lib/x.py": OLD, "other.py": OLD}
    found = {
        "a.py": parsed("a.py", is_broken=True),
        "lib/x.py": parsed("lib/x.py"),
        "other.py": parsed("other.py"),
    }
    hidden, back = Scanned(files, {"lib": "no permission"}), Scanned(files)
    assert outdated(hidden, back, found) == {"a.py", "lib/x.py"}
    assert outdated(hidden, hidden, found) == set()
    assert outdated(back, hidden, found) == set()


def test_a_file_out_of_sight_is_not_read_though_its_import_changed() -> None:
    before = Scanned({"common.py": OLD, "sub/b.py": OLD}, {"sub": "no permission"})
    now = Scanned({"common.py": NEW, "sub/b.py": OLD}, {"sub": "no permission"})
    found = {"sub/b.py": parsed("sub/b.py", "common.py")}
    assert outdated(before, now, found) == {"common.py"}


async def test_check_tells_what_cannot_be_read(folder: Path) -> None:
    (folder / "linked").symlink_to(folder.with_name("not-mounted"), target_is_directory=True)
    (error,) = (await parse_once(folder)).errors
    assert error.file == "linked"
    assert "No such file or directory" in error.reason


async def test_names_that_are_not_utf_8_are_told_of_and_hold_up_no_others(folder: Path) -> None:
    (folder / "good.py").write_text("")
    for name in (b"b\xe4d.py", b"f\xf6lder", b"n\xf6te"):
        path = folder / os.fsdecode(name)
        path.mkdir() if b"lder" in name else path.touch()
    (folder / os.fsdecode(b"l\xefnk")).symlink_to("nowhere")
    found = scan(folder)
    assert found.files.keys() == {"good.py"}
    assert {path: reason for path, reason in found.unreadable.items() if "nk" not in path} == {
        "b\\xe4d.py": "its name is not UTF-8",
        "f\\xf6lder": "its name is not UTF-8",
    }
    parsed = await parse_once(folder)
    assert [error.file for error in parsed.errors] == [*found.unreadable]
