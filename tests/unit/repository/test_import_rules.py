"""Which way imports point, as far as import-linter's contracts in pyproject.toml cannot say it."""

import sys
from functools import cache
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[3]
OURS = ("triggerer", "producers", "watchers")

# Libraries that compute and do nothing else: no clock, no file, no socket, no task.
PURE = {"croniter", "orjson"}
# Modules of the standard library that reach the running clock, other tasks or the outside.
IMPURE_STDLIB = {
    "asyncio", "concurrent", "http", "logging", "multiprocessing", "os", "pathlib", "queue", "selectors",
    "shutil", "socket", "sqlite3", "subprocess", "tempfile", "threading", "time",
}  # fmt: skip
# The only modules that may import one another in a circle. Imports for types count too.
CIRCLES = {
    frozenset(
        {"triggerer.domain.authoring.arguments", "triggerer.domain.dags", "triggerer.domain.tasks"}
    ),
    frozenset({"triggerer.domain.assets", "triggerer.domain.conditions"}),
}
# The packages that a plugin may use besides its broker's client library.
# asgiref comes with Airflow, and Airflow's hooks need it. Google's client libraries use grpc. aiobotocore raises the
# errors of botocore.
COMMON = {"anyio", "asgiref", "botocore", "grpc", "orjson", "pydantic", "pydantic_core"}


@cache
def graph() -> grimp.ImportGraph:
    # No cache: grimp's cache compares modification times, and has returned imports that were already removed.
    return grimp.build_graph(*OURS, include_external_packages=True, cache_dir=None)


def imports_of(package: str) -> dict[str, set[str]]:
    """Return, by module of the package, the top-level names that the module imports from outside our packages."""
    modules = {package, *graph().find_descendants(package)}
    return {
        module: {
            name
            for name in graph().find_modules_directly_imported_by(module)
            if name.split(".")[0] not in OURS
        }
        for module in modules
    }


def test_every_folder_of_modules_is_a_package() -> None:
    """A folder without an __init__.py would escape all rules, these and import-linter's."""
    data = {"triggerer/demo/dags", "triggerer/store/schema/migrations/versions"}  # loaded by path
    folders = {path.parent for package in OURS for path in (ROOT / package).rglob("*.py")}
    missing = {
        str(folder.relative_to(ROOT)) for folder in folders if not (folder / "__init__.py").exists()
    }
    assert missing - data == set()


@pytest.mark.parametrize("package", ["triggerer.domain", "triggerer.errors"])
def test_the_domain_and_the_errors_compute_and_do_nothing_else(package: str) -> None:
    for module, names in imports_of(package).items():
        foreign = names - set(sys.stdlib_module_names) - PURE
        assert foreign == set(), f"{module} imports {foreign}: pure libraries only, see PURE"
        assert names & IMPURE_STDLIB == set(), f"{module} reaches outside"


@pytest.mark.parametrize("package", ["producers", "watchers"])
def test_a_plugin_sees_the_client_library_of_one_broker(package: str) -> None:
    """A missing client library then disables one broker and never the process."""
    for plugin in graph().find_children(package):
        libraries = set().union(*imports_of(plugin).values())
        libraries -= set(sys.stdlib_module_names) | COMMON
        assert len(libraries) <= 1, f"{plugin} imports {sorted(libraries)}"


@pytest.mark.parametrize("package", ["producers", "watchers"])
def test_a_plugin_package_loads_no_plugin(package: str) -> None:
    """Importing one plugin imports no other plugin: the packages themselves import nothing."""
    assert graph().find_modules_directly_imported_by(package) == set()


def test_producers_share_nothing() -> None:
    """One broker's producer imports no other's."""
    for producer in graph().find_children("producers"):
        for module in {producer, *graph().find_descendants(producer)}:
            for imported in graph().find_modules_directly_imported_by(module):
                if imported.startswith("producers."):
                    assert imported.split(".")[1] == producer.split(".")[1], (
                        f"{module} -> {imported}"
                    )


def circles_of(imports: dict[str, set[str]]) -> set[frozenset[str]]:
    """The strongly connected components of more than one module (Tarjan's algorithm)."""
    found: set[frozenset[str]] = set()
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    is_on_path: set[str] = set()

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        path.append(module)
        is_on_path.add(module)
        for imported in sorted(imports[module]):
            if imported not in order:
                visit(imported)
                lowest[module] = min(lowest[module], lowest[imported])
            elif imported in is_on_path:
                lowest[module] = min(lowest[module], order[imported])
        if lowest[module] == order[module]:
            circle = path[path.index(module) :]
            del path[path.index(module) :]
            is_on_path.difference_update(circle)
            if len(circle) > 1:
                found.add(frozenset(circle))

    for module in sorted(imports):
        if module not in order:
            visit(module)
    return found


def test_circles_are_found() -> None:
    imports = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"e"}, "e": set(), "f": {"a"}}
    assert circles_of(imports) == {frozenset("abc")}


def test_modules_do_not_import_one_another_in_a_circle() -> None:
    """Imports under TYPE_CHECKING count, because a module that needs another's type depends on it."""
    ours = {module for package in OURS for module in {package, *graph().find_descendants(package)}}
    imports = {module: graph().find_modules_directly_imported_by(module) & ours for module in ours}
    assert circles_of(imports) == CIRCLES
