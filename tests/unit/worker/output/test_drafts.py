"""A folder's outputs are there once, wherever a try dies, and whatever another try does meanwhile."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

from triggerer.worker.output import drafts
from triggerer.worker.output.local_files import LocalFiles
from triggerer.worker.output.marks import STALE_AFTER_S, new_mark, new_try

NAME: Final = "0123456789abcdef0123456789abcdef"
SPARKS: Final = "00000000-1111-2222-3333-444444444444"


class Killed(BaseException):
    """Ends a try at once, as SIGKILL does: nothing of it runs afterwards."""


class Steps(LocalFiles):
    """Files that call a function before each step that changes something, and after the last one."""

    def __init__(self, before: Callable[[int], None]) -> None:
        self.taken = 0
        self._before = before

    def _step(self) -> None:
        self._before(self.taken)
        self.taken += 1

    def create(self, path: str, text: str, *, by_way_of: str) -> None:
        self._step()
        super().create(path, text, by_way_of=by_way_of)

    def move(self, source: str, target: str) -> None:
        self._step()
        super().move(source, target)

    def delete(self, path: str) -> None:
        self._step()
        # A deletion is not one step of the file system: some of the files may go first.
        for one in self.visible_below(path)[:1] if Path(path).exists() else []:
            super().delete(f"{path}/{one}")
            self._step()
        super().delete(path)


class ObjectSteps(Steps):
    """Files of an object store, which creates, copies or deletes one object in one step. So a move takes two steps."""

    def create(self, path: str, text: str, *, by_way_of: str) -> None:
        self._step()
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError), Path(path).open("x") as file:
            file.write(text)

    def move(self, source: str, target: str) -> None:
        self._step()
        if not Path(source).exists():
            return
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        self._step()
        Path(source).unlink(missing_ok=True)


STEPS: Final = pytest.mark.parametrize("steps", [Steps, ObjectSteps])


def _write_draft(root: Path, mark: str, name: str = NAME) -> None:
    """Write what Spark would, in two partitions."""
    draft = Path(drafts.draft_path(str(root), name, mark))
    for day in ("1", "2"):
        folder = draft / f"day={day}"
        folder.mkdir(parents=True)
        (folder / f"part-0000{day}-{SPARKS}.c000.parquet").write_text(mark)
        (folder / f".part-0000{day}-{SPARKS}.c000.parquet.crc").write_text("crc")
    (draft / "_SUCCESS").touch()


def _try_to_write(files: drafts.Files, root: Path, mark: str, name: str = NAME) -> str:
    """Do what `output.parquet` does, without Spark; return the mark of the winner."""
    found = drafts.prepare(files, str(root), name)
    if found is None:
        _write_draft(root, mark, name)
        found = drafts.commit(files, str(root), name, mark)
    return found


def _visible(root: Path) -> dict[str, str]:
    return {one: (root / one).read_text() for one in LocalFiles().visible_below(str(root))}


def _once(mark: str, name: str = NAME) -> dict[str, str]:
    return {f"day={day}/part-0000{day}-{name}.c000.parquet": mark for day in ("1", "2")}


def _hidden(root: Path) -> list[str]:
    below = (root / drafts.HIDDEN).rglob("*")
    return sorted(one.name for one in below if one.is_file())


def test_an_output_keeps_sparks_names_but_for_the_jobs_id(tmp_path: Path) -> None:
    assert _try_to_write(LocalFiles(), tmp_path, "m1") == "m1"
    assert _visible(tmp_path) == _once("m1")
    assert _hidden(tmp_path) == [f"{NAME}.json"]


def test_a_repeat_finds_the_output_and_two_outputs_stand_side_by_side(tmp_path: Path) -> None:
    _try_to_write(LocalFiles(), tmp_path, "m1")
    assert _try_to_write(LocalFiles(), tmp_path, "m2") == "m1"
    assert _try_to_write(LocalFiles(), tmp_path, "m2", f"{NAME}-2") == "m2"
    assert _visible(tmp_path) == _once("m1") | _once("m2", f"{NAME}-2")


def test_an_output_without_files_is_an_output(tmp_path: Path) -> None:
    Path(drafts.draft_path(str(tmp_path), NAME, "m1")).mkdir(parents=True)
    assert drafts.commit(LocalFiles(), str(tmp_path), NAME, "m1") == "m1"
    assert drafts.prepare(LocalFiles(), str(tmp_path), NAME) == "m1"


def _steps_of(root: Path, steps: type[Steps]) -> int:
    files = steps(lambda step: None)
    _try_to_write(files, root, "m0")
    return files.taken


@STEPS
def test_a_try_that_dies_at_any_step_leaves_no_or_one_output_to_the_next(
    tmp_path: Path, steps: type[Steps]
) -> None:
    for fatal in range(_steps_of(tmp_path / "all", steps)):
        root = tmp_path / str(fatal)

        def die(step: int, fatal: int = fatal) -> None:
            if step == fatal:
                raise Killed

        with pytest.raises(Killed):
            _try_to_write(steps(die), root, "m1")
        winner = _try_to_write(LocalFiles(), root, "m2")
        assert _visible(root) == _once(winner)
        assert _hidden(root) == [f"{NAME}.json"]
        # "m1" wins unless it died before the first step, which creates the commit's file.
        assert winner == ("m2" if fatal == 0 else "m1")


@STEPS
def test_a_chain_of_dying_tries_still_leaves_one_output(tmp_path: Path, steps: type[Steps]) -> None:
    for number in range(12):

        def die(step: int, fatal: int = number % 4) -> None:
            if step == fatal:
                raise Killed

        try:
            _try_to_write(steps(die), tmp_path, f"m{number}")
        except Killed:
            continue
    winner = _try_to_write(LocalFiles(), tmp_path, "last")
    assert _visible(tmp_path) == _once(winner)
    assert _hidden(tmp_path) == [f"{NAME}.json"]


@STEPS
@pytest.mark.parametrize("other_dies_at", [None, 0, 1, 2, 3, 4])
def test_two_tries_at_once_leave_one_output_however_their_steps_mix(
    tmp_path: Path, other_dies_at: int | None, steps: type[Steps]
) -> None:
    for moment in range(_steps_of(tmp_path / "all", steps) + 1):
        root = tmp_path / str(moment)
        winners = []

        def other(
            step: int, moment: int = moment, root: Path = root, winners: Any = winners
        ) -> None:
            def die(step: int) -> None:
                if step == other_dies_at:
                    raise Killed

            if step == moment:
                try:
                    winners.append(_try_to_write(steps(die), root, "m2"))
                except Killed:
                    return

        try:
            winners.append(_try_to_write(steps(other), root, "m1"))
        except FileNotFoundError:
            # The other try deleted this try's draft before its commit. So this try raises, and writes nothing.
            assert moment == 0
        winners.append(_try_to_write(LocalFiles(), root, "m3"))
        assert len(set(winners)) == 1
        assert _visible(root) == _once(winners[0])
        assert _hidden(root) == [f"{NAME}.json"]


def test_any_later_write_finishes_the_moves_of_a_run_that_is_never_repeated(tmp_path: Path) -> None:
    def die(step: int) -> None:
        if step == 2:
            raise Killed

    with pytest.raises(Killed):
        _try_to_write(Steps(die), tmp_path, "m1")
    assert len(_visible(tmp_path)) == 1
    _try_to_write(LocalFiles(), tmp_path, "m9", "f" * 32)
    assert _visible(tmp_path) == _once("m1") | _once("m9", "f" * 32)


def test_the_draft_of_another_run_stays_for_a_week(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = new_mark(new_try(), 1)
    monkeypatch.setattr("time.time", lambda: 1_000_000_000.0)
    old = new_mark(new_try(), 1)
    monkeypatch.undo()
    _write_draft(tmp_path, fresh, "a" * 32)
    _write_draft(tmp_path, old, "b" * 32)
    _try_to_write(LocalFiles(), tmp_path, "m1")
    left = [one.name for one in (tmp_path / drafts.HIDDEN / "drafts").iterdir()]
    assert left == [f"{'a' * 32}.{fresh}"]
    assert STALE_AFTER_S == 7 * 24 * 3600


def test_a_draft_that_anybody_may_delete_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = new_mark(new_try(), 1)
    _write_draft(tmp_path, mark)
    now = time.time()
    monkeypatch.setattr("time.time", lambda: now + STALE_AFTER_S + 2)
    with pytest.raises(FileNotFoundError, match="more than a week old"):
        drafts.commit(LocalFiles(), str(tmp_path), NAME, mark)
    assert _visible(tmp_path) == {}


def test_files_that_were_deleted_after_the_commit_hinder_no_later_write(tmp_path: Path) -> None:
    def die(step: int) -> None:
        if step == 3:
            raise Killed

    with pytest.raises(Killed):
        _try_to_write(Steps(die), tmp_path, "m1")
    for one in _visible(tmp_path):
        (tmp_path / one).unlink()
    _try_to_write(LocalFiles(), tmp_path, "m9", "f" * 32)
    assert _visible(tmp_path) == _once("m9", "f" * 32)
