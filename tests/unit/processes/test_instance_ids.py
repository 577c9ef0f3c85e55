"""The ids of instances name their host."""

from __future__ import annotations

import socket
from importlib.util import find_spec, module_from_spec
from pathlib import Path

import pytest
from sqlalchemy import String

from triggerer.processes.instance_ids import (
    host_and_pid,
    is_known_dead,
    is_on_this_host,
    new_instance_id,
    this_process,
)
from triggerer.store.schema.models import Instance

LONGEST = 64
"""The most characters of a host name on Linux."""


def id_on(host: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    monkeypatch.setattr("os.getpid", lambda: 4_194_304)
    return new_instance_id()


@pytest.mark.parametrize("host", ["worker-1", "w" * 40])
def test_an_id_contains_a_host_name_of_up_to_40_characters(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert host_and_pid(id_on(host, monkeypatch)) == (host, 4_194_304)


def test_two_hosts_whose_long_names_begin_alike_are_two_hosts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = id_on("w" * 40 + "-1", monkeypatch)
    assert is_on_this_host(first)
    second = id_on("w" * 40 + "-2", monkeypatch)
    assert is_on_this_host(second)
    assert not is_on_this_host(first)


def test_the_id_of_a_host_with_the_longest_name_fits_its_column(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    instance_id = id_on("w" * LONGEST, monkeypatch)
    assert is_on_this_host(instance_id)
    column = Instance.__table__.c.id.type
    assert isinstance(column, String)
    assert column.length is not None
    assert len(instance_id) <= column.length


def test_without_proc_sys_no_other_process_is_known_to_be_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """systemd's `ProcSubset=pid`, which our units have, hides /proc/sys."""
    gone = id_on(socket.gethostname(), monkeypatch)

    def hide(path: Path) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", hide)
    # Another process has a copy of the module of its own.
    spec = find_spec("triggerer.processes.instance_ids")
    assert spec is not None
    assert spec.loader is not None
    restricted = module_from_spec(spec)
    spec.loader.exec_module(restricted)
    assert restricted.new_instance_id()[-4:] == restricted.new_instance_id()[-4:]
    assert not restricted.is_known_dead(gone)


def test_only_an_instance_of_this_pid_namespace_is_known_to_be_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not is_known_dead(new_instance_id())
    gone = id_on(socket.gethostname(), monkeypatch)
    assert is_known_dead(gone)
    # A process of another machine or container with this host's name may live, although no such process is visible.
    assert this_process().endswith(":4194304")
    assert not is_known_dead(f"{this_process()}:00112233")
