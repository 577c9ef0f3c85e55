"""Files that look like DAGs and are not loaded are reported."""

import zipfile
from datetime import timedelta
from pathlib import Path

from triggerer.dag_processing import parse_once
from triggerer.dag_processing.scanning import scan, scan_again


def _zip(path: Path, *names: str) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, "")


def test_archives_notebooks_and_the_like_are_named_and_other_files_are_not(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    _zip(tmp_path / "sub" / "dags.zip", "orders.py")
    _zip(tmp_path / "data.zip", "orders.csv")
    for name in ("n.ipynb", "OLD.PY", "good.py", "query.sql", "README", ".hidden.zip", "half.zip"):
        (tmp_path / name).write_text("")
    found = scan(tmp_path)
    assert list(found.ignored) == ["OLD.PY", "n.ipynb", "sub/dags.zip"]
    assert list(found.files) == ["good.py"]
    assert scan_again(tmp_path, found).ignored == found.ignored


def test_an_archive_that_is_complete_only_now_is_named(tmp_path: Path) -> None:
    path = tmp_path / "dags.zip"
    path.write_text("PK, half of it")
    assert scan(tmp_path).ignored == {}
    _zip(path, "orders.py")
    assert list(scan(tmp_path).ignored) == ["dags.zip"]


async def test_check_says_what_to_do(tmp_path: Path) -> None:
    _zip(tmp_path / "dags.zip", "orders.py")
    parsed = await parse_once(tmp_path, file_timeout=timedelta(seconds=30))
    assert [str(one) for one in parsed.warnings] == [
        "dags.zip: it is ignored: zip archives are not loaded (unpack it into the DAGs folder)"
    ]
    assert parsed.errors == ()
