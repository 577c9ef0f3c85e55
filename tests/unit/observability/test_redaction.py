"""Secrets are hidden at every position, and other text stays readable."""

from __future__ import annotations

import io
import json
import logging
import string
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from triggerer.config import CoreSettings
from triggerer.observability import logging_setup, redaction
from triggerer.observability.logging_setup import set_up_logging
from triggerer.observability.redaction import redact, redact_text, remember_secret

# These secrets begin with `S3CR`, so that none of them equals a part of the text around it.
SECRETS = st.text(string.ascii_letters + string.digits + "-._~", min_size=8, max_size=40).map(
    lambda text: f"S3CR{text}"
)
NAMES = st.sampled_from(
    [
        "password", "sslpassword", "sasl_plain_password", "ssl_keyfile_password", "aws_secret_access_key",
        "session_token", "token", "api_key", "apiKey", "client-secret", "sasl.jaas.config", "connection_string",
        "spark.hadoop.fs.azure.account.key.store.dfs.core.windows.net", "spark.hadoop.fs.azure.sas.box.store.net",
        "spark.hadoop.fs.s3a.secret.key", "spark.hadoop.fs.s3a.access.key", "spark.hadoop.fs.s3a.session.token",
        "spark.hadoop.fs.azure.account.oauth2.client.secret", "spark.ssl.keyPassword",
        "spark.hadoop.fs.gs.auth.service.account.private.key", "spark.authenticate.secret",
        "spark.hadoop.javax.jdo.option.ConnectionPassword", "Authorization", "sasl_oauth_credentials",
    ]
)  # fmt: skip


@pytest.fixture(autouse=True)
def _nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_known", {})
    monkeypatch.setattr(redaction, "_known_pattern", None)


@given(name=NAMES, secret=SECRETS)
def test_a_value_under_the_name_of_a_secret_is_hidden(name: str, secret: str) -> None:
    nested: dict[str, Any] = {"conf": {name: secret, "list": [{name: [secret]}], "n": 1}}
    shown = redact("", {**nested, name: {"deeper": [secret, 5]}})
    assert secret not in repr(shown)
    assert shown["conf"]["n"] == 1


BODY = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC"
KEY = f"-----BEGIN PRIVATE KEY-----\n{BODY}\n-----END PRIVATE KEY-----"


@pytest.mark.parametrize("broken_by", ["\n", "\r\n", r"\n", r"\r\n", " ", ""])
def test_a_private_key_is_hidden_however_its_lines_are_broken(broken_by: str) -> None:
    """In an environment variable, a key is often one line. A backslash and an n then stand for each line break."""
    key = KEY.replace("\n", broken_by)
    remember_secret(key)
    assert BODY not in redact_text(f"cannot be read: {key}")
    assert BODY not in redact_text(f"cannot be read: {json.dumps(key)} {key!r}")


@pytest.mark.parametrize("broken_by", ["\n", r"\n"])
def test_the_lines_of_a_private_key_are_hidden_too(broken_by: str) -> None:
    remember_secret(KEY.replace("\n", broken_by))
    assert redact_text(f"line 2 is wrong: {BODY}") == "line 2 is wrong: ***"


def test_the_first_and_last_line_of_each_private_key_stay_readable() -> None:
    remember_secret(KEY)
    text = "a key begins with -----BEGIN PRIVATE KEY----- and ends with -----END PRIVATE KEY-----"
    assert redact_text(text) == text


def test_a_password_that_begins_with_dashes_is_hidden() -> None:
    remember_secret("-----hunter2")
    assert redact_text("refused: -----hunter2") == "refused: ***"


@given(
    secret=SECRETS,
    form=st.sampled_from(
        [
            "postgresql://me:{}@host:5432/db?sslmode=require",
            "postgresql+asyncpg://host/db?user=me&password={}&sslmode=require",
            "postgresql://host/db?sslpassword={}",
            "connecting to https://me:{}@host/path failed",
            "https://{}@host/path",
            "https://host/path?X-Token={}&b=c",
            "https://store.blob.core.windows.net/box?sv=2020&sig={}&se=1",
            "Endpoint=sb://x/;SharedAccessKeyName=n;SharedAccessKey={};EntityPath=p",
            "DefaultEndpointsProtocol=https;AccountKey={};EndpointSuffix=s",
            'org.apache.kafka.PlainLoginModule required username="u" password="{}";',
            "dsn: host=h password={} dbname=d",
            "{{'password': '{}'}}",
            '{{"client_secret": "{}"}}',
            "Authorization: Bearer {}",
            "the header was Bearer\t{}",
            "the header was BASIC {}",
            "-Djavax.net.ssl.trustStorePassword={}",
        ]
    ),
)
def test_a_secret_within_a_text_is_hidden_and_the_rest_is_not(secret: str, form: str) -> None:
    text = form.format(secret)
    shown = redact_text(text)
    assert secret not in shown
    assert shown == form.format("***")
    assert redact_text(shown) == shown


@pytest.mark.full
@given(
    secret=st.text(min_size=8, max_size=40).filter(lambda s: len(s.strip()) >= 8 and "*" not in s)
)
def test_a_known_secret_is_hidden_in_every_spelling(secret: str) -> None:
    remember_secret(secret)
    for spelling in (secret, quote(secret, safe=""), json.dumps(secret)[1:-1], repr(secret)[1:-1]):
        assert redact_text(f"<{spelling}>") in ("<***>", f"<{'***' * spelling.count('***')}>")


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://triggerer@host:5432/db?sslmode=require",
        "kafka:///orders,returns?connection=kafka",
        "expected a token: found '}'",
        "the password is missing",
        "group_id='a', key=b'x'",
        "2026-11-23T02:00:00Z user@example.com",
        "password=env:PG_PASSWORD",
        "s3a://bucket/path/_SUCCESS",
    ],
)
def test_text_without_a_secret_stays_readable(text: str) -> None:
    assert redact_text(text) == text


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sasl_plain_password", "env:KAFKA_PASSWORD"),
        ("password", "file:/run/secrets/password"),
        ("spark.hadoop.fs.s3a.aws.credentials.provider", "org.example.Provider"),
        ("spark.hadoop.fs.azure.account.auth.type", "OAuth"),
        ("spark.authenticate", "true"),
        ("password", None),
        ("capacity", 5),
        ("partition_key", "$.day"),
        ("idempotency_key", "topic/0/5"),
        ("credentials_file", "/etc/triggerer/pubsub.json"),
        ("web_identity_token_file", "/var/run/secrets/token"),
    ],
)
def test_a_value_that_only_looks_like_a_secret_stays_readable(key: str, value: object) -> None:
    assert redact(key, value) == value


def test_the_name_of_a_file_is_shown_wherever_it_is_said() -> None:
    redaction.remember_secrets_in("", {"credentials_file": "/etc/triggerer/pubsub.json"})
    text = "no credentials for Pub/Sub in /etc/triggerer/pubsub.json: File was not found."
    assert redact_text(text) == text


def test_a_short_value_is_not_searched_for_everywhere() -> None:
    remember_secret("abc")
    assert redact_text("abcdef") == "abcdef"


@pytest.fixture
def _logging_is_put_back() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers = handlers
    root.setLevel(level)
    logging_setup._installed.clear()
    structlog.reset_defaults()


@pytest.mark.usefixtures("_logging_is_put_back")
@pytest.mark.parametrize("log_format", ["json", "console"])
def test_no_log_line_shows_a_secret(log_format: str) -> None:
    remember_secret("known-to-be-one")
    stream = io.StringIO()
    set_up_logging(CoreSettings(log_format=log_format), stream)
    log = structlog.get_logger("test")
    log.info(
        "Shared stream group started key=%s",
        ("http", "https://me:hunter22@host/"),
        arguments={"api_token": "hunter22", "page": 3},
        url="postgresql://h/db?password=hunter22",
    )
    log.warning("it has known-to-be-one in it", error=ValueError("password=hunter22"))
    logging.getLogger("library").warning("refused: %s", "sasl.password=hunter22")
    try:
        raise ValueError("cannot reach https://me:hunter22@host/")
    except ValueError:
        log.exception("failed")
    written = stream.getvalue()
    assert "hunter22" not in written
    assert "known-to-be-one" not in written
    assert "3" in written
    if log_format == "json":
        assert len([json.loads(line) for line in written.splitlines()]) == 4


@pytest.mark.parametrize("before", ["x=@ ", "x=@"])
@pytest.mark.parametrize(
    "word",
    [
        "QUJD",
        "password",
        "?a",
        "&token",
        "://a:",
        "://",
        "https://",
        "a.-",
        "'password",
        "sig=",
        "?",
        "@",
    ],
)
def test_the_time_for_a_long_word_grows_with_its_length_only(word: str, before: str) -> None:
    """An error may quote a long message or a request's header, and its line is redacted on the event loop."""
    text = f"KeyError: {before}{word * (30_000 // len(word))}"
    started = time.thread_time()
    redact_text(text)
    # When the time grew with the square of the length, it was 10 s and more.
    assert time.thread_time() - started < 1
