"""Sets up logging: our lines go through structlog, the lines of libraries through the standard `logging`.

structlog is imported only when the first line is logged, because most commands log nothing. structlog imports Rich, and
both together would take a tenth of the import time of a command that queries the database.
"""

from __future__ import annotations

import json
import logging
import math
import sys
import time
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from functools import cached_property
from io import StringIO, TextIOWrapper
from typing import TYPE_CHECKING, Any, Final, TextIO

from triggerer.observability.logging_terminal import Brief, TerminalRenderer
from triggerer.observability.redaction import redact, redact_text

if TYPE_CHECKING:
    from structlog.typing import Processor

    from triggerer.config import CoreSettings

# Libraries that log every connection. Their lines below "warning" are shown only if our log level is "debug".
_QUIET: Final = (
    "aiobotocore",
    "aiokafka",
    "alembic",
    "asyncio",
    "azure",
    "botocore",
    "kafka",
    "py4j",
    "sqlalchemy",
    "watchfiles",
)

_OUR_PACKAGES: Final = frozenset({"triggerer", "producers", "watchers"})
_installed: Final[list[tuple[logging.Handler, int, Mapping[str, Any]]]] = []
"""The root handler, level and structlog settings that `set_up_logging` made. Empty: it was not called."""

# `_redact` leaves these fields alone: the first three cannot contain a secret, and the renderer redacts `exc_info`.
_WITHOUT_SECRETS: Final = frozenset({"level", "logger", "timestamp", "exc_info"})

# The most names in one line. A folder may have a thousand DAGs, and a line with all their names would be unreadable.
_FEW: Final = 10


def set_up_logging(settings: CoreSettings, stream: TextIO | None = None) -> None:
    """Send all log lines to `stream` (default: standard error).

    `log_format` sets the form of the lines. With "auto", lines are short if `stream` is a terminal, and JSON otherwise.
    A command or a service calls this function once at its start.
    """
    import structlog

    stream = stream or sys.stderr
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    as_json = settings.log_format == "json" or (
        settings.log_format == "auto" and not stream.isatty()
    )
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.PositionalArgumentsFormatter(),
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    if as_json and isinstance(stream, TextIOWrapper):
        # JSON must be UTF-8, even if the locale has another encoding.
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_renderers(as_json, stream, is_whole=level <= logging.DEBUG),
            ],
        )
    )
    handler.addFilter(SeldomRepeats(_QUIET))
    if not as_json and stream.isatty() and level > logging.DEBUG:
        handler.addFilter(Brief())
    _installed[:] = [(handler, level, structlog.get_config())]
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(level, logging.WARNING) if level > 10 else level)


def undo_changes() -> None:
    """Restore the logging settings that users' code changed while it was imported.

    `logging.config.dictConfig`, for example, disables by default all loggers that it does not name, and
    `structlog.configure` changes our loggers too. Without `undo_changes`, log lines of the service would be lost.
    """
    if not _installed:
        return
    import structlog

    root = logging.getLogger()
    for handler, level, config in _installed:
        structlog.configure(**config)
        root.handlers = [handler]
        root.setLevel(level)
        logging.disable(logging.NOTSET)
        for name, logger in list(root.manager.loggerDict.items()):
            if name.partition(".")[0] in _OUR_PACKAGES and isinstance(logger, logging.Logger):
                logger.disabled = False


def set_up_logging_when_used(settings: CoreSettings) -> None:
    """Postpone `set_up_logging` until a `LazyLogger` or a library's logger logs its first line."""
    logging.getLogger().handlers = [_SetUpWhenUsed(settings)]


class LazyLogger:
    """A logger for modules that commands import. It imports structlog only when it logs its first line."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Any:
        return getattr(self._logger, method)

    @cached_property
    def _logger(self) -> Any:
        import structlog

        for handler in logging.getLogger().handlers:
            if isinstance(handler, _SetUpWhenUsed):
                handler.set_up()
        return structlog.get_logger(self._name)


def names_if_few(**names: Collection[str]) -> dict[str, list[str]]:
    """Return the names as sorted lists, by field. Leave out a collection that is empty or has more than ten names.

    The caller should log the number of names as well.
    """
    return {field: sorted(some) for field, some in names.items() if 0 < len(some) <= _FEW}


class _SetUpWhenUsed(logging.Handler):
    def __init__(self, settings: CoreSettings) -> None:
        super().__init__()
        self._settings = settings

    def set_up(self) -> None:
        set_up_logging(self._settings)

    def emit(self, record: logging.LogRecord) -> None:
        self.set_up()
        logging.getLogger().handle(record)


_MOST_REMEMBERED: Final = 1_000


class SeldomRepeats(logging.Filter):
    """Lets each warning or error of a library pass once in `every_s` seconds, whatever its arguments are.

    aiokafka, for example, reports each failed attempt to reach a broker, about ten in a second. The next line that
    passes contains the number of dropped lines.

    Args:
        now: A clock that is never set back, in seconds. With the wall clock, a warning would be dropped for an hour
            after the clock was set back by an hour.
    """

    def __init__(
        self,
        libraries: Sequence[str],
        *,
        every_s: float = 10.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._libraries = frozenset(libraries)
        self._every_s = every_s
        self._now = now
        self._said: dict[tuple[str, str], tuple[float, int]] = {}

    @property
    def remembered(self) -> int:
        """The number of messages that are remembered."""
        return len(self._said)

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name.partition(".")[0] not in self._libraries or record.levelno < logging.WARNING:
            return True
        now = self._now()
        key = (record.name, str(record.msg))
        said_at, withheld = self._said.get(key, (-math.inf, 0))
        if now - said_at < self._every_s:
            self._said[key] = (said_at, withheld + 1)
            return False
        if len(self._said) >= _MOST_REMEMBERED:
            # Forget old messages: some libraries put their arguments into the text, so new messages come without end.
            self._said = {
                one: (at, number)
                for one, (at, number) in self._said.items()
                if now - at < self._every_s
            }
        self._said[key] = (now, 0)
        if withheld:
            record.msg = f"{record.msg} (and {withheld} times more before)"
        return True


def _renderers(as_json: bool, stream: TextIO, *, is_whole: bool) -> Sequence[Processor]:
    import structlog

    if not as_json and stream.isatty():
        render = TerminalRenderer(stream, is_whole=is_whole)
        # Redact again after rendering, because the text of an exception may contain a secret.
        return [_redact, lambda *line: redact_text(render(*line))]
    # Print tracebacks without local variables, which structlog prints by default: they may contain secrets or messages.
    if not as_json:
        plain = structlog.dev.plain_traceback
        console = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=_redacted(plain))
        return [_redact, console]
    as_dict = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
    return [
        structlog.processors.ExceptionRenderer(as_dict),
        # Redact after the exception was rendered, because its text may contain a secret.
        _redact,
        structlog.processors.JSONRenderer(serializer=_dumps),
    ]


def _redact(_logger: Any, _method: str, line: MutableMapping[str, Any]) -> Mapping[str, Any]:
    """Hide the secrets of a line. The line must not be JSON yet, because JSON escapes some characters of a secret."""
    return {
        key: value if key in _WITHOUT_SECRETS else _shown(key, value) for key, value in line.items()
    }


def _shown(key: str, value: Any) -> Any:
    return redact_text(str(value)) if isinstance(value, BaseException) else redact(key, value)


def _redacted(formatter: Any) -> Any:
    def write(stream: TextIO, exc_info: Any) -> None:
        text = StringIO()
        formatter(text, exc_info)
        stream.write(redact_text(text.getvalue()))

    return write


def _dumps(value: Any, **_: Any) -> str:
    import orjson

    try:
        return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:
        # orjson refuses a file name that is not UTF-8, and a number of more than 64 bits.
        return json.dumps(value, default=str, skipkeys=True)
