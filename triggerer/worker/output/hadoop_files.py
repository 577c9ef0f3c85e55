"""The file systems of Hadoop, for `drafts`. The calls go through the JVM of a classic session."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from triggerer.worker.output.local_files import is_hidden

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CONDITIONAL: Final = "fs.option.create.conditional.overwrite"
"""Hadoop's name for a feature of S3A: an upload fails at its end if an object with the name exists."""
_MOVES_AT_ONCE: Final = 16
"""The number of threads that move files: an object store copies each file, and can make many copies at a time."""


class HadoopFiles:
    """HDFS, an object store, or another file system of the session's Hadoop settings.

    A file is moved by a rename: HDFS renames in one step, and an object store copies the object. In both cases, no
    reader sees a part of a file.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        session: Any = spark
        self._jvm = session._jvm  # noqa: SLF001
        self._gateway = session.sparkContext._gateway  # noqa: SLF001
        self._conf = session._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001
        self._fs = self._path(path).getFileSystem(self._conf)
        self.root: str = self._fs.makeQualified(self._path(path)).toString()
        """The path with its scheme and authority."""

    @property
    def local_root(self) -> str | None:
        """The path on this machine; None: the files are on another file system."""
        return str(self._path(self.root).toUri().getPath()) if self._scheme == "file" else None

    def exists(self, path: str) -> bool:
        return bool(self._fs.exists(self._path(path)))

    def names(self, folder: str) -> list[str]:
        try:
            with _errors_of_python():
                found = self._fs.listStatus(self._path(folder))
        except FileNotFoundError:
            return []
        return sorted(one.getPath().getName() for one in found)

    def visible_below(self, folder: str) -> list[str]:
        root = self._fs.makeQualified(self._path(folder)).toString()
        found = []
        with _errors_of_python():
            listing = self._fs.listFiles(self._path(folder), True)
            while listing.hasNext():
                relative = listing.next().getPath().toString().removeprefix(f"{root}/")
                if not any(map(is_hidden, relative.split("/"))):
                    found.append(relative)
        return sorted(found)

    def read(self, path: str) -> str | None:
        try:
            with _errors_of_python():
                stream = self._fs.open(self._path(path))
                try:
                    return bytes(stream.readAllBytes()).decode()
                finally:
                    stream.close()
        except FileNotFoundError:
            return None

    def create(self, path: str, text: str, *, by_way_of: str) -> None:
        if self._scheme == "gs" or self._fs.hasPathCapability(self._path(path), _CONDITIONAL):
            self._upload_to_new(path, text)
            return
        _write(self._fs.create(self._path(by_way_of), True), text)
        self._fs.mkdirs(self._path(path).getParent())
        self._rename_to_new(by_way_of, path)

    def move_all(self, moves: Sequence[tuple[str, str]]) -> None:
        for folder in {target.rpartition("/")[0] for _, target in moves}:
            self._fs.mkdirs(self._path(folder))
        pool = ThreadPoolExecutor(_MOVES_AT_ONCE, thread_name_prefix="triggerer-moves")
        try:
            list(pool.map(lambda pair: self.move(*pair), moves))
        finally:
            # Do not wait for moves that are under way, because the task's time may be up. The output is committed, so
            # the next write to the folder finishes the moves.
            pool.shutdown(wait=False, cancel_futures=True)

    def move(self, source: str, target: str) -> None:
        from py4j.protocol import Py4JJavaError

        refusal: Exception | None = None
        try:
            if self._fs.rename(self._path(source), self._path(target)):
                return
        except Py4JJavaError as error:
            # If a rename is refused, some file systems return False, and others raise an error.
            refusal = error
        if not self.exists(source):
            # Another try has moved the file.
            return
        if not self.exists(target):
            raise OSError(f"{source} cannot be renamed to {target}") from refusal
        # Another try died between the copy and the deletion.
        self.delete(source)

    def delete(self, path: str) -> None:
        self._fs.delete(self._path(path), True)

    @property
    def _scheme(self) -> str:
        return str(self._path(self.root).toUri().getScheme())

    def _upload_to_new(self, path: str, text: str) -> None:
        """Upload a text as a new object. If the store already has an object of this name, leave that object unchanged.

        The new object becomes visible at the end of the upload.
        """
        from py4j.protocol import Py4JJavaError

        new = self._path(path)
        try:
            if self._scheme == "gs":
                # With `overwrite` false, Google's connector makes the store refuse a name that is in use.
                stream = self._fs.create(new, False)
            else:
                stream = self._fs.createFile(new).recursive().must(_CONDITIONAL, True).build()
            _write(stream, text)
        except Py4JJavaError:
            # If the object exists now, raise nothing. Another writer has created the object, or our request succeeded
            # and its answer was lost. Do not look at the error, because each store raises other errors.
            if not self.exists(path):
                raise

    def _rename_to_new(self, source: str, target: str) -> None:
        """Rename a file unless the target exists.

        HDFS, and Azure with a hierarchical namespace, check and rename in one step. Some other object stores check
        first and copy afterwards.
        """
        from py4j.protocol import Py4JJavaError

        hadoop: Any = self._jvm.org.apache.hadoop.fs
        try:
            context = hadoop.FileContext.getFileContext(self._path(self.root).toUri(), self._conf)
        except Py4JJavaError:
            # Some object stores offer no `FileContext`. Then another try may create the target between check and
            # rename.
            if not self.exists(target):
                self._fs.rename(self._path(source), self._path(target))
            return
        options = self._gateway.new_array(hadoop.Options.Rename, 0)
        try:
            with _errors_of_python():
                context.rename(self._path(source), self._path(target), options)
        except (Py4JJavaError, FileNotFoundError):
            # Another try may have created the target, for which HDFS and Azure raise different errors.
            if not self.exists(target):
                raise

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)


def _write(stream: Any, text: str) -> None:
    stream.write(bytearray(text.encode()))
    # If `write` fails, do not close the stream. `close` ends the upload, and would create an object that has only a
    # part of the text.
    stream.close()


@contextmanager
def _errors_of_python() -> Iterator[None]:
    """Turn Hadoop's error about a missing file into Python's."""
    from py4j.protocol import Py4JJavaError

    try:
        yield
    except Py4JJavaError as error:
        java = error.java_exception
        if java.getClass().getSimpleName() == "FileNotFoundException":
            raise FileNotFoundError(str(java.getMessage())) from error
        raise
