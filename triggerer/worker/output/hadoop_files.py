"""The file systems of Hadoop, for `drafts`. The calls go through the JVM of a classic session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from triggerer.worker.output.local_files import is_hidden

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class HadoopFiles:
    """HDFS, an object store, or another file system of the session's Hadoop settings.

    A move is a rename. HDFS renames in one step. An object store copies each object, and shows a copy once it is whole.
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
        """The path on this machine. None: the path is on another file system."""
        uri = self._path(self.root).toUri()
        return str(uri.getPath()) if uri.getScheme() == "file" else None

    def exists(self, path: str) -> bool:
        return bool(self._fs.exists(self._path(path)))

    def names(self, folder: str) -> list[str]:
        if not self.exists(folder):
            return []
        return sorted(one.getPath().getName() for one in self._fs.listStatus(self._path(folder)))

    def visible_below(self, folder: str) -> list[str]:
        root = self._fs.makeQualified(self._path(folder)).toString()
        found = []
        listing = self._fs.listFiles(self._path(folder), True)
        while listing.hasNext():
            relative = listing.next().getPath().toString().removeprefix(f"{root}/")
            if not any(map(is_hidden, relative.split("/"))):
                found.append(relative)
        return sorted(found)

    def read(self, path: str) -> str | None:
        if not self.exists(path):
            return None
        stream = self._fs.open(self._path(path))
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def create(self, path: str, text: str, *, by_way_of: str) -> bool:
        if self.exists(path):
            return False
        stream = self._fs.create(self._path(by_way_of), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        self._fs.mkdirs(self._path(path).getParent())
        return self._rename_to_new(by_way_of, path)

    def move(self, source: str, target: str) -> None:
        from py4j.protocol import Py4JJavaError

        if not self.exists(source):
            return
        if self.exists(target):
            # An earlier move in an object store was interrupted after the copy, before the deletion.
            self.delete(source)
            return
        self._fs.mkdirs(self._path(target).getParent())
        try:
            renamed = self._fs.rename(self._path(source), self._path(target))
        except Py4JJavaError:
            # Another try may have moved the file meanwhile. Some file systems then answer False, others raise.
            if self.exists(source):
                raise
            return
        if not renamed and self.exists(source):
            raise OSError(f"{source} cannot be renamed to {target}")

    def delete(self, path: str) -> None:
        self._fs.delete(self._path(path), True)

    def _rename_to_new(self, source: str, target: str) -> bool:
        """Rename a file unless the target exists. Check and rename are one step on HDFS, but not everywhere."""
        from py4j.protocol import Py4JJavaError

        hadoop: Any = self._jvm.org.apache.hadoop.fs
        try:
            context = hadoop.FileContext.getFileContext(self._path(self.root).toUri(), self._conf)
        except Py4JJavaError:
            # Some object stores lack this class. The target may have appeared after the check for it.
            return bool(self._fs.rename(self._path(source), self._path(target)))
        options = self._gateway.new_array(hadoop.Options.Rename, 0)
        try:
            context.rename(self._path(source), self._path(target), options)
        except Py4JJavaError as error:
            if error.java_exception.getClass().getSimpleName() == "FileAlreadyExistsException":
                return False
            raise
        return True

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)
