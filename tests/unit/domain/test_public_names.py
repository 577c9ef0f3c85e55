from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import triggerer

# The names in the contract. Names in comments come with later issues.
CONTRACT = {
    "Asset",
    "AssetAlias",
    "AssetAll",
    "AssetAny",
    "AssetWatcher",
    "Metadata",
    "DAG",
    "task",
    "SparkSql",
    "SparkApplication",
    "asset",
    "kafka_ranges",
    "SkipTask",
    "BaseTrigger",
    "BaseEventTrigger",
    "TriggerEvent",
    "SharedStreamProducer",
    "AdvanceItem",
    "AdvanceOutcome",
    "AckTimeout",
    "SubscriberOverflow",
    "reject_shared_stream_event",
}


def test_the_contracts_names_and_no_others_are_public() -> None:
    assert set(triggerer.__all__) == CONTRACT


@pytest.mark.parametrize("name", sorted(triggerer.__all__))
def test_each_public_name_is_the_object_of_that_name(name: str) -> None:
    value = getattr(triggerer, name)
    assert value.__name__ == name
    assert name in dir(triggerer)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'SparkSQL'"):
        _ = triggerer.SparkSQL


def test_importing_the_package_and_writing_a_dag_load_no_store() -> None:
    code = (
        "import sys, triggerer\n"
        "early = set(sys.modules)\n"
        "from triggerer import *\n"
        "print('triggerer.domain.dags' in early, 'triggerer.domain.dags' in sys.modules)\n"
        "print([m for m in ('sqlalchemy', 'anyio', 'pydantic', 'pyspark') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["False True", "[]"]


@pytest.mark.parametrize("package", ["triggerer", "producers", "watchers"])
def test_the_packages_say_that_they_are_typed(package: str) -> None:
    root = Path(triggerer.__file__).parents[1]
    assert (root / package / "py.typed").is_file()
