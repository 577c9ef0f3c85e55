"""Errors of Spark get a sentence that says what to do."""

import pytest

from triggerer.errors import SubmitFailed
from triggerer.worker.spark.explanations import (
    coordinate_of,
    explain_spark,
    without_stacktrace,
)


class SparkError(Exception):
    """Stands for any exception of PySpark."""


SparkError.__module__ = "pyspark.errors.exceptions.captured"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "Failed to find data source: kafka. Please deploy the application",
            "spark-sql-kafka-0-10_2.13:",
        ),
        ("[DATA_SOURCE_NOT_FOUND] Failed to find the data source: delta. Make", "io.delta:delta"),
        ("Failed to find the data source: mine. Make sure", "no data source `mine`"),
        (
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12 than that in driver: 3.11, PySpark",
            "the executors have Python 3.12 and this service has 3.11",
        ),
        ("java.lang.ClassNotFoundException: org.postgresql.Driver", "org.postgresql:postgresql:"),
        ("ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not", "hadoop-aws"),
        ("java.lang.ClassNotFoundException: com.example.Mine", "the class com.example.Mine"),
        (
            "ExecutorLostFailure (executor 1 exited caused by a task) Reason: Command exited with code 137\n",
            "Command exited with code 137",
        ),
        ("[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] Some data", "retention has deleted"),
        ("[INVALID_HANDLE.SESSION_CHANGED] The handle", "it was restarted"),
        ("status = StatusCode.UNAUTHENTICATED", "refused the token"),
        ("[unresolved dependency: a.b#c;1.0: not found]", "the package a.b:c:1.0 of"),
        ("ModuleNotFoundError: No module named 'mine'", "the module mine"),
        ("[INCOMPATIBLE_DATA_FOR_TABLE.EXTRA_COLUMNS] Cannot", "do not fit the table's schema"),
    ],
)
def test_an_error_gets_a_sentence_about_what_to_do(text: str, said: str) -> None:
    sentence = explain_spark(SparkError(text))
    assert sentence is not None
    assert said in sentence
    assert not sentence.endswith(".")


def test_the_cause_of_an_error_is_explained_too() -> None:
    error = SubmitFailed("Spark did not start")
    error.__cause__ = SparkError("[unresolved dependency: a.b#c;1.0: not found]")
    assert "a.b:c:1.0" in (explain_spark(error) or "")


def test_errors_that_are_not_sparks_stay_as_they_are() -> None:
    assert explain_spark(ValueError("No suitable driver")) is None
    assert explain_spark(SparkError("[TABLE_OR_VIEW_NOT_FOUND] The table")) is None


def test_the_jvms_frames_are_left_out_of_the_text() -> None:
    shown = without_stacktrace(
        "SparkException: it is wrong\n\nJVM stacktrace:\norg.apache.X: it\n\tat a.b(C.java:1)\n\tat d"
    )
    assert shown == "SparkException: it is wrong"
    shown = without_stacktrace(
        ": java.lang.X: it\n\tat a.b.C$.d(C.java:1)\n\t... 3 more\nCaused by: Y\n"
    )
    assert shown == ": java.lang.X: it\nCaused by: Y"


def test_coordinates_are_for_the_pyspark_that_is_installed() -> None:
    pyspark = pytest.importorskip("pyspark")
    assert (coordinate_of("kafka") or "").endswith(f":{pyspark.__version__}")
    assert coordinate_of("mine") is None
