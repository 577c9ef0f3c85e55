from __future__ import annotations

import pickle
import warnings
from collections.abc import AsyncIterator, Hashable
from typing import Any

import pytest

from triggerer.abc import BaseEventTrigger, BaseTrigger, TriggerEvent
from triggerer.domain.assets import Asset, AssetAlias, AssetWatcher, Metadata
from triggerer.domain.uris import CredentialsInUri, normalize_uri
from triggerer.errors import DagError
from triggerer.observability.error_texts import traceback_text


class Ticks(BaseEventTrigger):
    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "tests.Ticks", {}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        yield TriggerEvent(1)


class Until(BaseTrigger):
    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "tests.Until", {}

    def shared_stream_key(self) -> Hashable:
        return None


@pytest.mark.parametrize(
    ("asset", "name", "uri"),
    [
        (Asset("s3://bucket/key"), "s3://bucket/key", "s3://bucket/key"),
        (Asset("orders"), "orders", "orders"),
        (Asset(name="orders"), "orders", "orders"),
        (Asset(uri="s3://bucket/key"), "s3://bucket/key", "s3://bucket/key"),
        (Asset("s3://bucket/key", name="orders"), "orders", "s3://bucket/key"),
        (Asset("orders", uri="s3://bucket/key"), "orders", "s3://bucket/key"),
    ],
)
def test_the_first_argument_is_the_uri_or_the_name(asset: Asset, name: str, uri: str) -> None:
    assert (asset.name, asset.uri) == (name, uri)


def test_identity_is_name_and_uri_and_nothing_else() -> None:
    one = Asset("a", extra={"x": 1}, group="g", watchers=[AssetWatcher("w", Ticks())])
    assert one == Asset("a")
    assert hash(one) == hash(Asset("a"))
    assert Asset("a") != Asset("a", name="b")
    assert Asset("s3://b/K") != Asset("s3://b/k")


def test_an_asset_needs_a_uri_or_a_name() -> None:
    with pytest.raises(DagError, match="needs a URI or a name"):
        Asset()


def test_an_asset_knows_the_line_that_made_it() -> None:
    location = Asset("a").defined_at
    assert location is not None
    assert location.file == __file__


def test_an_asset_can_be_pickled_into_a_spark_task() -> None:
    assert pickle.loads(pickle.dumps(Asset("a", extra={"x": [1]}))).extra == {"x": [1]}


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("S3://Bucket/Key", "s3://Bucket/Key"),
        ("File:///data/In", "file:///data/In"),
        ("file:data/in", "file:data/in"),
        ("kafka://Host:9092/Topic", "kafka://Host:9092/Topic"),
        ("postgres://host/db/schema/table", "postgres://host/db/schema/table"),
        ("postgresql://host/db/table", "postgresql://host/db/table"),
        ("X-Mine://what ever", "x-mine://what ever"),
        ("no scheme at all %", "no scheme at all %"),
        ("https://h/p?b=2&a=1#f", "https://h/p?b=2&a=1#f"),
        ("https://h/?", "https://h/?"),
        ("abfss://container@account.dfs.core.windows.net/x",) * 2,
        ("s3://bucket/trailing/", "s3://bucket/trailing/"),
    ],
)
def test_a_uri_is_kept_as_written_but_for_the_case_of_its_scheme(given: str, kept: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert normalize_uri(given) == kept
        assert normalize_uri(kept) == kept


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("", "empty"),
        ("  ", "empty"),
        ("s3://bücher/x", "not ASCII"),
        ("x-mine://ü", "not ASCII"),
        ("orders\n", "control character"),
        ("airflow://x", "reserved"),
        ("Triggerer:x", "reserved"),
        ("s3://bucket/a b", "%20"),
        ("s3://bucket/{day}", "%7B"),
        ("s3://bucket/%zz", "%25"),
        ("http://host:99999/", "Port out of range"),
        ("http://[::1/", "Invalid IPv6"),
        ("file://", "no path"),
        ("file:///", "no path"),
        ("s3:///key", "no bucket"),
        ("gs:key", "no bucket"),
        ("kafka://host", "no topic"),
        ("kafka:///topic", "no host"),
        ("kafka://:9092/topic", "no host"),
        ("postgres://host/db", "database, schema and table"),
        ("postgres://host/db/schema/table/more", "database, schema and table"),
        ("postgres://host/db//table", "database, schema and table"),
        ("mysql://host/db", "database and table"),
        ("abfss://account/x", "no container"),
        ("x" * 1501, "longer than"),
    ],
)
def test_an_invalid_uri_is_refused_with_the_reason(uri: str, reason: str) -> None:
    with pytest.raises(DagError, match=reason):
        Asset(uri)


@pytest.mark.parametrize("uri", ["s3:///no-bucket", "GS:key", "file:///", "kafka:///topic"])
def test_a_uri_that_lacks_a_part_is_shown_as_it_was_written(uri: str) -> None:
    with pytest.raises(DagError) as refused:
        Asset(uri)
    assert str(refused.value).startswith(f"{uri!r} names no ")


@pytest.mark.filterwarnings("ignore::triggerer.domain.uris.CredentialsInUri")
@pytest.mark.parametrize(
    "uri",
    [
        "s3://user:hunter2@bucket/a b",
        "s3://u:hunter2@[x/",
        "x:ü//u:hunter2@h",
        "s3://u:hunter2@/key",
        "abfss://:hunter2@account/x",
        "postgres://user:hunter2/x@host/db/t",
        "postgres://user:x/hunter2@host/db/t",
        "postgres://user:x/hunter2@y@host/db/t",
        "postgres://user:1/hunter2@host/db/t/more",
        "postgres://user:x?hunter2@host/db/t",
        "postgres://user:hunter2#x@host/db/t",
        "postgres://user:[hunter2]@host/db/t",
        "postgres://hunter2@[x/db/t@y",
        "airflow://user:x/hunter2@host",
        "s3://user:x/\nhunter2@bucket",
    ],
)
def test_an_error_about_a_uri_does_not_show_its_password(uri: str) -> None:
    with pytest.raises(DagError) as refused:
        Asset(uri)
    assert "hunter2" not in traceback_text(refused.value)


def test_credentials_in_a_uri_are_dropped_with_a_warning_at_the_authors_line() -> None:
    with pytest.warns(CredentialsInUri) as warned:
        asset = Asset("postgres://user:hunter2@host:5432/db/public/t")
    assert (asset.uri, asset.name) == ("postgres://host:5432/db/public/t",) * 2
    assert warned[0].filename == __file__
    assert "hunter2" not in str(warned[0].message)


@pytest.mark.parametrize("trigger", [Until(), Ticks, None, "watchers.kafka.KafkaEventTrigger"])
def test_a_watcher_refuses_what_is_not_an_event_trigger(trigger: Any) -> None:
    with pytest.raises(DagError, match=r"'w'.*is not a BaseEventTrigger"):
        AssetWatcher("w", trigger)


def test_two_watchers_of_an_asset_may_not_share_a_name() -> None:
    with pytest.raises(DagError, match="two watchers named 'w'"):
        Asset("a", watchers=[AssetWatcher("w", Ticks()), AssetWatcher("w", Ticks())])


@pytest.mark.parametrize("extra", [{"x": object()}, {1: 2}, [1], {"x": float("nan")}])
def test_extra_that_json_cannot_hold_is_refused(extra: Any) -> None:
    with pytest.raises(DagError, match="extra"):
        Asset("a", extra=extra)


def test_metadata_without_extra_has_an_empty_one_also_where_none_is_given() -> None:
    assert Metadata(Asset("a")).extra == Metadata(Asset("a"), None).extra == {}
    assert Metadata(Asset("a"), {"n": 1}, None) == Metadata(asset=Asset("a"), extra={"n": 1})


def test_metadata_and_aliases_are_checked_as_well() -> None:
    with pytest.raises(DagError, match="Metadata needs an Asset"):
        Metadata("a")  # type: ignore[arg-type]
    with pytest.raises(DagError, match="alias's name is empty"):
        AssetAlias("")
