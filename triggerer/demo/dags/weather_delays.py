"""Reads all Parquet files that exist, and computes which weather delays which carrier, and by how much."""

import json
from pathlib import Path
from typing import Any

from triggerer import DAG, Asset, task

RESULTS = Path(__file__).resolve().parent.parent / "results"
delays = Asset((RESULTS / "delays").as_uri(), name="delays")

# The first true condition decides: an hour of fog and rain counts as low visibility.
SKY = """
    CASE WHEN visib < 3 THEN 'low visibility'
         WHEN precip > 0 THEN 'rain or snow'
         WHEN wind_speed > 20 THEN 'strong wind'
         ELSE 'fair' END
"""

with DAG(
    "which_weather_delays_which_carrier",
    schedule=delays,
    max_active_runs=1,
    description="Mean departure delay by carrier and weather",
):

    @task
    def answer(spark: Any, log: Any) -> None:
        """Write each carrier's mean delay in each weather, atomically."""
        pairs = spark.read.parquet(str(RESULTS / "delays"))
        rows = (
            pairs.selectExpr("carrier", f"{SKY} AS sky", "dep_delay")
            .groupBy("carrier", "sky")
            .agg({"*": "count", "dep_delay": "avg"})
            .toDF("carrier", "sky", "flights", "mean_delay")
            .collect()
        )
        found = [row.asDict() for row in rows]
        part = RESULTS / "answer.json.part"
        part.write_text(json.dumps(found))
        part.replace(RESULTS / "answer.json")
        log.info("answered from %s flights", sum(row["flights"] for row in found))

    answer()
