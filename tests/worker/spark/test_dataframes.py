import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from triggerer.worker.events.mappings import TriggeringAssetEvents
from triggerer.worker.spark import EVENT_COLUMNS, is_alive, to_dataframe, warm_up


def event(number: int, value: Any = None, **fields: Any) -> dict[str, Any]:
    return {
        "id": number,
        "asset_name": "orders",
        "asset_uri": "kafka://broker/orders",
        "timestamp": "2026-01-01T12:00:00.5+00:00",
        "source_watcher": "orders-watcher",
        "extra": {"value": value, "offset": number},
        **fields,
    }


def test_events_become_rows_in_order_with_the_fields_of_extra_at_hand(spark: Any) -> None:
    frame = to_dataframe(spark, [event(n, {"id": n, "tags": ["a"]}) for n in range(3)])
    assert tuple(frame.columns) == EVENT_COLUMNS
    assert [tuple(row) for row in frame.select("id", "extra.value.*").collect()] == [
        (0, 0, ["a"]),
        (1, 1, ["a"]),
        (2, 2, ["a"]),
    ]


def test_the_columns_have_the_types_of_asset_events(spark: Any) -> None:
    types = dict(to_dataframe(spark, [event(1, 2.5)]).dtypes)
    assert types.pop("extra") == "struct<value:double,offset:bigint>"
    assert types.pop("id") == "bigint"
    assert types.pop("timestamp") == "timestamp"
    assert set(types.values()) == {"string"}


def test_instants_keep_their_instant(spark: Any) -> None:
    row = to_dataframe(spark, [event(1)]).selectExpr("unix_micros(timestamp)").first()
    noon = datetime(2026, 1, 1, 12, 0, 0, 500_000, tzinfo=UTC)
    assert row[0] == int(noon.timestamp() * 1_000_000)


def test_mixed_values_are_text_and_the_others_keep_their_type(spark: Any) -> None:
    frame = to_dataframe(spark, [event(1, {"a": 1, "b": 1}), event(2, {"a": {"x": None}, "b": 2})])
    assert [tuple(row) for row in frame.select("extra.value.*").collect()] == [
        ("1", 1),
        ('{"x":null}', 2),
    ]


def test_no_events_are_a_frame_with_the_same_columns_and_no_row(spark: Any) -> None:
    frame = to_dataframe(spark, [])
    assert tuple(frame.columns) == EVENT_COLUMNS
    assert frame.select("id", "extra.value").collect() == []


def test_every_frame_can_be_written_and_read_again(spark: Any, tmp_path: Path) -> None:
    events = [
        event(1, {"empty": {}, "none": None, "list": [], "nan": float("nan")}),
        event(2, {"empty": {}, "none": None, "list": [[]], "nan": 1}),
    ]
    for name, rows in {"some": events, "no": []}.items():
        path = str(tmp_path / name)
        to_dataframe(spark, rows).write.parquet(path)
        assert spark.read.parquet(path).count() == len(rows)


def test_with_a_schema_the_type_does_not_depend_on_the_events(spark: Any) -> None:
    schema = "value struct<id: bigint, price: double>, offset bigint"
    for events in ([event(1, {"id": 7}), event(2, {"id": "x", "price": 1})], []):
        frame = to_dataframe(spark, events, extra_schema=schema)
        assert dict(frame.dtypes)["extra"] == (
            "struct<value:struct<id:bigint,price:double>,offset:bigint>"
        )
        values = [tuple(row) for row in frame.select("extra.value.*").collect()]
        assert values == [(7, None), (None, 1.0)][: len(events)]


def test_thirty_thousand_events_take_about_a_second(spark: Any) -> None:
    warm_up(spark)
    events = [
        event(n, {"id": n, "price": n * 1.5, "name": str(n), "tags": ["x", "y"], "in": {"a": n}})
        for n in range(30_000)
    ]
    started = time.process_time()
    assert to_dataframe(spark, events).selectExpr("sum(extra.value.id)").first()[0] == 449985000
    # Processor time of this process alone, which hardly grows on a busy machine. It was 0.3 s when measured.
    assert time.process_time() - started < 2


def test_a_shared_session_is_alive(spark: Any) -> None:
    assert is_alive(spark)


def test_spark_reads_the_objects_that_uris_names_and_no_other(spark: Any, tmp_path: Path) -> None:
    landed = ["a b.json", "r[1].json", "st*r.json", "wh?t.json", "x{y,z}.json", "p%20c#.json"]
    others = ["r1.json", "star.json", "what.json", "xy.json", "xz.json"]
    for name in [*landed, *others]:
        (tmp_path / name).write_text(f'{{"of": "{name}"}}\n')

    def execute(what: str, **_: Any) -> list[dict[str, Any]]:
        if what == "triggering":
            return [{"name": "in", "uri": "x-in", "total": len(landed), "last_id": len(landed)}]
        return [
            event(number) | {"extra": {"uri": f"file://{tmp_path}/{name}"}}
            for number, name in enumerate(landed, 1)
        ]

    found = spark.read.json(TriggeringAssetEvents(execute)["in"].uris()).collect()
    assert sorted(row["of"] for row in found) == sorted(landed)
