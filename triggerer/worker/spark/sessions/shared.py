"""A driver's JVM that stays while processes come and go: one process opens it, and each run's process attaches.

The JVM's Java objects outlive the process that made them, under names of Py4J. So the opening process notes the names
of the objects that the others need, and ends without saying goodbye.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from triggerer.errors import SubmitFailed
from triggerer.worker.spark.jvm import gateway as jvm
from triggerer.worker.spark.jvm import leftovers as jvm_leftovers
from triggerer.worker.spark.sessions.classic import interrupt_handler_kept

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_held: Final[list[Any]] = []
"""Py4J would remove a Java object from the JVM when Python forgets it."""


@dataclass(frozen=True, slots=True)
class SharedDriver:
    """Everything that a process needs to attach."""

    pid: int
    port: int
    secret: str
    environment: dict[str, str | None]
    """The variables for PySpark during the attachment."""
    kept: dict[str, str]
    """Py4J's names of the Java objects of `jvm_leftovers.remember`."""
    log_level: str
    python_daemon: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def share(session: SparkSession, environment: jvm.Environment) -> SharedDriver:
    """Return how other processes attach to this process's new session. This process must end by `os._exit`."""
    context: Any = session.sparkContext
    gateway = context._gateway  # noqa: SLF001
    process = jvm.process_of(gateway)
    assert process is not None
    kept = jvm_leftovers.remember(context, session)
    _held.append(kept)
    parameters = gateway.gateway_parameters
    return SharedDriver(
        pid=process.pid,
        port=parameters.port,
        secret=parameters.auth_token,
        environment=dict(environment),
        kept={name: value._target_id for name, value in kept.items()},  # noqa: SLF001
        log_level=jvm_leftovers.log_level_of(context),
        python_daemon=context.getConf().get("spark.python.daemon.module", "pyspark.daemon"),
    )


def attach(driver: SharedDriver) -> SparkSession:
    """Clear what a former run left in the JVM, and return a session of this process's own. Call it once.

    Raises:
        SubmitFailed: The context was stopped, or the JVM does not answer.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    try:
        with jvm.laid_over_environment(driver.environment), interrupt_handler_kept():
            gateway: Any = jvm.connect(driver.port, driver.secret)
            client = gateway._gateway_client  # noqa: SLF001
            kept = jvm_leftovers.recall(driver.kept, client)
            _held.append(kept)
            if kept["context"].sc().isStopped():
                raise SubmitFailed("Spark's context was stopped")
            jvm_leftovers.clear(
                gateway,
                kept,
                pid=driver.pid,
                log_level=driver.log_level,
                python_daemon=driver.python_daemon,
            )
            conf = SparkConf(_jvm=gateway.jvm, _jconf=kept["context"].getConf())
            context = SparkContext(gateway=gateway, jsc=kept["context"], conf=conf)
            session = SparkSession(context, kept["session"].newSession())
            # It is made when it is first needed, which takes a while.
            session._jsparkSession.sessionState()  # noqa: SLF001
            return session
    except SubmitFailed:
        raise
    except Exception as error:
        raise SubmitFailed(f"Spark's JVM does not answer: {error}") from error
