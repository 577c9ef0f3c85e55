"""Joins each flight with the weather at its airport in its hour, batch by batch, on Spark.

A run receives the flights and weather reports that came after the previous run. A flight and the weather of
its hour may come in different runs, in either order. So each run adds these pairs:

    new flights ⋈ all weather so far, and earlier flights ⋈ new weather

Only one run is active at a time (`max_active_runs=1`). The task writes with `output`, so an attempt that
repeats an interrupted one duplicates no rows.
"""

import time
from pathlib import Path
from typing import Any

from triggerer import DAG, Asset, AssetWatcher, task
from watchers.kafka import KafkaEventTrigger

RESULTS = Path(__file__).resolve().parent.parent / "results"

flights = Asset(
    "kafka://demo/nycflights.flights",
    name="flights",
    watchers=[
        AssetWatcher(
            "flights_topic",
            KafkaEventTrigger("nycflights.flights", group_id="triggerer-demo-flights"),
        )
    ],
)
weather = Asset(
    "kafka://demo/nycflights.weather",
    name="weather",
    watchers=[
        AssetWatcher(
            "weather_topic",
            KafkaEventTrigger("nycflights.weather", group_id="triggerer-demo-weather"),
        )
    ],
)
delays = Asset((RESULTS / "delays").as_uri(), name="delays")

FLIGHT = (
    "id INT, carrier STRING, flight INT, origin STRING, dest STRING, time_hour STRING, "
    "dep_delay DOUBLE"
)
WEATHER = (
    "id INT, origin STRING, time_hour STRING, temp DOUBLE, wind_speed DOUBLE, precip DOUBLE, "
    "visib DOUBLE"
)


def rows_of(spark: Any, events: Any, schema: str) -> Any:
    """Turn events into rows with the columns of their messages."""
    frame = events.to_dataframe(spark, extra_schema=f"value STRUCT<{schema}>")
    return frame.select("extra.value.*")


def keep(spark: Any, output: Any, rows: Any, schema: str, name: str) -> Any:
    """Write this batch's rows, and return the rows of all batches so far."""
    from pyspark.sql.functions import lit

    batch = rows.withColumn("batch", lit(output.token))
    output.parquet(batch, str(RESULTS / name), partition_by="batch")
    return spark.read.schema(f"{schema}, batch STRING").parquet(str(RESULTS / name))


with DAG(
    "join_flights_with_weather",
    schedule=[flights, weather],
    max_active_runs=1,
    description="Each flight with the weather of its hour, as Parquet",
):

    @task(outlets=[delays])
    def join(
        spark: Any, output: Any, triggering_asset_events: Any, outlet_events: Any, log: Any
    ) -> None:
        """Add the pairs that this batch completes."""
        from pyspark.sql import functions as f

        new_flights = rows_of(spark, triggering_asset_events[flights], FLIGHT)
        new_weather = rows_of(spark, triggering_asset_events[weather], WEATHER)
        new_flights.first()
        first_row_at = time.time()

        all_flights = keep(spark, output, new_flights, FLIGHT, "flights")
        all_weather = keep(spark, output, new_weather, WEATHER, "weather").drop("id")
        is_new = f.col("batch") == output.token

        def pairs(some_flights: Any, some_weather: Any) -> Any:
            here_and_then = ["origin", "time_hour"]
            reports = f.broadcast(some_weather.drop("batch"))
            return some_flights.drop("batch").join(reports, here_and_then)

        new_pairs = pairs(all_flights.filter(is_new), all_weather).unionByName(
            pairs(all_flights.filter(~is_new), all_weather.filter(is_new))
        )
        output.parquet(new_pairs, str(RESULTS / "delays"))
        counts = {
            "flights": len(triggering_asset_events[flights]),
            "weather": len(triggering_asset_events[weather]),
        }
        log.info("joined %(flights)s flights and %(weather)s reports", counts)
        outlet_events[delays].extra = {**counts, "first_row_at": first_row_at}

    join()
