"""Errors of Spark get a sentence that says what to do."""

from pickle import PicklingError

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


class Py4JJavaError(SparkError):
    """Its text begins with the name of a method, and the reason comes later."""


CALL = (
    "An error occurred while calling o1.parquet.\n"
    ": org.apache.spark.SparkException: Job aborted due to stage failure: "
)
FUNCTION = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/dags/load.py", line 96, in parse
    return int("seven")
           ^^^^^^^^^^^^
{}
"""


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
        ("(java.lang.ClassNotFoundException) org.postgresql.Driver", "org.postgresql:postgresql:"),
        (FUNCTION.format("ModuleNotFoundError: No module named 'mine'"), "needs the module mine"),
        (FUNCTION.format("X: [NO_ACTIVE_SESSION] No active Spark session"), "uses `spark` or a"),
        ("java.lang.ClassNotFoundException: com.example.Mine", "the class com.example.Mine"),
        (
            "ExecutorLostFailure (executor 1 exited caused by a task) Reason: Command exited with code 137\n",
            "Command exited with code 137",
        ),
        ("[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] Some data", "retention has deleted"),
        ("[INVALID_HANDLE.SESSION_CHANGED] The handle", "it was restarted"),
        ("status = StatusCode.UNAUTHENTICATED", "refused the token"),
        ("[unresolved dependency: a.b#c;1.0: not found]", "the package a.b:c:1.0 of"),
        (
            f'{CALL}java.io.IOException: Cannot run program "/opt/python3": error=2, No such file or directory\n',
            "cannot start /opt/python3: install it there",
        ),
        ("[download failed: a.b#c;1.0!c.jar, d#e;2!e.jar]", "the jar a.b#c;1.0!c.jar of a package"),
        ("ModuleNotFoundError: No module named 'mine'", "the module mine"),
        (
            FUNCTION.format("ValueError: invalid literal: 'seven'"),
            "raised ValueError: invalid literal: 'seven' in parse, line 96 of /dags/load.py",
        ),
        (FUNCTION.format("MemoryError"), "a Python function ran out of memory in parse, line 96"),
        (
            "org.apache.spark.api.python.PythonException: "
            + FUNCTION.strip().format("KeyError: 'a'\n\tat x.Y(Z:1)"),
            "a Python function raised KeyError: 'a' in parse",
        ),
        (
            "\n[PARSE_SYNTAX_ERROR] Syntax error at or near 'SELEC'. SQLSTATE: 42601 (line 1, pos 0)\n\n== SQL ==\n",
            "cannot parse the SQL (line 1, pos 0), which the text below shows: Syntax error at or near 'SELEC'",
        ),
        (
            "[REQUIRES_SINGLE_PART_NAMESPACE] spark_catalog requires a single-part namespace, but got `ice`.`db`.`t`.",
            "no catalog `ice`: set spark.sql.catalog.ice",
        ),
        (
            "[CANNOT_LOAD_FUNCTION_CLASS] Cannot load class com.example.No when registering",
            "the class com.example.No",
        ),
        (
            f"{CALL}java.io.IOException: Mkdirs failed to create file:/srv/lake/_temporary/0/x_0 (exists=fal",
            "Spark cannot create /srv/lake: correct the path",
        ),
        (
            f"{CALL}java.io.FileNotFoundException: /srv/a (Permission denied)",
            "permission for /srv/a",
        ),
        ("Permission denied: user=etl, access=WRITE, inode=/lake", "user=etl, access=WRITE"),
        (f"{CALL}java.io.IOException: No space left on device", "spark.local.dir"),
        (
            f"{CALL}SparkException: Python worker exited unexpectedly (crashed). Consider",
            "memoryOverhead",
        ),
        ("[INCOMPATIBLE_DATA_FOR_TABLE.EXTRA_COLUMNS] Cannot", "do not fit the table's schema"),
    ],
)
def test_an_error_gets_a_sentence_about_what_to_do(text: str, said: str) -> None:
    sentence = explain_spark(SparkError(text))
    assert sentence is not None
    assert said in sentence
    assert not sentence.endswith(".")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "TypeError: cannot pickle '_thread.lock' object",
            "(TypeError: cannot pickle '_thread.lock' object)",
        ),
        (
            "PySparkRuntimeError: [CONTEXT_ONLY_VALID_ON_DRIVER] It appears",
            "uses `spark` or a DataFrame",
        ),
    ],
)
def test_a_function_that_cannot_be_sent_to_python_workers_is_explained(
    text: str, said: str
) -> None:
    assert said in (explain_spark(PicklingError(f"Could not serialize object: {text}")) or "")
    assert explain_spark(PicklingError(text)) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            (
                f"{CALL}SparkException: x\nCaused by: SparkException: [FAILED_READ_FILE.X] It is. SQLSTATE: KD001\n"
                "Caused by: java.lang.RuntimeException: short\n"
            ),
            "[FAILED_READ_FILE.X] It is",
        ),
        (
            f"{CALL}SparkException: x\n\tat a.b\nCaused by: java.lang.X: it is short\n",
            "java.lang.X: it is short",
        ),
        (
            "An error occurred while calling o1.jdbc.\n: java.sql.SQLException: Bad",
            "java.sql.SQLException: Bad",
        ),
        ("An error occurred", None),
    ],
)
def test_an_unknown_error_of_the_jvm_gets_the_line_with_its_reason(
    text: str, said: str | None
) -> None:
    assert explain_spark(Py4JJavaError(text)) == said


def test_over_connect_a_failed_job_has_the_same_reason() -> None:
    text = "Job aborted due to stage failure: Task 0\nCaused by: X: [FAILED_READ_FILE.X] It is. SQLSTATE: KD001\n"
    assert explain_spark(SparkError(text)) == "[FAILED_READ_FILE.X] It is"


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
    original = "org.apache.spark.util.Utils$OriginalTryStackTraceException: Full stacktrace"
    shown = without_stacktrace(
        f": X: it\n\tSuppressed: {original}\n\t\tat a.b(C.java:1)\nCaused by: Y\n"
    )
    assert shown == ": X: it\nCaused by: Y"


def test_coordinates_are_for_the_pyspark_that_is_installed() -> None:
    pyspark = pytest.importorskip("pyspark")
    assert (coordinate_of("kafka") or "").endswith(f":{pyspark.__version__}")
    assert coordinate_of("mine") is None
