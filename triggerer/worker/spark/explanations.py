"""Explains errors of Spark in a sentence, with the next step for the user. Spark's own text follows that sentence.

This module imports no PySpark, because the executor imports this module, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Final, NamedTuple

_SPARKS: Final = ("pyspark.", "py4j.", "grpc.", "triggerer.errors")
_PICKLING: Final = "Could not serialize object: "
"""PySpark's text if pickling fails. The exception's class is a class of `pickle`, not of PySpark."""
_STACKTRACE: Final = re.compile(
    r"\n\s*JVM stacktrace:\n.*?(?=\n\n(?:During handling|The above exception)|\Z)", re.DOTALL
)
_JAVA_FRAME: Final = re.compile(
    r"^\s+(?:at [\w.$/<>]+\(.*\)|\.\.\. \d+ (?:more|common.*)"
    r"|Suppressed: org\.apache\.spark\.util\.Utils\$OriginalTryStackTraceException: .*)\n?",
    re.MULTILINE,
)
_CONDITION: Final = re.compile(r"(\[[A-Z][A-Z0-9_.]+\] [^\n]+?)(?: SQLSTATE: \w+)?$", re.MULTILINE)
"""A line with one of Spark's error conditions, such as `[DIVIDE_BY_ZERO] Division by zero`."""
_ABORTED: Final = "Job aborted due to stage failure: "
"""Over Spark Connect, the text of a job's error begins with these words."""
_CAUSED_BY: Final = re.compile(r"^(?:Caused by|): ([^\n]+)", re.MULTILINE)
_SCALA: Final = "2.13"


class _Explanation(NamedTuple):
    pattern: re.Pattern[str]
    sentence: str | Callable[[re.Match[str]], str]


def _missing(source: str) -> str:
    return (
        f"Spark has no `{source}`: add {coordinate_of(source)} to spark_packages of the DAG, or to spark.jars.packages"
        " in [spark] conf (on Spark Connect: of the server)"
    )


def _package(match: re.Match[str]) -> str:
    name = match["name"].strip("`'\". ").lower()
    if coordinate_of(name) is not None:
        return _missing(name)
    return (
        f"Spark knows no data source `{name}`: correct the name, or add the Maven coordinate of its package to"
        " spark_packages of the DAG or to spark.jars.packages in [spark] conf"
    )


def _of_class(match: re.Match[str]) -> str:
    name = match["name"]
    for start, source in _CLASSES.items():
        if name.startswith(start):
            return _missing(source)
    return (
        f"Spark cannot find the class {name}: correct the name, or add its package to spark_packages of the DAG or"
        " its jar to spark.jars in [spark] conf"
    )


_USES_SESSION: Final = (
    "a function that Spark sends to its Python workers uses `spark` or a DataFrame, which exist only in the task:"
    " collect the values first, or join the DataFrames"
)


def _unpicklable(match: re.Match[str]) -> str:
    if "CONTEXT_ONLY_VALID_ON_DRIVER" in match["why"]:
        return _USES_SESSION
    return (
        f"Spark cannot send a function to its Python workers ({match['why'].strip()}): make objects such as locks,"
        " connections and files inside the function"
    )


def _raised(match: re.Match[str]) -> str:
    """Describe the exception of a Python function. Spark's text has the traceback of the Python worker."""
    what, where = match["what"].strip(), ""
    if "[NO_ACTIVE_SESSION]" in what:
        # Over Spark Connect a session can be pickled, but not be used in a Python worker.
        return _USES_SESSION
    if frames := _PYTHON_FRAME.findall(match["frames"]):
        path, line, function = frames[-1]
        where = f" in {function}, line {line} of {path}"
    if what.startswith("MemoryError"):
        return (
            f"a Python function ran out of memory{where}: let it take fewer rows at a time, or raise"
            " spark.executor.pyspark.memory if you have set it"
        )
    return f"a Python function raised {what}{where}: correct the function, or the rows that it receives"


_PYTHON_FRAME: Final = re.compile(r'^ *File "([^"]+)", line (\d+), in (\S+)', re.MULTILINE)

_CLASSES: Final = {
    "org.apache.iceberg.": "iceberg",
    "io.delta.": "delta",
    "org.apache.spark.sql.delta.": "delta",
    "org.apache.spark.sql.kafka010.": "kafka",
    "org.apache.hadoop.fs.s3a.": "s3a",
    "org.postgresql.": "postgresql",
    "com.mysql.": "mysql",
}

_EXPLANATIONS: Final = tuple(
    _Explanation(re.compile(pattern, re.DOTALL), sentence)
    for pattern, sentence in (
        (r"Failed to find (?:the )?data source: (?P<name>[^\s]+)", _package),
        (r"KAFKA_DATA_SOURCE_NOT_ENABLED", lambda _: _missing("kafka")),
        (r"\[(?P<name>AVRO|PROTOBUF)_NOT_LOADED_SQL_FUNCTIONS_UNUSABLE\]", _package),
        (
            r"different version:\s*(?P<worker>[^a-z]+?) than that in driver:?\s*(?P<driver>[^a-z]+)",
            lambda match: (
                f"the executors have Python {_dotted(match['worker'])} and this service has"
                f" {_dotted(match['driver'])}: install the same minor version on the cluster, and name it in"
                " spark.pyspark.python of [spark] conf"
            ),
        ),
        (
            r"Cannot run program \"(?P<name>[^\"]*)\"",
            lambda match: (
                f"the machines that execute Spark's tasks cannot start {match['name']}: install it there, or correct"
                " spark.pyspark.python of [spark] conf"
            ),
        ),
        (
            r"(?:ClassNotFoundException|NoClassDefFoundError)(?::|\)) (?:Class )?(?P<name>[\w.$/]+)",
            _of_class,
        ),
        (
            r"Cannot find catalog plugin class for catalog [^:]*: (?P<name>[\w.]+)",
            _of_class,
        ),
        (r"No FileSystem for scheme \"?s3", lambda _: _missing("s3a")),
        (
            r"No suitable driver",
            lambda _: (
                "Spark has no JDBC driver for this URL: add the driver's package to spark_packages of the DAG, such as"
                f" {coordinate_of('postgresql')}, and name its class in the option `driver`"
            ),
        ),
        (
            r"ExecutorLostFailure \((?P<what>executor \w+) exited[^)]*\)(?:[^\n]*?Reason: (?P<why>[^\n]*))?",
            lambda match: (
                "executors were lost while they worked on the same task"
                f" ({(match['why'] or match['what']).strip()}): the cluster's page has their logs; if memory was short"
                " (exit code 137), raise spark.executor.memory or spark.executor.memoryOverhead"
            ),
        ),
        (
            r"is bigger than spark\.driver\.maxResultSize",
            (
                "the task collects more rows than the driver accepts: write them to a table or a file, or raise"
                " spark.driver.maxResultSize"
            ),
        ),
        (
            r"java\.lang\.OutOfMemoryError: (?P<what>[^\n]*)",
            lambda match: (
                f"Spark ran out of memory ({match['what'].strip()}): raise spark.driver.memory if the task collects"
                " rows, or else spark.executor.memory"
            ),
        ),
        (
            r"OffsetOutOfRangeException|KAFKA_DATA_LOSS|Some data may have been lost because they are not available",
            (
                "Kafka no longer has some offsets of this range, because retention has deleted them: set failOnDataLoss"
                ' to "false" to read the rest, and keep messages longer'
            ),
        ),
        (
            r"SESSION_CHANGED|SESSION_NOT_FOUND|OPERATION_NOT_FOUND|SESSION_CLOSED",
            (
                "the Spark Connect server no longer knows this run's session: it was restarted, or somebody closed the"
                " session. Retry the run"
            ),
        ),
        (
            r"UNAUTHENTICATED|Invalid authentication token|PERMISSION_DENIED",
            "the Spark Connect server refused the token: correct `;token=…` in [spark] remote",
        ),
        (
            r"StatusCode\.UNAVAILABLE|failed to connect to all addresses|RETRIES_EXCEEDED",
            "the Spark Connect server went away during the run: see its log, and retry the run once it is back",
        ),
        (rf"{_PICKLING}(?P<why>[^\n]*)", _unpicklable),
        (
            r"\[REQUIRES_SINGLE_PART_NAMESPACE\] spark_catalog requires[^\n]*?got `(?P<name>[^`]+)`",
            lambda match: (
                f"Spark has no catalog `{match['name']}`: set spark.sql.catalog.{match['name']} in spark_conf of the"
                " DAG or in [spark] conf (on Spark Connect: of the server), or correct the table's name"
            ),
        ),
        (
            r"\[CANNOT_LOAD_FUNCTION_CLASS\] Cannot load class (?P<name>[\w.$]+)",
            _of_class,
        ),
        (
            (
                r"\[(?:PARSE_[\w.]+|[\w.]*SYNTAX[\w.]*)\] (?P<text>[^\n]*?)(?: SQLSTATE: \w+)?"
                r"(?P<where> ?\(line \d+, pos \d+\))?\s*(?:\n|$)"
            ),
            lambda match: (
                f"Spark cannot parse the SQL{match['where'] or ''}, which the text below shows:"
                f" {match['text'].strip('. ')}"
            ),
        ),
        (
            r"No space left on device|Disk quota exceeded|DiskErrorException: Could not find any valid local directory",
            (
                "a disk that Spark writes to is full: free space there, or name folders on a larger disk in"
                " spark.local.dir of [spark] conf (in cluster mode: where Spark's workers start)"
            ),
        ),
        (
            r"Mkdirs failed to create (?:file:)?(?P<path>/[^\s]*?)(?:/_temporary|/_triggerer|\s)",
            lambda match: (
                f"Spark cannot create {match['path']}: correct the path, or let the user of Spark's processes write"
                " there, on all machines that execute tasks"
            ),
        ),
        (
            (
                r"AccessDeniedException: (?P<path>[^\s]+)|(?P<opened>/[^\s]+) \(Permission denied\)"
                r"|Permission denied: (?P<user>user=[^\n]*)"
            ),
            lambda match: (
                f"Spark has no permission for {match['path'] or match['opened'] or match['user']}: correct the path, or"
                " the rights of the user of Spark's processes"
            ),
        ),
        (
            r"Python worker exited unexpectedly",
            (
                "a Python worker of Spark died while it executed a function: if memory ran out, the kernel killed it,"
                " so raise spark.executor.memoryOverhead or use fewer cores; otherwise a library in it crashed"
            ),
        ),
        (
            r"Master removed our application: (?P<what>\w+)|application has been (?P<what2>killed)",
            (
                "the application was ended on the cluster: somebody killed it, or the cluster gave it up. The cluster's"
                " page has the reason"
            ),
        ),
        (
            r"unresolved dependency: (?P<name>[^\s:;\]]+;?[^\s:;\]]*)",
            lambda match: (
                f"the package {match['name'].replace('#', ':').replace(';', ':')} of spark.jars.packages was not found"
                " in any repository: correct it, or name a repository in spark.jars.repositories"
            ),
        ),
        (
            r"download failed: (?P<name>[^\s\],]+)",
            lambda match: (
                f"the jar {match['name']} of a package could not be downloaded: the run's log has the reason; if it"
                " names ~/.m2, delete the incomplete artifact there, else retry the run"
            ),
        ),
        (
            r"ModuleNotFoundError: No module named '(?P<name>[\w.]+)'",
            lambda match: (
                f"a Python function on an executor needs the module {match['name']}, which is not there: install it on"
                " the cluster's machines, or put the module below the DAGs folder, from where it is sent along"
            ),
        ),
        (
            (
                r"DELTA_FAILED_TO_MERGE_FIELDS|schema mismatch detected when writing|INCOMPATIBLE_DATA_FOR_TABLE"
                r"|INSERT_COLUMN_ARITY_MISMATCH|DELTA_METADATA_MISMATCH|Cannot write incompatible d"
            ),
            (
                "the rows do not fit the table's schema, and none was written: select and cast the table's columns, or"
                " change the table first"
            ),
        ),
        (
            (
                r"(?:PythonException|from the Python worker).*Traceback \(most recent call last\):\n"
                r"(?P<frames>(?:[ \t][^\n]*\n)+)(?P<what>[A-Za-z_][^\n]*)"
            ),
            _raised,
        ),
    )
)
"""The first entry that matches counts, so special entries come before general ones."""


def explain_spark(error: BaseException) -> str | None:
    """Return a sentence to show before Spark's own text. None: the text needs no such sentence.

    For a known error, the sentence is advice. Otherwise it is the line of Spark's text with the
    cause.
    """
    for one in _chain(error):
        text = str(one)
        if not (type(one).__module__.startswith(_SPARKS) or text.startswith(_PICKLING)):
            continue
        for explanation in _EXPLANATIONS:
            if match := explanation.pattern.search(text):
                sentence = explanation.sentence
                return sentence if isinstance(sentence, str) else sentence(match)
    return _essence(error)


def is_of_restarted_server(error: BaseException) -> bool:
    """Return whether a Spark Connect server answered that it was restarted, so it executes no work from before."""
    return "SESSION_CHANGED" in str(error)


def _essence(error: BaseException) -> str | None:
    """Return the line of Spark's text that has the cause. None: the first line has the cause, or no line has one."""
    text = _STACKTRACE.sub("", str(error))
    if not (type(error).__name__ == "Py4JJavaError" or text.startswith(_ABORTED)):
        return None
    if condition := _CONDITION.search(text):
        return condition[1].strip(" .")
    causes = _CAUSED_BY.findall(text)
    return causes[-1].strip(" .") if causes else None


def without_stacktrace(text: str) -> str:
    """Return an error's text without the JVM's stack frames, which hide the useful sentence. The log has the frames."""
    return _JAVA_FRAME.sub("", _STACKTRACE.sub("", text)).rstrip()


def coordinate_of(source: str) -> str | None:
    """Return the Maven coordinate of a data source, for the installed PySpark version. None: the source is unknown."""
    spark = _pyspark_version()
    minor = ".".join(spark.split(".")[:2])
    delta = (
        f"delta-spark_{minor}_{_SCALA}:4.4.0" if minor != "4.0" else f"delta-spark_{_SCALA}:4.0.1"
    )
    return {
        "kafka": f"org.apache.spark:spark-sql-kafka-0-10_{_SCALA}:{spark}",
        "avro": f"org.apache.spark:spark-avro_{_SCALA}:{spark}",
        "protobuf": f"org.apache.spark:spark-protobuf_{_SCALA}:{spark}",
        "delta": f"io.delta:{delta}",
        "iceberg": f"org.apache.iceberg:iceberg-spark-runtime-{minor}_{_SCALA}:1.12.0",
        "s3a": "org.apache.hadoop:hadoop-aws:3.4.2",
        "postgresql": "org.postgresql:postgresql:42.7.7",
        "mysql": "com.mysql:mysql-connector-j:9.4.0",
    }.get(source)


def _pyspark_version() -> str:
    for name in ("pyspark", "pyspark-client"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "<Spark's version>"


def _dotted(text: str) -> str:
    return ".".join(re.findall(r"\d+", text))


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen, unseen = set[int](), [error]
    while unseen:
        one = unseen.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, BaseExceptionGroup):
            unseen.extend(one.exceptions)
        unseen.extend(other for other in (one.__cause__, one.__context__) if other is not None)
