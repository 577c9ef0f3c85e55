"""The configuration: where values come from, and what errors say about wrong values."""

import json
import os
import pwd
from datetime import timedelta
from pathlib import Path

import pytest

from triggerer.config import CONFIG_VARIABLE, RawValue, Settings, load_settings
from triggerer.errors import ConfigurationError
from triggerer.observability import redaction
from triggerer.observability.redaction import hide_known, redact, redact_text
from triggerer.store.database.urls import parse_database_url


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(text: str, name: str = "triggerer.toml") -> Path:
    file = Path(name).absolute()
    file.write_text(text)
    return file


def refusal(*, environ: dict[str, str] | None = None, path: Path | None = None) -> str:
    with pytest.raises(ConfigurationError) as raised:
        load_settings(path, environ or {})
    return str(raised.value)


@pytest.mark.rule(
    "7: the ack timeout is 300 s by default",
    "8: by default a queue holds 1024 messages, and the grace is 5 s",
)
def test_without_file_and_environment_the_defaults_of_the_contract_hold() -> None:
    settings = load_settings(environ={})
    assert settings.triggerer.shared_stream_ack_timeout == timedelta(seconds=300)
    assert settings.triggerer.shared_stream_subscriber_queue_size == 1024
    assert settings.triggerer.shared_stream_overflow_grace == timedelta(seconds=5)
    assert settings.file is None
    assert set(settings.sources.values()) == {"default"}


def test_the_default_database_is_sqlite_in_home(tmp_path: Path) -> None:
    settings = load_settings(environ={"TRIGGERER__CORE__HOME": str(tmp_path / "there")})
    assert settings.database.url == f"sqlite:///{tmp_path}/there/triggerer.db"
    assert settings.core.dags_folder == tmp_path / "there" / "dags"


@pytest.mark.parametrize("name", ["feature%2Fx", "what?", "a?b=c", "a b", "a#b"])
def test_the_default_database_is_in_home_whatever_that_is_called(tmp_path: Path, name: str) -> None:
    home = tmp_path / name
    settings = load_settings(environ={"TRIGGERER__CORE__HOME": str(home)})
    assert parse_database_url(settings.database.url).database == str(home / "triggerer.db")


@pytest.mark.parametrize("section", ["", "[core]\nhome='~/x'", "[database]\nurl='file:~/url'"])
def test_without_a_home_directory_the_error_names_the_setting(
    monkeypatch: pytest.MonkeyPatch, section: str
) -> None:
    def no_entry(_uid: int) -> None:
        raise KeyError

    # As in a container whose image has no entry for the user's id.
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", no_entry)
    with pytest.raises(ConfigurationError, match="no home directory") as refused:
        load_settings(write(section), {})
    assert "set HOME" in str(refused.value.hint)


def test_a_configuration_file_that_cannot_be_looked_for_is_refused() -> None:
    assert "cannot be read: File name too long" in refusal(path=Path("x" * 300))


def test_nothing_is_created_on_disk(tmp_path: Path) -> None:
    load_settings(environ={"TRIGGERER__CORE__HOME": str(tmp_path / "there")})
    assert list(tmp_path.iterdir()) == []


def test_the_file_in_the_working_directory_is_found() -> None:
    file = write("[executor]\nworkers = 7\n")
    settings = load_settings(environ={})
    assert settings.executor.workers == 7
    assert settings.sources["executor", "workers"] == f"{file}:2"


def test_a_named_file_wins_over_the_variable_and_both_over_the_working_directory() -> None:
    write("[executor]\nworkers = 1\n")
    second = write("[executor]\nworkers = 2\n", "second.toml")
    third = write("[executor]\nworkers = 3\n", "third.toml")
    environ = {CONFIG_VARIABLE: str(second)}
    assert load_settings(environ=environ).executor.workers == 2
    assert load_settings(third, environ).executor.workers == 3


def test_the_environment_wins_over_the_file_and_an_option_over_both() -> None:
    write("[executor]\nworkers = 1\nprewarm = false\n")
    environ = {"TRIGGERER__EXECUTOR__WORKERS": "2"}
    settings = load_settings(environ=environ)
    assert (settings.executor.workers, settings.executor.prewarm) == (2, False)
    assert settings.sources["executor", "workers"] == "TRIGGERER__EXECUTOR__WORKERS"
    overridden = load_settings(
        environ=environ, overrides={("executor", "workers"): RawValue("3", "--workers")}
    )
    assert overridden.executor.workers == 3
    assert overridden.sources["executor", "workers"] == "--workers"


@pytest.mark.parametrize(
    ("text", "wrong", "right"),
    [
        ("[triggerer]\nshared_stream_ack_timout = 1\n", "shared_stream_ack_timout", "ack_timeout"),
        ("[trigerer]\ncapacity = 1\n", "trigerer", "triggerer"),
    ],
)
def test_an_unknown_key_is_refused_with_its_place_and_the_nearest_known_one(
    text: str, wrong: str, right: str
) -> None:
    file = write(text)
    message = refusal()
    assert wrong in message
    assert right in message.split("did you mean")[1]
    assert str(file) in message


def test_an_unknown_variable_is_refused_by_name() -> None:
    message = refusal(environ={"TRIGGERER__EXECUTOR__WORKRES": "2"})
    assert message.startswith("TRIGGERER__EXECUTOR__WORKRES: ")
    assert "'workers'" in message


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("executor", "workers", "0"),
        ("executor", "workers", "two"),
        ("triggerer", "capacity", "-1"),
        ("triggerer", "lease_duration", "0"),
        ("triggerer", "isolation", "Class=thread"),
        ("triggerer", "stall_threshold", "-1"),
        ("triggerer", "shared_stream_overflow_grace", "-0.5"),
        ("api", "port", "70000"),
        ("core", "log_level", "loud"),
        ("core", "shutdown_grace", "1.2.3"),
    ],
)
def test_a_wrong_value_is_refused_with_its_origin(section: str, key: str, value: str) -> None:
    variable = f"TRIGGERER__{section}__{key}".upper()
    message = refusal(environ={variable: value})
    assert message.startswith(f"{variable}: [{section}] {key}: ")
    assert value in message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '[core]\nlog_level = "loud"',
            "log_level: it must be one of debug, info, warning, error, not",
        ),
        ("[executor]\nworkers = 0", "workers: it must be more than 0, not 0"),
        ("[triggerer]\nstall_threshold = -1", "stall_threshold: it must be at least 0, not -1"),
        ("[core]\nhome = 5", "[core] home: it must be the path of a file or folder, not 5"),
        ("[api]\nport = 99999", "[api] port: it must be at most 65535, not 99999"),
        ('[core]\nshutdown_grace = "5 minutes"', "it must be a number of seconds, not '5 minutes'"),
        ('[triggerer.isolation]\nfoo = "thread"', "isolation: 'foo' is neither"),
        (
            '[api.hooks.shop]\nasset = "orders"\nsecret = ""',
            "[api] hooks: the secret of a hook must be a text, not ''",
        ),
        ("connections = 3", ": [connections] must be a table"),
        ("[connections]\nkafka = 3", ": [connections.kafka] must be a table"),
    ],
)
def test_a_wrong_value_is_refused_in_words_for_those_who_wrote_it(text: str, said: str) -> None:
    write(text + "\n")
    assert said in refusal()


@pytest.mark.parametrize("seconds", ["0.5", "300"])
def test_durations_are_seconds(seconds: str) -> None:
    settings = load_settings(environ={"TRIGGERER__CORE__SHUTDOWN_GRACE": seconds})
    assert settings.core.shutdown_grace == timedelta(seconds=float(seconds))


def test_an_overflow_grace_of_zero_is_allowed() -> None:
    write("[triggerer]\nshared_stream_overflow_grace = 0\n")
    assert load_settings(environ={}).triggerer.shared_stream_overflow_grace == timedelta(0)


def test_a_file_that_is_not_toml_is_refused_with_the_line() -> None:
    write("[executor]\nworkers = = 2\n")
    assert "line 2" in refusal()


def test_a_named_file_that_is_missing_is_refused() -> None:
    assert "absent.toml" in refusal(path=Path("absent.toml"))


def test_relative_paths_of_the_file_start_at_the_file(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    file = write('[core]\nhome = "../var"\ndags_folder = "dags"\n', "etc/triggerer.toml")
    settings = load_settings(file, {})
    assert settings.core.home == tmp_path / "var"
    assert settings.core.dags_folder == tmp_path / "etc" / "dags"


def test_the_paths_of_the_certificate_start_at_the_file_or_at_the_working_directory(
    tmp_path: Path,
) -> None:
    (tmp_path / "etc").mkdir()
    file = write(
        '[api]\ntls_certificate = "tls.crt"\ntls_key = "/srv/tls.key"\n', "etc/triggerer.toml"
    )
    api = load_settings(file, {"TRIGGERER__API__TLS_KEY": "tls.key"}).api
    assert api.tls_certificate == tmp_path / "etc" / "tls.crt"
    assert api.tls_key == Path("tls.key")
    assert load_settings(file, {}).api.tls_key == Path("/srv/tls.key")


def test_the_dags_folder_is_where_its_link_leads_when_it_is_read(tmp_path: Path) -> None:
    """A deployment switches the link while the service runs."""
    (tmp_path / "first" / "dags").mkdir(parents=True)
    (tmp_path / "current").symlink_to(tmp_path / "first")
    write('[core]\ndags_folder = "current/dags"\n')
    settings = load_settings(environ={})
    assert settings.core.dags_folder == tmp_path / "current" / "dags"
    assert settings.get_dags_folder() == tmp_path / "current" / "dags"


@pytest.mark.parametrize(
    ("name", "reason"),
    [("absent", "there is no DAGs folder"), ("file", "cannot be read: Not a directory")],
)
def test_a_dags_folder_that_cannot_be_read_is_refused(
    tmp_path: Path, name: str, reason: str
) -> None:
    (tmp_path / "file").touch()
    settings = load_settings(environ={"TRIGGERER__CORE__DAGS_FOLDER": name})
    with pytest.raises(ConfigurationError, match=reason) as raised:
        settings.get_dags_folder()
    assert str(tmp_path / name) in str(raised.value)
    assert "--dags-folder" in str(raised.value)


def test_lists_and_pairs_may_be_written_in_a_variable() -> None:
    settings = load_settings(
        environ={
            "TRIGGERER__CORE__ALLOWED_TRIGGER_MODULES": "a.b, c",
            "TRIGGERER__SPARK__CONF": "spark.ui.enabled=false,spark.x=1",
        }
    )
    assert settings.core.allowed_trigger_modules == ("a.b", "c")
    assert settings.spark.conf == {"spark.ui.enabled": "false", "spark.x": "1"}


def test_isolation_is_a_table_of_classes_and_watchers() -> None:
    file = write('[triggerer.isolation]\n"a.Class" = "thread"\n"asset/w" = "process"\n')
    settings = load_settings(environ={})
    assert settings.triggerer.isolation == {"a.Class": "thread", "asset/w": "process"}
    assert settings.sources["triggerer", "isolation"] == f"{file}:1"
    environ = {"TRIGGERER__TRIGGERER__ISOLATION": "a.Class=process,asset/w=thread"}
    isolation = load_settings(environ=environ).triggerer.isolation
    assert isolation == {"a.Class": "process", "asset/w": "thread"}
    write('[triggerer.isolation]\n"a.Class" = "fibre"\n')
    message = refusal()
    assert message.startswith(f"{file}:1: [triggerer] isolation: ")
    assert "'fibre'" in message
    assert "'thread'" in message


class TestConnections:
    """Sections of their own, with secrets that are resolved late and never shown."""

    @pytest.fixture(autouse=True)
    def _nothing_is_known(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(redaction, "_known", {})
        monkeypatch.setattr(redaction, "_known_pattern", None)

    def connected(self, extra: str = "", environ: dict[str, str] | None = None) -> Settings:
        write(f'[connections.my-kafka]\nbootstrap_servers = "kafka:9092"\n{extra}')
        return load_settings(environ=environ or {})

    def test_the_environment_adds_to_a_connection_of_the_file(self) -> None:
        environ = {"TRIGGERER__CONNECTIONS__MY_KAFKA__SECURITY_PROTOCOL": "SSL"}
        connection = self.connected(environ=environ).get_connection("my-kafka")
        assert connection == {"bootstrap_servers": "kafka:9092", "security_protocol": "SSL"}

    def test_the_environment_makes_a_connection(self) -> None:
        environ = {"TRIGGERER__CONNECTIONS__KAFKA__BOOTSTRAP_SERVERS": "a:1"}
        settings = load_settings(environ=environ)
        assert settings.get_connection("kafka") == {"bootstrap_servers": "a:1"}

    def test_an_unknown_connection_is_refused_with_the_nearest(self) -> None:
        with pytest.raises(ConfigurationError, match="'my-kafka'"):
            self.connected().get_connection("my-kafak")

    def test_a_connection_of_another_broker_is_not_suggested(self) -> None:
        with pytest.raises(ConfigurationError) as refused:
            self.connected().get_connection("servicebus")
        assert "did you mean" not in str(refused.value)

    def test_the_hint_about_a_new_connection_asks_for_a_restart(self) -> None:
        with pytest.raises(ConfigurationError, match=r"add \[connections\.other\] .* restart"):
            self.connected().get_connection("other")

    def test_secrets_are_read_when_the_connection_is_used_and_each_time(self) -> None:
        environ = {"KAFKA_PASSWORD": "first"}
        settings = self.connected('sasl_plain_password = "env:KAFKA_PASSWORD"\n', environ)
        assert settings.get_connection("my-kafka")["sasl_plain_password"] == "first"
        environ["KAFKA_PASSWORD"] = "rotated"
        assert settings.get_connection("my-kafka")["sasl_plain_password"] == "rotated"

    def test_a_secret_in_a_file_loses_its_line_break(self) -> None:
        Path("secret").write_text("s3cret\n")
        settings = self.connected('sasl_plain_password = "file:secret"\n')
        assert settings.get_connection("my-kafka")["sasl_plain_password"] == "s3cret"

    def test_each_value_of_a_list_or_a_table_may_refer_to_a_secret(self) -> None:
        extra = 'ssl_crlfiles = ["env:CRL", "b"]\nheaders = { X-Key = "env:KEY" }\n'
        found = self.connected(extra, {"CRL": "a", "KEY": "k"}).get_connection("my-kafka")
        assert (found["ssl_crlfiles"], found["headers"]) == (["a", "b"], {"X-Key": "k"})

    @pytest.mark.parametrize(
        "content",
        [
            '{"type": "service_account", "private_key": "hunter-22\\nhunter-22-hunter", "auth_uri": "https://a/b"}',
            "hunter-22-hunter at https://a/b",
            "Endpoint=sb://a/;SharedAccessKeyName=b;SharedAccessKey=hunter-22-hunter",
        ],
        ids=["JSON", "text", "connection string"],
    )
    def test_the_secrets_of_a_file_with_a_url_are_known(self, content: str) -> None:
        Path("secret").write_text(content)
        self.connected('credentials = "file:secret"\n').get_connection("my-kafka")
        assert "hunter" not in hide_known(f"not to be read: {content}")
        assert hide_known("https://a/b") == "https://a/b"

    def test_a_part_of_a_file_of_credentials_is_a_secret_too(self) -> None:
        key = "-----BEGIN PRIVATE KEY-----\nhunter-22-hunter-22\n-----END PRIVATE KEY-----\n"
        Path("secret").write_text(json.dumps({"private_key": key, "auth_uri": "https://a/b"}))
        self.connected('credentials = "file:secret"\n').get_connection("my-kafka")
        assert "hunter" not in hide_known(f"cannot be read: {key}")

    @pytest.mark.parametrize("reference", ["env:NOT_SET", "file:not-there"])
    def test_a_missing_secret_stops_its_connection_alone(self, reference: str) -> None:
        settings = self.connected(f'sasl_plain_password = "{reference}"\n')
        with pytest.raises(ConfigurationError, match=r"connections\.my-kafka\.sasl_plain_password"):
            settings.get_connection("my-kafka")

    def test_no_secret_is_in_the_settings_representation(self) -> None:
        settings = self.connected(
            'sasl_plain_password = "hunter2"\n[database]\nurl = "postgresql://me:hunter2@h/db"\n',
            {"SOMETHING": "hunter2"},
        )
        assert "hunter2" not in repr(settings)


def test_the_database_url_may_be_a_secret() -> None:
    environ = {"TRIGGERER__DATABASE__URL": "env:URL", "URL": "postgresql://u:p@h/d"}
    assert load_settings(environ=environ).database.url == "postgresql://u:p@h/d"


def test_the_url_of_a_spark_connect_server_may_be_a_secret_that_tasks_do_not_see() -> None:
    environ = {"TRIGGERER__SPARK__REMOTE": "env:REMOTE", "REMOTE": "sc://h:15002/;token=hunter2"}
    settings = load_settings(environ=environ)
    assert settings.spark.remote == "sc://h:15002/;token=hunter2"
    assert settings.service_variables == {"REMOTE"}
    assert "hunter2" not in repr(settings)
    assert redact_text("the token hunter2 is refused") == "the token *** is refused"


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("url", "postgresql://me:hunter2@host/db", "postgresql://me:***@host/db"),
        ("url", "postgresql://me:a/b@c@host/db", "postgresql://me:***@host/db"),
        ("sasl_plain_password", "hunter2", "***"),
        ("sasl_plain_password", "env:KAFKA_PASSWORD", "env:KAFKA_PASSWORD"),
        ("aws_secret_access_key", "x", "***"),
        ("bootstrap_servers", "a:1,b:2", "a:1,b:2"),
        ("conf", {"spark.ssl.keyPassword": "x", "spark.a": "b"}, None),
    ],
)
def test_secrets_are_hidden_and_references_are_not(key: str, value: object, shown: object) -> None:
    expected = {"spark.ssl.keyPassword": "***", "spark.a": "b"} if shown is None else shown
    assert redact(key, value) == expected


def test_a_wrong_value_that_may_be_a_secret_is_not_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    message = refusal(environ={"TRIGGERER__DATABASE__COMMIT_TIMEOUT": "x://u:hunter2@h"})
    assert "hunter2" not in message


def test_os_environ_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TRIGGERER")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TRIGGERER__EXECUTOR__WORKERS", "5")
    assert load_settings().executor.workers == 5


def test_pools_are_names_with_slots() -> None:
    settings = load_settings(write("[pools]\ndb = 3\n"), {"TRIGGERER__POOLS__LAKE": "2"})
    assert settings.pools == {"db": 3, "lake": 2}
    assert settings.sources["pools", "lake"] == "TRIGGERER__POOLS__LAKE"
    for wrong in ("0", "-1", "true", '"many"', "1.5"):
        with pytest.raises(ConfigurationError, match=r"triggerer\.toml:2: pools\.db must be"):
            load_settings(write(f"[pools]\ndb = {wrong}\n"), {})


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"TRIGGERER__CORE__HOME": "/h\udcff"}, "TRIGGERER__CORE__HOME"),
        ({"TRIGGERER__POOLS__A\udcff": "3"}, r"TRIGGERER__POOLS__A\udcff"),
        ({"TRIGGERER__CONNECTIONS__KAFKA__CLIENT_ID": "\udcff"}, "CONNECTIONS__KAFKA__CLIENT_ID"),
    ],
)
def test_text_that_is_not_utf_8_is_refused(environ: dict[str, str], named: str) -> None:
    said = refusal(environ=environ)
    assert named in said
    assert "is not UTF-8" in said


def test_a_variable_below_a_value_of_another_variable_is_refused() -> None:
    issuer = "TRIGGERER__API__OIDC__ISSUER"
    said = refusal(environ={issuer: "https://a", f"{issuer}__X__Y": "1"})
    assert (
        f"{issuer}__X__Y: 'issuer' has a value (TRIGGERER__API__OIDC__ISSUER), so it has no keys"
        in said
    )


def test_a_home_below_a_folder_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "a\udcff"
    folder.mkdir()
    file = folder / "triggerer.toml"
    file.write_text('[core]\nhome = "here"\n')
    assert "home in [core]" in refusal(path=file)


@pytest.mark.parametrize("variable", ["TRIGGERER__API", "TRIGGERER__API__", "TRIGGERER__"])
def test_a_variable_without_a_section_or_a_key_is_refused_with_the_form_of_its_name(
    variable: str,
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load_settings(None, environ={variable: "1"})
    assert str(refused.value) == f"{variable}: write TRIGGERER__<SECTION>__<KEY>"
