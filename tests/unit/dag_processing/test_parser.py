"""The parser's real process, with files that fail, hang or start processes."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from tests.services.process import lives
from triggerer.dag_processing import ParsedFolder, parse_once
from triggerer.dag_processing.parser_process import ParserSettings
from triggerer.dag_processing.parsers import Parsers
from triggerer.domain.dag_files.parsed import Problem

HEADER = """\
from triggerer import DAG, Asset, AssetWatcher, BaseEventTrigger, task
class Mine(BaseEventTrigger):
    def __init__(self, n=1): self.n = n
    def serialize(self): return f"{type(self).__module__}.Mine", {"n": self.n}
    def shared_stream_key(self): return ("mine", self.n % 2)
"""
LINES = HEADER.count("\n")


async def parse(folder: Path, **files: str) -> ParsedFolder:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return await parse_once(folder, file_timeout=timedelta(seconds=5))


async def only_error(folder: Path, text: str) -> Problem:
    parsed = await parse(folder, bad=text, good="from triggerer import DAG\nd = DAG('good')\n")
    assert list(parsed.folder.dags) == ["good"]
    (error,) = parsed.errors
    assert error.file == "bad.py"
    return error


async def test_an_empty_folder_defines_nothing(tmp_path: Path) -> None:
    parsed = await parse_once(tmp_path)
    assert (parsed.files, parsed.errors, parsed.folder.dags) == ((), (), {})


async def test_a_file_prints_what_the_locale_has_no_characters_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    parsed = await parse(tmp_path, a="print(chr(0x2713))\n")
    assert parsed.errors == ()


async def test_a_dag_and_its_tasks_arrive_as_values(tmp_path: Path) -> None:
    parsed = await parse(
        tmp_path,
        a=HEADER
        + """
x = Asset("x")
with DAG("d", schedule=x, tags=["t"], params={"p": 1}, is_paused_upon_creation=True):
    @task
    def one(): ...
    @task(outlets=Asset("y"), inlets=x)
    def two(value, spark): ...
    two(one())
""",
    )
    assert parsed.errors == ()
    dag, path = parsed.folder.dags["d"]
    assert (path, dag.location) == ("a.py", f"a.py:{LINES + 3}")
    assert dag.schedule == {"asset": {"name": "x", "uri": "x"}}
    assert (dag.tags, dag.params, dag.is_paused_upon_creation) == (["t"], {"p": 1}, True)
    assert dag.tasks == [
        {"task_id": "one", "upstream": [], "outlets": [], "inlets": [], "needs_spark": False},
        {
            "task_id": "two",
            "upstream": ["one"],
            "outlets": [{"asset": {"name": "y", "uri": "y"}}],
            "inlets": [{"asset": {"name": "x", "uri": "x"}}],
            "needs_spark": True,
        },
    ]
    assert {key.name for key in parsed.folder.assets} == {"x", "y"}


async def test_hours_that_share_a_partition_key_are_a_warning_at_the_line_of_the_dag(
    tmp_path: Path,
) -> None:
    parsed = await parse(
        tmp_path,
        a="""
from triggerer import DAG
from triggerer.timetables import CronPartitionTimetable
hourly = CronPartitionTimetable("@hourly", timezone="Europe/Berlin", key_format="%Y-%m-%dT%H")
with DAG("fine", schedule="@hourly"): pass
with DAG("doubtful", schedule=hourly): pass
""",
    )
    assert parsed.errors == ()
    assert set(parsed.folder.dags) == {"fine", "doubtful"}
    (warning,) = parsed.warnings
    assert (warning.file, warning.line) == ("a.py", 6)
    assert "DAG 'doubtful': when clocks are set back in Europe/Berlin" in warning.reason


async def test_a_dag_that_catches_up_from_nowhere_is_a_warning(tmp_path: Path) -> None:
    parsed = await parse(
        tmp_path,
        a="""
from datetime import datetime
from triggerer import DAG
from triggerer.timetables import CronDataIntervalTimetable, CronTriggerTimetable
daily = CronDataIntervalTimetable("@daily", timezone="UTC")
ticks = CronTriggerTimetable("@daily", timezone="UTC")
with DAG("silent", schedule=daily, catchup=True): pass
with DAG("begun", schedule=daily, catchup=True, start_date=datetime(2026, 1, 1)): pass
with DAG("ahead", schedule=daily): pass
with DAG("ticks", schedule=ticks, catchup=True): pass
with DAG("over", schedule=ticks, catchup=True, end_date=datetime(2020, 1, 1)): pass
""",
    )
    assert parsed.errors == ()
    (warning,) = parsed.warnings
    assert (warning.file, warning.line) == ("a.py", 7)
    assert warning.reason.startswith(
        "DAG 'silent': with catchup=True its timetable asks for no run"
    )


async def test_a_timetable_that_raises_is_a_warning(tmp_path: Path) -> None:
    parsed = await parse(
        tmp_path,
        a="""
from datetime import datetime, timedelta
from triggerer import DAG
from triggerer.timetables import DeltaDataIntervalTimetable
weekly = DeltaDataIntervalTimetable(timedelta(weeks=1))
with DAG("d", schedule=weekly, start_date=datetime(9999, 12, 31)): pass
""",
    )
    assert parsed.errors == ()
    (warning,) = parsed.warnings
    assert (warning.file, warning.line) == ("a.py", 6)
    assert warning.reason.startswith("DAG 'd': its timetable could not be checked: OverflowError(")


async def test_a_roll_up_that_never_runs_is_a_warning(tmp_path: Path) -> None:
    parsed = await parse(
        tmp_path,
        a="""
from triggerer import DAG, Asset
from triggerer.partitions import QuarterWindow, RollupMapper, StartOfDayMapper
from triggerer.timetables import PartitionedAssetTimetable
never = RollupMapper(upstream_mapper=StartOfDayMapper(), window=QuarterWindow())
schedule = PartitionedAssetTimetable(assets=Asset("x"), default_partition_mapper=never)
with DAG("d", schedule=schedule): pass
""",
    )
    assert parsed.errors == ()
    (warning,) = parsed.warnings
    assert (warning.file, warning.line) == ("a.py", 7)
    assert warning.reason.startswith("DAG 'd': the run of the partition key ")


async def test_an_end_before_the_start_is_an_error_with_its_line(tmp_path: Path) -> None:
    error = await only_error(
        tmp_path,
        """
from datetime import datetime
from triggerer import DAG
with DAG("d", schedule="@daily", start_date=datetime(2026, 1, 2), end_date=datetime(2026, 1, 1)):
    pass
""",
    )
    assert error.line == 4
    assert "lies before start_date" in error.reason


async def test_a_class_that_a_dag_file_defines_can_drive_watchers(tmp_path: Path) -> None:
    parsed = await parse(
        tmp_path,
        mine=HEADER
        + 'a = Asset("a", watchers=[AssetWatcher("w", Mine(1)), AssetWatcher("v", Mine(3))])\n',
    )
    assert parsed.errors == ()
    one, other = (watcher for watcher, _ in parsed.folder.watchers.values())
    assert (one.classpath, one.kwargs, one.stream_key) == ("mine.Mine", {"n": 1}, "mine 1")
    assert one.trigger_digest != other.trigger_digest
    assert one.stream_digest == other.stream_digest


async def test_watchers_with_a_bookmark_share_no_trigger_and_keep_their_stream(
    tmp_path: Path,
) -> None:
    text = """
from triggerer import Asset, AssetWatcher, BaseEventTrigger, TriggerEvent
class Reads(BaseEventTrigger):
    def __init__(self, n):
        self.n = n
    def serialize(self):
        return "ranges.Reads", {"n": self.n}
    async def run_from(self, bookmark):
        yield [TriggerEvent({})], 1
a = Asset("a", watchers=[AssetWatcher("w", Reads(1)), AssetWatcher("v", Reads(1))])
"""
    before = await parse(tmp_path, ranges=text)
    after = await parse(tmp_path, ranges=text.replace('"w", Reads(1)', '"w", Reads(2)'))
    assert (before.errors, after.errors) == ((), ())
    w, v = (watcher for watcher, _ in before.folder.watchers.values())
    changed, same = (watcher for watcher, _ in after.folder.watchers.values())
    assert w.trigger_digest != v.trigger_digest
    assert w.stream_digest != v.stream_digest
    assert changed.trigger_digest != w.trigger_digest
    assert changed.stream_digest == w.stream_digest
    assert same == v


NAMED_READS = """
from triggerer import Asset, AssetWatcher, BaseEventTrigger
class Reads(BaseEventTrigger):
    def __init__(self, name): self.name = name
    def serialize(self): return "reads.Reads", {"name": self.name}
    async def run_from(self, bookmark): yield [], 1
    def describe_stream(self): return self.name
"""


async def test_the_name_of_a_stream_with_a_bookmark_is_one_short_line(tmp_path: Path) -> None:
    watchers = """
a = Asset("a", watchers=[
    AssetWatcher("lines", Reads("two\\nlines")),
    AssetWatcher("long", Reads("x" * 1000)),
    AssetWatcher("blank", Reads(" \\n")),
])
"""
    parsed = await parse(tmp_path, reads=NAMED_READS + watchers)
    assert parsed.errors == ()
    lines, long, blank = (watcher.stream_key for watcher, _ in parsed.folder.watchers.values())
    assert (lines, len(long), blank) == ("two lines", 200, "reads.Reads")


async def test_a_stream_with_a_bookmark_whose_name_is_no_text_breaks_only_its_watcher(
    tmp_path: Path,
) -> None:
    watchers = (
        'a = Asset("a", watchers=[AssetWatcher("w", Reads("ok")), AssetWatcher("v", Reads(5))])\n'
    )
    parsed = await parse(tmp_path, reads=NAMED_READS + watchers)
    (error,) = parsed.errors
    assert error.reason == (
        "watcher 'v' of asset 'a': describe_stream() must return a text or None, not 5"
    )
    ((watcher, _),) = parsed.folder.watchers.values()
    assert watcher.name == "w"


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("x = (\n", 1, "never closed"),
        ("import sys\nsys.exit('enough')\n", 2, "sys.exit('enough')"),
        ("import os\nos._exit(7)\n", None, "exit code 7"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n", None, "SIGKILL"),
        ("import ctypes\n\nctypes.string_at(0)\n", 3, "SIGSEGV"),
        ("def f():\n    f()\nf()\n", 2, "RecursionError"),
        ("from triggerer import Asset\nAsset('s3:///key')\n", 2, "names no bucket"),
        ("from triggerer import DAG\nd = DAG('d', description='\\0')\n", None, "NUL character"),
        ("from triggerer import DAG\nd = DAG('d', params={'n': 1 << 70})\n", None, "64 bits"),
        ("\nraise KeyboardInterrupt\n", 2, "KeyboardInterrupt"),
        ("import asyncio\nraise asyncio.CancelledError('late')\n", 2, "CancelledError: late"),
        # Python decodes a file name that is not UTF-8 to such a text.
        ("open(b'/caf\\xe9'.decode('utf-8', 'surrogateescape'))\n", 1, "/caf\\udce9"),
        ("raise ValueError('\\0')\n", 1, "ValueError: \\x00"),
        ("class E(Exception):\n    def __str__(self): 1 / 0\nraise E\n", 3, "ZeroDivisionError"),
        ("x = 1 # \0\n", None, "syntax error: source code string cannot contain null bytes"),
    ],
)
async def test_a_bad_file_is_named_and_harms_no_other(
    tmp_path: Path, text: str, line: int | None, reason: str
) -> None:
    error = await only_error(tmp_path, text)
    assert reason in error.reason
    assert error.line == line


async def test_a_long_error_is_cut(tmp_path: Path) -> None:
    error = await only_error(tmp_path, "raise ValueError('x=' + 'e' * 50_000_000)\n")
    assert error.reason.startswith("ValueError: x=eee")
    assert len(error.reason) <= 10_000


async def test_an_endless_loop_is_stopped_and_its_line_is_shown(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("import time\nwhile True:\n    time.sleep(1)\n")
    parsed = await parse_once(tmp_path, file_timeout=timedelta(seconds=1))
    (error,) = parsed.errors
    assert error.reason == "it was stopped: importing it took longer than 1 s"
    assert error.line == 3


async def test_processes_that_a_file_started_end_with_it(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    await parse(
        tmp_path,
        a="import subprocess\n"
        "child = subprocess.Popen(['sleep', '60'])\n"
        f"open({str(pid_file)!r}, 'w').write(str(child.pid))\n",
    )
    child = int(pid_file.read_text())
    assert not lives(child)


async def test_no_file_sees_anothers_modules(tmp_path: Path) -> None:
    parsed = await parse(
        tmp_path,
        a="import sys\nsys.modules['planted'] = sys\n",
        b="from triggerer import DAG\nimport sys\nd = DAG('planted' in sys.modules and 'x' or 'y')\n",
    )
    assert list(parsed.folder.dags) == ["y"]


@pytest.mark.rule("11: a trigger whose `serialize` raises harms no other trigger")
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("raise ValueError('no')", "ValueError: no"),
        ("return 3", "must return a class path and a dict, not 3"),
        ("return 'mine.Other', {}", "there is no 'Other'"),
        ("return 'os.path', {}", "must not be loaded"),
        ("return 'mine.Bad', {'unknown': 1}", "TypeError"),
        ("return 'mine.Bad', {'x': object()}", "cannot be written as JSON"),
        ("return 'mine.Bad', {'x': '\\0'}", "NUL character"),
        ("import random; return 'mine.Bad', {'x': random.random()}", "two different things"),
    ],
)
async def test_a_bad_watcher_is_named_and_the_rest_of_its_file_stands(
    tmp_path: Path, body: str, reason: str
) -> None:
    parsed = await parse(
        tmp_path,
        mine=HEADER
        + f"""
class Bad(Mine):
    def __init__(self, x=None): self.n = 0
    def serialize(self):
        {body}
a = Asset("a", watchers=[AssetWatcher("bad", Bad()), AssetWatcher("good", Mine())])
d = DAG("d", schedule=a)
""",
    )
    (error,) = parsed.errors
    assert "watcher 'bad' of asset 'a': " in error.reason
    assert reason in error.reason
    assert error.line == LINES + 6
    assert [key.name for key in parsed.folder.watchers] == ["good"]
    assert [key.name for key in parsed.folder.broken_watchers] == ["bad"]
    assert list(parsed.folder.dags) == ["d"]


async def test_a_watcher_that_commands_would_not_find_is_a_warning(tmp_path: Path) -> None:
    parsed = await parse(
        tmp_path,
        mine=HEADER
        + """
a = Asset("a", watchers=[AssetWatcher("eu/west", Mine()), AssetWatcher("us", Mine())])
b = a
""",
    )
    (warning,) = parsed.warnings
    assert "watcher 'eu/west' of asset 'a': commands that take ASSET/NAME split" in warning.reason
    assert [key.name for key in parsed.folder.watchers] == ["eu/west", "us"]


async def test_a_key_that_cannot_be_hashed_is_an_error_of_its_watcher(
    tmp_path: Path,
) -> None:
    parsed = await parse(
        tmp_path,
        mine=HEADER
        + """
class Listy(Mine):
    def serialize(self): return "mine.Listy", {}
    def shared_stream_key(self): return ["a"]
a = Asset("a", watchers=[AssetWatcher("bad", Listy())])
""",
    )
    (error,) = parsed.errors
    assert "a stream key must be hashable, and ['a'] is not" in error.reason


async def test_contradictions_between_files_name_both_places(tmp_path: Path) -> None:
    parsed = await parse(
        tmp_path,
        a="from triggerer import DAG, Asset\nd = DAG('d')\nx = Asset('n', uri='u')\n",
        b="from triggerer import DAG\nd = DAG('d')\n",
        c="from triggerer import Asset\n\nx = Asset('m', uri='u')\n",
    )
    by_file = {error.file: error for error in parsed.errors}
    assert by_file["b.py"] == Problem("b.py", 2, "DAG 'd' is also defined at a.py:2")
    assert by_file["c.py"].line == 3
    assert "c.py:3 contradicts asset 'n' (u) at a.py:3" in by_file["c.py"].reason


async def test_the_idle_parser_is_small(tmp_path: Path) -> None:
    import anyio

    parser = Parsers(ParserSettings(tmp_path), lambda _: None)
    async with anyio.create_task_group() as tasks:
        await tasks.start(parser.run)
        assert parser.pid is not None
        private = psutil.Process(parser.pid).memory_full_info().uss
        tasks.cancel_scope.cancel()
    assert private < 25_000_000


# A file whose code writes to every open descriptor above its standard streams.
WRITES = """
import os
def write_everywhere(data):
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            try:
                os.set_blocking(int(name), False)
                os.write(int(name), data)
            except OSError:
                pass
"""


@pytest.mark.parametrize(
    ("wrote", "says"),
    [
        ("write_everywhere(b'garbage' * 10)", "cannot be understood"),
        ("write_everywhere(b'[1]'); os._exit(0)", "cannot be understood"),
        (
            'write_everywhere(b\'{"path": "bad.py", "parse_seconds": 0, "dags": 3}\'); os._exit(0)',
            "cannot be understood",
        ),
        (
            'write_everywhere(b\'{"path": "good.py", "parse_seconds": 0}\'); os._exit(0)',
            "describes another file",
        ),
        ("write_everywhere(bytes(4) + b'x')", "cannot be understood"),
    ],
)
async def test_writing_to_our_descriptors_costs_only_the_file_that_does_it(
    tmp_path: Path, wrote: str, says: str
) -> None:
    error = await only_error(tmp_path, WRITES + wrote)
    assert says in error.reason


@pytest.mark.full
async def test_a_file_cannot_make_the_parser_keep_without_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = """
import os
while True:
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            try:
                os.write(int(name), b"[" * 65536)
            except OSError:
                pass
"""
    error = await only_error(tmp_path, endless)
    assert "took longer" in error.reason


async def test_a_malformed_template_is_an_error_of_its_file(tmp_path: Path) -> None:
    error = await only_error(
        tmp_path,
        HEADER
        + """
with DAG("d"):
    @task(templated="sql")
    def query(sql): ...
    query("SELECT {{ 1")
""",
    )
    assert error.line == LINES + 5
    assert error.reason.startswith("argument 'sql' of task 'query' of DAG 'd', line 1: ")


async def test_an_asset_function_arrives_as_a_dag_with_its_asset(tmp_path: Path) -> None:
    parsed = await parse(
        tmp_path,
        a="""
from triggerer import Asset, asset

@asset(schedule=Asset("x-source"), uri="x-made://it")
def made(self, other): ...
""",
    )
    assert parsed.errors == ()
    dag, path = parsed.folder.dags["made"]
    assert (path, dag.location) == ("a.py", "a.py:4")
    (one,) = dag.tasks
    assert one["outlets"] == [{"asset": {"name": "made", "uri": "x-made://it"}}]
    assert one["inlets"] == [{"name": "other"}]
    assert {asset.name for asset in parsed.files[0].assets} == {"made", "x-source"}
