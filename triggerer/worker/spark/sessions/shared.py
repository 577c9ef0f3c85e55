"""A driver's JVM that several processes use in turn: one process opens it, and then each run's process attaches.

A Java object can outlive the Python process that created it. Py4J names each Java object, so the opening process passes
on the names of the objects that later processes need. The opening process must end by `os._exit`, see `share`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from triggerer.errors import SubmitFailed
from triggerer.worker.spark.jvm import gateway as jvm
from triggerer.worker.spark.jvm import leftovers as jvm_leftovers
from triggerer.worker.spark.sessions.classic import restoring_interrupt_handler

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_READ_BY_PYSPARK: Final = ("spark.master", "spark.app.name", "spark.home")
_EXECUTOR_ENVIRONMENT: Final = "spark.executorEnv."
_CLASSES_OF_PYSPARK: Final = ("PythonAccumulatorV2", "PythonUtils")
_strong_references: Final[list[Any]] = []
"""Python objects that must stay alive, because Py4J removes a Java object when its Python object is deleted."""


@dataclass(frozen=True, slots=True)
class SharedDriver:
    """The data that a process needs to attach to the JVM."""

    pid: int
    port: int
    secret: str
    environment: dict[str, str | None]
    """The environment variables for PySpark while a process attaches."""
    conf: dict[str, str]
    """The settings that PySpark reads while a process attaches. Without this copy, PySpark would ask the JVM four
    questions for each setting.
    """
    baseline: dict[str, str]
    """Py4J's names of the Java objects of `leftovers.remember`."""
    log_level: str
    python_daemon: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def share(session: SparkSession, environment: jvm.Environment) -> SharedDriver:
    """Return the data with which other processes attach to the session's JVM.

    This process must end by `os._exit`. At a normal exit, Py4J would remove the Java objects that those processes need.
    """
    context: Any = session.sparkContext
    gateway = context._gateway  # noqa: SLF001
    process = jvm.process_of(gateway)
    assert process is not None
    baseline = jvm_leftovers.remember(context, session)
    _strong_references.append(baseline)
    parameters, conf = gateway.gateway_parameters, context.getConf()
    return SharedDriver(
        pid=process.pid,
        port=parameters.port,
        secret=parameters.auth_token,
        environment=dict(environment),
        conf={key: value for key, value in conf.getAll() if _is_read(key)},
        baseline={name: value._target_id for name, value in baseline.items()},  # noqa: SLF001
        log_level=jvm_leftovers.log_level_of(context),
        python_daemon=conf.get("spark.python.daemon.module", "pyspark.daemon"),
    )


def attach(driver: SharedDriver) -> SparkSession:
    """Clear the previous run's traces in the driver's JVM, and return a new session for this process.

    Call this function once for each driver.

    Raises:
        SubmitFailed: The context was stopped, or the JVM does not answer.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    try:
        with jvm.laid_over_environment(driver.environment), restoring_interrupt_handler():
            gateway: Any = jvm.connect(driver.port, driver.secret)
            # Set PySpark's gateway before the first call to the JVM. An earlier session may have installed PySpark's
            # handler of Java errors. If the call fails, the handler needs the gateway.
            SparkContext._gateway, SparkContext._jvm = gateway, gateway.jvm  # noqa: SLF001
            client = gateway._gateway_client  # noqa: SLF001
            _name_in_full(gateway.jvm, client)
            baseline = jvm_leftovers.recall(driver.baseline, client)
            _strong_references.append(baseline)
            if baseline["context"].sc().isStopped():
                raise SubmitFailed("Spark's context was stopped")
            jvm_leftovers.clear(
                gateway,
                baseline,
                pid=driver.pid,
                log_level=driver.log_level,
                python_daemon=driver.python_daemon,
            )
            conf = SparkConf(loadDefaults=False).setAll(list(driver.conf.items()))
            context = SparkContext(gateway=gateway, jsc=baseline["context"], conf=conf)
            session = SparkSession(context, baseline["session"].newSession())
            # Create the session's state now, so that the first query need not wait for it.
            session._jsparkSession.sessionState()  # noqa: SLF001
            return session
    except SubmitFailed:
        raise
    except Exception as error:
        raise SubmitFailed(f"Spark's JVM does not answer: {error}") from error


def _is_read(key: str) -> bool:
    return key in _READ_BY_PYSPARK or key.startswith(_EXECUTOR_ENVIRONMENT)


def _name_in_full(jvm_view: Any, client: Any) -> None:
    """Tell Py4J the full names of classes. Otherwise Py4J searches all imported packages for each class, up to 8 ms."""
    from py4j.java_gateway import JavaClass

    for name in _CLASSES_OF_PYSPARK:
        setattr(jvm_view, name, JavaClass(f"org.apache.spark.api.python.{name}", client))
