import re
from pathlib import Path

import pytest

from triggerer.config import SparkSettings
from triggerer.errors import ConfigurationError
from triggerer.worker.spark.settings import (
    classic_conf,
    has_own_logging,
    keys_in_spark_defaults,
    local_cores,
    mode_of,
    reason_of,
)


def conf(
    settings: SparkSettings,
    *,
    elsewhere: frozenset[str] = frozenset(),
    python_daemon: str | None = None,
) -> dict[str, str]:
    return classic_conf(
        settings,
        app_name="app",
        warehouse=Path("/home/w"),
        java_options=["-XX:TieredStopAtLevel=1", "-Da=b c"],
        elsewhere=elsewhere,
        python_daemon=python_daemon,
    )


@pytest.mark.parametrize(
    ("settings", "mode"),
    [
        (SparkSettings(), "local"),
        (SparkSettings(master="local[3]"), "local"),
        (SparkSettings(master="spark://h:7077"), "classic"),
        (SparkSettings(conf={"spark.master": "yarn"}), "classic"),
        (SparkSettings(remote="sc://h"), "connect"),
        (SparkSettings(mode="local"), "local"),
        (SparkSettings(mode="classic", master="spark://h:7077"), "classic"),
        (SparkSettings(mode="connect", remote="sc://h"), "connect"),
        (SparkSettings(mode="submit"), "submit"),
        (SparkSettings(mode="submit", master="yarn"), "submit"),
    ],
)
def test_a_mode_follows_from_the_address_or_goes_together_with_it(
    settings: SparkSettings, mode: str
) -> None:
    assert mode_of(settings) == mode


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (SparkSettings(mode="conect"), "mode is 'conect'"),
        (SparkSettings(mode="connect"), "mode is connect and remote is not set"),
        (SparkSettings(mode="connect", remote="spark://h"), "remote is spark://h"),
        (SparkSettings(mode="classic", remote="sc://h"), "remote is set and mode is classic"),
        (SparkSettings(mode="submit", remote="sc://h"), "remote is set and mode is submit"),
        (SparkSettings(mode="classic", master="sc://h"), "master is 'sc://h'"),
        (SparkSettings(mode="classic"), "mode is classic and master is not set"),
        (SparkSettings(mode="local", master="yarn"), "mode is local and master is 'yarn'"),
        (SparkSettings(master="yarn", remote="sc://h"), "master and remote are both set"),
        (SparkSettings(master="yarn", conf={"spark.master": "local"}), "conf has spark.master"),
    ],
)
def test_a_contradiction_is_an_error_with_a_way_out(settings: SparkSettings, said: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(said)) as caught:
        mode_of(settings)
    assert caught.value.hint


def test_python_workers_are_started_by_the_daemon_that_is_given_unless_the_operator_names_one() -> (
    None
):
    key = "spark.python.daemon.module"
    assert key not in conf(SparkSettings())
    assert conf(SparkSettings(), python_daemon="ours")[key] == "ours"
    assert conf(SparkSettings(conf={key: "theirs"}), python_daemon="ours")[key] == "theirs"
    elsewhere = frozenset({key})
    assert key not in conf(SparkSettings(), python_daemon="ours", elsewhere=elsewhere)


def test_a_local_session_listens_on_loopback_only_and_shows_no_page() -> None:
    given = conf(SparkSettings())
    assert given["spark.master"] == "local[*]"
    assert given["spark.driver.host"] == given["spark.driver.bindAddress"] == "127.0.0.1"
    assert given["spark.ui.enabled"] == "false"
    assert given["spark.sql.warehouse.dir"] == "/home/w"


def test_the_users_settings_win_over_every_default() -> None:
    theirs = {"spark.ui.enabled": "true", "spark.app.name": "theirs", "spark.driver.host": "h"}
    given = conf(SparkSettings(conf=theirs))
    assert theirs.items() <= given.items()


def test_the_users_java_options_come_after_ours_and_need_not_repeat_them() -> None:
    given = conf(SparkSettings(conf={"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=4"}))
    # Spark's launcher puts the default ones first, and Java takes the last of each.
    ours = '-XX:+ExitOnOutOfMemoryError -XX:TieredStopAtLevel=1 "-Da=b c"'
    assert given["spark.driver.defaultJavaOptions"] == ours
    assert given["spark.driver.extraJavaOptions"] == "-XX:TieredStopAtLevel=4"


def test_the_operators_spark_defaults_win_over_ours(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text(
        "# spark.driver.host no\nspark.ui.enabled true\n  spark.driver.host=10.0.0.1\n\n"
    )
    keys = keys_in_spark_defaults({"SPARK_CONF_DIR": str(tmp_path)}, Path("/spark"))
    assert keys == {"spark.ui.enabled", "spark.driver.host"}
    assert not keys & conf(SparkSettings(), elsewhere=keys).keys()


def test_a_cluster_gets_none_of_what_is_for_this_machine() -> None:
    given = conf(SparkSettings(master="spark://h:7077"))
    assert "spark.driver.host" not in given
    assert "spark.sql.warehouse.dir" not in given
    assert given["spark.sql.execution.arrow.pyspark.enabled"] == "true"


CLUSTERS = ["spark://h:7077", "spark://one:7077,two:7077", "yarn", "k8s://https://api:6443"]


@pytest.mark.parametrize("master", CLUSTERS)
def test_a_session_on_a_cluster_holds_executors_only_while_it_has_work(master: str) -> None:
    given = conf(SparkSettings(master=master))
    assert given["spark.dynamicAllocation.enabled"] == "true"
    assert given["spark.dynamicAllocation.shuffleTracking.enabled"] == "true"
    # Spark's defaults for the first two of these timeouts are infinite. So shuffle files and cached data would keep an
    # executor forever.
    for key in ("shuffleTracking.timeout", "cachedExecutorIdleTimeout", "executorIdleTimeout"):
        assert given[f"spark.dynamicAllocation.{key}"].removesuffix("s").isdigit()
    assert ("spark.executor.cores" in given) == master.startswith("spark://")


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2]"])
def test_a_local_session_has_no_executors_to_share(master: str) -> None:
    given = conf(SparkSettings(master=master))
    assert not [key for key in given if "dynamicAllocation" in key or "executor." in key]


@pytest.mark.parametrize(
    "theirs",
    [
        {"spark.dynamicAllocation.executorIdleTimeout": "1h"},
        {"spark.dynamicAllocation.maxExecutors": "3", "spark.executor.cores": "4"},
        {"spark.cores.max": "2"},
    ],
)
def test_the_users_bounds_win_and_the_cluster_is_shared_all_the_same(
    theirs: dict[str, str],
) -> None:
    given = conf(SparkSettings(master="spark://h:7077", conf=theirs))
    assert theirs.items() <= given.items()
    assert given["spark.dynamicAllocation.enabled"] == "true"


@pytest.mark.parametrize("key", ["spark.dynamicAllocation.enabled", "spark.executor.instances"])
@pytest.mark.parametrize("in_defaults", [False, True])
def test_a_user_who_decides_about_executors_gets_none_of_our_defaults(
    key: str, in_defaults: bool
) -> None:
    settings = SparkSettings(master="spark://h:7077", conf={} if in_defaults else {key: "4"})
    given = conf(settings, elsewhere=frozenset({key} if in_defaults else ()))
    ours = [name for name in given if "dynamicAllocation" in name or "executor." in name]
    assert ours == ([] if in_defaults else [key])


def test_there_are_few_shuffle_partitions_on_few_cores() -> None:
    assert conf(SparkSettings(master="local[1]"))["spark.sql.shuffle.partitions"] == "4"
    assert conf(SparkSettings(master="local[8]"))["spark.sql.shuffle.partitions"] == "16"


@pytest.mark.parametrize(("master", "cores"), [("local", 1), ("local[3]", 3), ("local[4, 2]", 4)])
def test_the_cores_of_a_local_master_are_read_from_it(master: str, cores: int) -> None:
    assert local_cores(master) == cores


def test_the_operators_own_logging_is_noticed(tmp_path: Path) -> None:
    assert not has_own_logging({}, tmp_path)
    (tmp_path / "log4j2.properties").touch()
    assert has_own_logging({"SPARK_CONF_DIR": str(tmp_path)}, Path("/spark"))


def test_the_line_that_matters_is_taken_out_of_a_java_error() -> None:
    error = RuntimeError(
        "An error occurred while calling None.org.apache.X.\n: java.lang.Bad: it is\n\tat here"
    )
    assert reason_of(error) == "java.lang.Bad: it is"
    assert reason_of(RuntimeError("\nfirst\nsecond")) == "first"
    assert reason_of(KeyError()) == "KeyError"


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [
        ("-Xss4m", "-XX:+ExitOnOutOfMemoryError -Xss4m"),
        ("-XX:-ExitOnOutOfMemoryError", "-XX:-ExitOnOutOfMemoryError"),
    ],
)
def test_a_driver_out_of_heap_ends_unless_the_user_says_otherwise(
    theirs: str, expected: str
) -> None:
    key = "spark.driver.defaultJavaOptions"
    assert conf(SparkSettings(conf={key: theirs}))[key] == expected
