"""A Spark application that writes a mark at its start and for each task, until a file tells it to finish or to fail."""

import os
import sys
import time
import uuid
from pathlib import Path

from pyspark.sql import SparkSession

marks = Path(sys.argv[1])


def mark(kind: str, text: str = "") -> None:
    draft = marks / f"draft {uuid.uuid4()}"
    draft.write_text(text)
    draft.rename(marks / f"{kind} {uuid.uuid4()}")


mark("driver", os.environ["TRIGGERER_RUN_TOKEN"])
spark = SparkSession.builder.getOrCreate()
while not (marks / "finish").exists():
    if (marks / "fail").exists():
        raise ValueError("there are no orders today")
    spark.sparkContext.parallelize(range(2), 2).foreach(lambda _: mark("task"))
    time.sleep(0.1)
spark.stop()
