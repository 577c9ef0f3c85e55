"""A folder's outputs are there once, wherever a try dies, and whatever another try does meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from triggerer.worker.output import drafts
from triggerer.worker.output.local_files import LocalFiles
from triggerer.worker.output.marks import STALE_AFTER_S, new_mark

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

    def create(self, path: str, text: str, *, by_way_of: str) -> bool:
        self._step()
        return super().create(path, text, by_way_of=by_way_of)

    def move(self, source: str, target: str) -> None:
        self._step()
        super().move(source, target)

    def delete(self, path: str) -> None:
        self._step()
        # A deletion is not one step of the file system: some of the files may go first.
        for one in self.visible_below(path)[:1] if self.exists(path) else []:
            super().delete(f"{path}/{one}")
            self._step()
        super().delete(path)


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


def _steps_of(root: Path) -> int:
    files = Steps(lambda step: None)
    _try_to_write(files, root, "m0")
    return files.taken


def test_a_try_that_dies_at_any_step_leaves_no_or_one_output_to_the_next(tmp_path: Path) -> None:
    for fatal in range(_steps_of(tmp_path / "all")):
        root = tmp_path / str(fatal)

        def die(step: int, fatal: int = fatal) -> None:
            if step == fatal:
                raise Killed

        with pytest.raises(Killed):
            _try_to_write(Steps(die), root, "m1")
        winner = _try_to_write(LocalFiles(), root, "m2")
        assert _visible(root) == _once(winner)
        assert _hidden(root) == [f"{NAME}.json"]
        # Only the creation of the commit's file, which is the first step, decides.
        assert winner == ("m2" if fatal == 0 else "m1")


def test_a_chain_of_dying_tries_still_leaves_one_output(tmp_path: Path) -> None:
    for number in range(12):

        def die(step: int, fatal: int = number % 4) -> None:
            if step == fatal:
                raise Killed

        try:
            _try_to_write(Steps(die), tmp_path, f"m{number}")
        except Killed:
            continue
    winner = _try_to_write(LocalFiles(), tmp_path, "last")
    assert _visible(tmp_path) == _once(winner)
    assert _hidden(tmp_path) == [f"{NAME}.json"]


@pytest.mark.parametrize("other_dies_at", [None, 0, 1, 2, 3, 4])
def test_two_tries_at_once_leave_one_output_however_their_steps_mix(
    tmp_path: Path, other_dies_at: int | None
) -> None:
    for moment in range(_steps_of(tmp_path / "all") + 1):
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
                    winners.append(_try_to_write(Steps(die), root, "m2"))
                except Killed:
                    return

        try:
            winners.append(_try_to_write(Steps(other), root, "m1"))
        except FileNotFoundError:
            # The other try has swept the draft before its commit. It says so, and writes nothing.
            assert moment == 0
        winners.append(_try_to_write(LocalFiles(), root, "m3"))
        assert len(set(winners)) == 1
        assert _visible(root) == _once(winners[0])
        assert _hidden(root) == [f"{NAME}.json"]


def test_a_draft_that_is_being_swept_when_it_is_committed_comes_back(tmp_path: Path) -> None:
    _write_draft(tmp_path, "m1")

    def commit_meanwhile(step: int) -> None:
        if step == 0:
            text = drafts.json.dumps({"mark": "m1", "files": [["day=1/x", "day=1/y"]]})
            draft = drafts.draft_path(str(tmp_path), NAME, "m1")
            (Path(draft) / "day=1" / "x").write_text("m1")
            path = f"{tmp_path}/{drafts.HIDDEN}/written/{NAME}.json"
            assert LocalFiles().create(path, text, by_way_of=f"{draft}/_commit.json")

    assert drafts.prepare(Steps(commit_meanwhile), str(tmp_path), NAME) == "m1"
    assert (tmp_path / "day=1" / "y").read_text() == "m1"


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
    fresh = new_mark()
    monkeypatch.setattr("time.time", lambda: 1_000_000_000.0)
    old = new_mark()
    monkeypatch.undo()
    _write_draft(tmp_path, f"{fresh}_1", "a" * 32)
    _write_draft(tmp_path, f"{old}_1", "b" * 32)
    _try_to_write(LocalFiles(), tmp_path, "m1")
    left = [one.name for one in (tmp_path / drafts.HIDDEN / "drafts").iterdir()]
    assert left == [f"{'a' * 32}.{fresh}_1"]
    assert STALE_AFTER_S == 7 * 24 * 3600


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
