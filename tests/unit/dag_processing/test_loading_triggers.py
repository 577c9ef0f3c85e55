from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from triggerer.errors import DagFileError, PluginError
from triggerer.plugins import install_hint, list_plugins, load_trigger_class, loading
from triggerer.plugins.dag_file import load_dag_file
from triggerer.plugins.trial_import import try_import

TRIGGER = """\
from triggerer.abc import BaseEventTrigger

class Mine(BaseEventTrigger):
    version = {version}
    def serialize(self):
        return f"{{type(self).__module__}}.Mine", {{}}

class Outer:
    class Inner(Mine): ...

number = 3
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    root = tmp_path / "dags"
    root.mkdir()
    path = list(sys.path)
    yield root
    for name, module in list(sys.modules.items()):
        if str(root) in str(getattr(module, "__file__", "")):
            del sys.modules[name]
    sys.path[:] = path


def write(folder: Path, name: str, version: int = 1) -> None:
    file = folder / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(TRIGGER.format(version=version))


@pytest.mark.parametrize("file", ["triggers_here.py", "deep/triggers_here.py", "not-a-name.py"])
def test_a_class_of_the_dags_folder_is_found_by_the_path_that_it_says(
    folder: Path, file: str
) -> None:
    from triggerer.plugins import DagsFolder

    write(folder, file)
    module = DagsFolder(folder).module_name(folder / file)
    found = load_trigger_class(f"{module}.Mine", dags_folder=folder)
    assert found().serialize()[0] == f"{module}.Mine"
    assert load_trigger_class(f"{module}.Outer.Inner", dags_folder=folder).__name__ == "Inner"


@pytest.mark.parametrize("form", ["{0}/../{1}", "{0}/../{1}/", "{0}/./../{1}", "{0}//../{1}/."])
def test_a_file_keeps_its_name_however_its_folder_stands_on_the_path(
    folder: Path, form: str
) -> None:
    from triggerer.plugins import DagsFolder

    write(folder, "mine.py")
    (folder.parent / "plugins").mkdir()
    sys.path.append(form.format(folder.parent / "plugins", folder.name))
    assert DagsFolder(folder).module_name(folder / "mine.py") == "mine"


def test_a_module_may_put_something_else_in_its_place(folder: Path) -> None:
    from triggerer.plugins import DagsFolder

    text = "import sys, types\nsys.modules[__name__] = types.SimpleNamespace(number=4)\n"
    (folder / "other.py").write_text(text)
    (folder / "gone.py").write_text("import sys\ndel sys.modules[__name__]\nraise OSError('no')\n")
    loaded = DagsFolder(folder)
    assert loaded.import_file(folder / "other.py").number == 4
    with pytest.raises(OSError, match="no"):
        loaded.import_file(folder / "gone.py")
    sys.modules.pop("other")


def test_a_class_is_loaded_again_when_its_file_changed_and_only_then(folder: Path) -> None:
    write(folder, "mine.py", 1)
    first = load_trigger_class("mine.Mine", dags_folder=folder)
    assert load_trigger_class("mine.Mine", dags_folder=folder) is first
    write(folder, "mine.py", 2)
    assert load_trigger_class("mine.Mine", dags_folder=folder).version == 2  # type: ignore[attr-defined]


@pytest.mark.rule(
    "17: trigger classes come only from entry points, the DAGs folder and allowed modules"
)
@pytest.mark.parametrize(
    "classpath", ["os.system", "subprocess.Popen", "no_such.Thing", "tests.unit.anything.Mine"]
)
def test_anything_else_may_not_be_loaded(folder: Path, classpath: str) -> None:
    with pytest.raises(PluginError, match="must not be loaded"):
        load_trigger_class(classpath, dags_folder=folder)


@pytest.mark.parametrize("classpath", ["Mine", "", "a..b", "a.b-c", "../x.Mine", "a.b()"])
def test_an_invalid_class_path_is_refused(folder: Path, classpath: str) -> None:
    with pytest.raises(PluginError, match="is not the path of a class"):
        load_trigger_class(classpath, dags_folder=folder)


@pytest.mark.rule(
    "17: trigger classes come only from entry points, the DAGs folder and allowed modules"
)
def test_an_allowed_module_counts_with_what_is_below_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mycompany_x").mkdir()
    (tmp_path / "mycompany_x" / "__init__.py").touch()
    write(tmp_path / "mycompany_x", "triggers.py")
    monkeypatch.syspath_prepend(tmp_path)
    allowed = ["mycompany_x"]
    found = load_trigger_class(
        "mycompany_x.triggers.Outer.Inner", dags_folder=None, allowed_modules=allowed
    )
    assert found.__qualname__ == "Outer.Inner"
    with pytest.raises(PluginError, match="must not be loaded"):
        load_trigger_class("mycompany_x.triggers.Mine", dags_folder=None)
    with pytest.raises(PluginError, match="must not be loaded"):
        load_trigger_class("mycompany_xyz.Mine", dags_folder=None, allowed_modules=allowed)


def test_only_event_triggers_are_loaded(folder: Path) -> None:
    write(folder, "mine.py")
    for name in ("number", "Outer"):
        with pytest.raises(PluginError, match="is not a BaseEventTrigger"):
            load_trigger_class(f"mine.{name}", dags_folder=folder)
    with pytest.raises(PluginError, match="there is no 'Missing'"):
        load_trigger_class("mine.Missing", dags_folder=folder)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import no_such_sdk\n", "No module named 'no_such_sdk'.*install the package"),
        ("raise SystemExit(2)\n", "SystemExit: 2"),
        ("x = (\n", "SyntaxError"),
    ],
)
def test_a_file_that_cannot_be_imported_is_a_plugin_error(
    folder: Path, text: str, reason: str
) -> None:
    (folder / "mine.py").write_text(text)
    with pytest.raises(PluginError, match=reason):
        load_trigger_class("mine.Mine", dags_folder=folder)


def test_a_plugin_whose_sdk_is_missing_is_listed_with_the_reason_and_the_rest_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plugin_without_sdk.py").write_text("import no_such_sdk\n")
    (tmp_path / "plugin_with_sdk.py").write_text("")
    info = tmp_path / "some_plugins-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: some-plugins\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[triggerer.watchers]\nbad = plugin_without_sdk\ngood = plugin_with_sdk\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    loading.plugin_modules.cache_clear()
    try:
        errors = {plugin.name: plugin.error for plugin in list_plugins()}
        assert errors["good"] is None
        assert "no_such_sdk" in str(errors["bad"])
        with pytest.raises(
            PluginError, match="install the package that provides the module no_such_sdk"
        ):
            load_trigger_class("plugin_without_sdk.Mine", dags_folder=None)
    finally:
        loading.plugin_modules.cache_clear()


@pytest.mark.parametrize(
    ("module", "hint"),
    [
        ("aiokafka", "pip install 'triggerer[kafka]'"),
        ("aiokafka.errors", "pip install 'triggerer[kafka]'"),
        ("pyspark.sql", "pip install 'triggerer[spark]'"),
        ("confluent_kafka", "pip install 'triggerer[schema-registry]'"),
        ("boto3", "install the package that provides the module boto3"),
    ],
)
def test_a_missing_module_of_an_extra_is_said_with_the_extra(module: str, hint: str) -> None:
    assert install_hint(ModuleNotFoundError("no module", name=module)) == hint


def test_a_dag_file_that_lacks_the_kafka_client_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [
        name for name in sys.modules if name.startswith(("watchers.kafka", "producers.kafka"))
    ]:
        monkeypatch.delitem(sys.modules, name)
    # With this entry, `import aiokafka` raises ModuleNotFoundError.
    monkeypatch.setitem(sys.modules, "aiokafka", None)
    (tmp_path / "orders.py").write_text("from watchers.kafka import KafkaEventTrigger\n")
    with pytest.raises(DagFileError, match="aiokafka") as raised:
        load_dag_file(tmp_path / "orders.py", tmp_path)
    assert raised.value.hint == "pip install 'triggerer[kafka]'"
    assert raised.value.line == 1


_LOADS = """
import os, sys
from pathlib import Path
import structlog
from triggerer.config import CoreSettings
from triggerer.observability.logging_setup import set_up_logging
from triggerer.plugins import load_trigger_class

set_up_logging(CoreSettings(log_format="json"))
log = structlog.get_logger("triggerer.ours")
log.info("before")
load_trigger_class("rude.Mine", dags_folder=Path(sys.argv[1]))
log.info("after")
# structlog's present configuration applies to a logger that is used for the first time.
structlog.get_logger("triggerer.new").info("new")
print(os.getcwd())
"""
_RUDE = """
import logging.config, os
os.chdir("/")
logging.config.dictConfig({"version": 1, "root": {"level": "ERROR"}})
logging.disable(logging.CRITICAL)
import structlog
structlog.configure(processors=[structlog.processors.KeyValueRenderer()], logger_factory=structlog.PrintLoggerFactory())
"""


def test_changes_of_a_file_to_its_process_do_not_reach_the_service(folder: Path) -> None:
    (folder / "rude.py").write_text(_RUDE + TRIGGER.format(version=1))
    done = subprocess.run(
        [sys.executable, "-c", _LOADS, str(folder)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert [json.loads(line)["event"] for line in done.stderr.splitlines()] == [
        "before",
        "after",
        "new",
    ]
    assert done.stdout == f"{folder}\n"


def test_a_class_is_loaded_where_the_working_directory_is_not_for_this_user(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, "triggers_here.py")
    opened = os.open

    def refuse(path: str, *arguments: int) -> int:
        if path == ".":
            raise PermissionError
        return opened(path, *arguments)

    # Tests may run as root, and root may look into any folder.
    monkeypatch.setattr(os, "open", refuse)
    assert load_trigger_class("triggers_here.Mine", dags_folder=folder).__name__ == "Mine"


@pytest.mark.parametrize(
    ("text", "how"),
    [
        ("import os; os._exit(3)", "exit code 3"),
        ("import os; os.kill(os.getpid(), 9)", "SIGKILL"),
        ("import os; os.kill(os.getppid(), 9)", "SIGKILL"),
        ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
        ("import time; time.sleep(60)", "takes longer than 0.5 s"),
    ],
)
def test_a_file_that_ends_its_process_is_not_imported_by_the_service(
    folder: Path, text: str, how: str
) -> None:
    (folder / "mine.py").write_text(text)
    patience = timedelta(seconds=0.5 if "sleep" in text else 20)
    with pytest.raises(PluginError, match=how):
        load_trigger_class(
            "mine.Mine", dags_folder=folder, try_first=partial(try_import, patience=patience)
        )


def test_a_file_is_tried_when_it_is_to_be_imported_and_what_it_raises_is_shown(
    folder: Path,
) -> None:
    tried: list[Path] = []

    def load() -> object:
        return load_trigger_class(
            "mine.Mine", dags_folder=folder, try_first=lambda _, file: tried.append(file)
        )

    write(folder, "mine.py")
    assert load() is load()
    assert tried == [folder / "mine.py"]
    (folder / "mine.py").write_text("raise ValueError('not today')")
    (folder / "other.py").write_text("")
    with pytest.raises(PluginError, match="not today"):
        load_trigger_class(
            "mine.Mine",
            dags_folder=folder,
            try_first=partial(try_import, patience=timedelta(seconds=20)),
        )


def test_a_file_that_cannot_be_tried_for_want_of_descriptors_is_not_imported(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> tuple[int, int]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    write(folder, "mine.py")
    monkeypatch.setattr(os, "pipe", refuse)
    with pytest.raises(PluginError, match="cannot be tried now: Too many open files"):
        load_trigger_class(
            "mine.Mine",
            dags_folder=folder,
            try_first=partial(try_import, patience=timedelta(seconds=20)),
        )
