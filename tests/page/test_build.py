"""The built web page is small, matches its sources, and obeys its security policy. Its lock file names no host."""

from __future__ import annotations

import gzip
import re
import subprocess
from pathlib import Path

import pytest

API = Path(__file__).parents[2] / "triggerer" / "api"
PAGE = API / "page"
KIB = 1024


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_the_built_page_is_small() -> None:
    files = files_of(PAGE)
    assert sum(map(len, files.values())) <= 500 * KIB
    html = files["index.html"].decode()
    first = ["index.html", *re.findall(r'(?:src|href)="\./([^"]+)"', html)]
    assert sum(len(gzip.compress(files[name])) for name in first) <= 120 * KIB


def test_the_lock_of_the_packages_names_no_host() -> None:
    assert "://" not in (API / "web" / "package-lock.json").read_text()


def test_the_page_writes_no_style_attribute_that_its_policy_would_refuse() -> None:
    for name, text in files_of(PAGE).items():
        if name.endswith((".js", ".html")) and not name.startswith(
            ("assets/uPlot", "assets/dagre")
        ):
            assert not re.search(rb'<[^<>]+ style=\\?"', text), name


@pytest.mark.full
def test_the_built_page_is_what_the_sources_give(packages: Path) -> None:
    command = ["npm", "run", "--silent", "build"]
    done = subprocess.run(
        command, cwd=packages, check=False, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    built = files_of(packages.parent / "page")
    kept = files_of(PAGE)
    assert {name for name in built | kept if built.get(name) != kept.get(name)} == set(), (
        "the page does not match its sources; run `make web`"
    )
