# ruff: noqa: E501  (each is one line of a task)
"""Things that a run may leave behind. Each has code that leaves it, and code that looks for it in a later run."""

from typing import Final, NamedTuple


class Leftover(NamedTuple):
    """Two function bodies: `leave` leaves something behind, and `look` returns what a later run finds of it, as text.

    The functions have the parameter `params`, and in a run with Spark also `spark`.
    """

    leave: str
    look: str


IN_A_PROCESS: Final = {
    "environment": Leftover("os.environ['LEFT'] = 'x'", "return str(os.environ.get('LEFT'))"),
    "working directory": Leftover("os.chdir('/usr')", "return os.getcwd()"),
    "umask": Leftover("os.umask(0o077)", "old = os.umask(0); os.umask(old); return oct(old)"),
    "time zone": Leftover(
        "os.environ['TZ'] = 'Asia/Tokyo'; time.tzset()", "return str(time.localtime(0).tm_hour)"
    ),
    "modules": Leftover(
        "import types; sys.modules['left'] = types.ModuleType('left')",
        "return str('left' in sys.modules)",
    ),
    "a changed module": Leftover(
        "import json; json.left = 1", "import json; return str(hasattr(json, 'left'))"
    ),
    "sys.path": Leftover("sys.path.append('/left')", "return str('/left' in sys.path)"),
    "logging": Leftover(
        "import logging; logging.getLogger().setLevel(1); logging.getLogger('x').disabled = True",
        "import logging; return f\"{logging.getLogger().level} {logging.getLogger('x').disabled}\"",
    ),
    "warnings": Leftover(
        "import warnings; warnings.simplefilter('error')",
        "import warnings; return str(len(warnings.filters))",
    ),
    "threads": Leftover(
        "import threading; threading.Thread(target=time.sleep, args=(99,), name='left').start()",
        "import threading; return str(any(t.name == 'left' for t in threading.enumerate()))",
    ),
    "signal handlers": Leftover(
        "signal.signal(signal.SIGUSR1, signal.SIG_IGN); signal.signal(signal.SIGINT, signal.SIG_IGN)",
        "return str([signal.getsignal(one) is signal.SIG_IGN for one in (signal.SIGUSR1, signal.SIGINT)])",
    ),
    "limits": Leftover(
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (100, 200))",
        "import resource; return str(resource.getrlimit(resource.RLIMIT_NOFILE))",
    ),
    "niceness": Leftover("os.nice(3)", "return str(os.nice(0))"),
    "descriptors": Leftover(
        "[os.set_inheritable(os.open('/dev/null', os.O_RDONLY), True) for _ in range(5)]",
        "return str(len([n for n in os.listdir('/proc/self/fd') if os.path.realpath(f'/proc/self/fd/{n}') == '/dev/null']))",
    ),
    "streams": Leftover(
        "sys.stdout = None; os.close(0)",
        "return f'{sys.stdout is None} {os.path.exists(\"/proc/self/fd/0\")}'",
    ),
    "temporary files": Leftover(
        "import tempfile; Path(params['note']).write_text(tempfile.mkstemp()[1])",
        "note = Path(params['note']); return str(note.exists() and Path(note.read_text()).exists())",
    ),
}
"""Things that a run without Spark can leave too. Processes have a test of their own."""

IN_A_SESSION: Final = {
    "session settings": Leftover(
        "spark.conf.set('spark.sql.session.timeZone', 'Asia/Tokyo')",
        "return spark.sql(\"select hour(timestamp '2026-01-01 00:00:00Z')\").first()[0].__str__()",
    ),
    "views": Leftover(
        "spark.range(1).createOrReplaceTempView('left_view')",
        "return str([t.name for t in spark.catalog.listTables()])",
    ),
    "global views": Leftover(
        "spark.range(1).createOrReplaceGlobalTempView('left_view')",
        "return str([t.name for t in spark.catalog.listTables('global_temp')])",
    ),
    "functions": Leftover(
        "spark.udf.register('left_function', lambda x: x)",
        "return str(spark.catalog.functionExists('left_function'))",
    ),
    "current database": Leftover(
        "spark.sql('create database if not exists left_db'); spark.catalog.setCurrentDatabase('left_db')",
        "return spark.catalog.currentDatabase()",
    ),
    "a variable of SQL": Leftover(
        "spark.sql('declare or replace variable left_one int default 5')",
        "try: return str(spark.sql('select left_one').first()[0])\nexcept Exception: return 'none'",
    ),
    "functions' processes": Leftover(
        "from pyspark.sql.functions import udf\n"
        "def leave(n):\n    import os, json; os.environ['LEFT_IN_WORKER'] = 'x'; json.left = 1; return n\n"
        "spark.range(8).select(udf(leave, 'long')('id')).collect()",
        "from pyspark.sql.functions import udf\n"
        "def look(n):\n    import os, json; return f\"{os.environ.get('LEFT_IN_WORKER')} {hasattr(json, 'left')}\"\n"
        "return str(sorted({row[0] for row in spark.range(8).select(udf(look, 'string')('id')).collect()}))",
    ),
}

IN_A_DRIVER: Final = {
    "cached frames": Leftover(
        "spark.range(5).cache().count(); spark.sparkContext.parallelize([1]).cache().count()",
        "return f'{spark.sparkContext._jsc.sc().getPersistentRDDs().size()} {spark._jsparkSession.sharedState().cacheManager().isEmpty()}'",
    ),
    "job group and local properties": Leftover(
        "spark.sparkContext.setJobGroup('left', 'left'); spark.sparkContext.setLocalProperty('left', 'x'); spark.sparkContext.addJobTag('left')",
        "sc = spark.sparkContext; return f\"{sc.getLocalProperty('spark.jobGroup.id')} {sc.getLocalProperty('left')} {sc.getJobTags()}\"",
    ),
    "log level": Leftover(
        "spark.sparkContext.setLogLevel('OFF')",
        "return str(getattr(spark._jvm, 'org.apache.spark.util.Utils').getLogLevel())",
    ),
    "Hadoop's settings": Leftover(
        "spark.sparkContext._jsc.hadoopConfiguration().set('fs.left.key', 'secret')",
        "return str(spark.sparkContext._jsc.hadoopConfiguration().get('fs.left.key'))",
    ),
    "Java's properties": Leftover(
        "spark._jvm.java.lang.System.setProperty('left', 'x')",
        "return str(spark._jvm.java.lang.System.getProperty('left'))",
    ),
    "listeners": Leftover(
        "from pyspark.sql.streaming import StreamingQueryListener\n"
        "class Left(StreamingQueryListener):\n"
        "    def onQueryStarted(self, event): pass\n"
        "    def onQueryProgress(self, event): pass\n"
        "    def onQueryIdle(self, event): pass\n"
        "    def onQueryTerminated(self, event): pass\n"
        "spark.streams.addListener(Left())",
        "return str(spark.sparkContext._jsc.sc().listenerBus().listeners().size())",
    ),
    "streaming queries": Leftover(
        "spark.readStream.format('rate').load().writeStream.format('memory').queryName('left_query').start()",
        "return str(spark._jsparkSession.sharedState().activeStreamingQueries().size())",
    ),
    "added files": Leftover(
        "Path(params['note'] + '.py').write_text('x = 1'); spark.sparkContext.addPyFile(params['note'] + '.py')",
        "from pyspark import SparkFiles\n"
        'return f"{spark.sparkContext._jsc.sc().listFiles()} {os.listdir(SparkFiles.getRootDirectory())} {len(sys.path)}"',
    ),
    "checkpoint folder": Leftover(
        "spark.sparkContext.setCheckpointDir(params['note'] + '.checkpoints')",
        "return str(spark.sparkContext.getCheckpointDir())",
    ),
    "Java objects": Leftover(
        "kept = [spark._jvm.java.util.ArrayList() for _ in range(500)]; os.environ['x'] = str(len(kept))",
        "from py4j.java_gateway import JavaObject\n"
        "bindings = JavaObject('GATEWAY_SERVER', spark.sparkContext._gateway._gateway_client).getGateway().getBindings()\n"
        "return str(bindings.size() > 450)",
    ),
}
"""Things that a later run can find only if both runs share a JVM of ours."""


def source_of(dag_id: str, leftovers: dict[str, Leftover], *, spark: bool) -> str:
    """Return a DAG file with one task, which calls `leave` or `look` of all leftovers, as `params["what"]` says.

    After `look`, the task writes the returned texts to `params["out"]`, as JSON.
    """
    arguments = "spark, params" if spark else "params"
    lines = []
    for number, one in enumerate(leftovers.values()):
        for kind, body in (("leave", one.leave), ("look", one.look)):
            lines.append(f"def {kind}_{number}({arguments}):")
            lines += [f"    {line}" for line in body.splitlines()]
    calls = (
        f"{{name: globals()[f'look_{{number}}']({arguments}) for number, name in enumerate(NAMES)}}"
    )
    lines += [
        f"NAMES = {list(leftovers)!r}",
        f"with DAG({dag_id!r}):",
        "    @task",
        f"    def t({arguments}):",
        "        import json as format",
        "        if params['what'] == 'look':",
        f"            seen = {calls}",
        "            Path(params['out']).write_text(format.dumps(seen))",
        "        else:",
        "            for number, name in enumerate(NAMES):",
        f"                globals()[f'leave_{{number}}']({arguments})",
        "    t()",
    ]
    return "\n".join(lines)
