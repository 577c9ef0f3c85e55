"""TLS, and a service account whose tokens expire. The client is a child process, which trusts a test certificate."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path

import anyio
import pytest

from tests.brokers.pubsub.test_scenarios import eventually
from tests.services.availability import skip_or_fail
from tests.services.brokers.pubsub_double import open_pubsub_double
from tests.services.certificates import Authority
from tests.services.http_answers import JsonHandler
from tests.services.process import ServiceUnavailable

_CHILD = """
import asyncio, json, sys
from producers.pubsub import PubSubSharedStreamProducer, check_subscription
from producers.pubsub.settings import PubSubSettings
from tests.brokers.pubsub.driving import driven

async def main():
    settings = PubSubSettings.from_mapping("test", json.loads(sys.argv[1]))
    await check_subscription(settings, "flights")
    async with driven(PubSubSharedStreamProducer("flights", settings=settings)) as driver:
        for count in (1, 2):
            await driver.advanced_count(count)
            print(driver.values[-1], flush=True)

asyncio.run(main())
"""


class Tokens:
    """An authorization server whose tokens expire after 5 seconds.

    The client renews a token minutes before it expires, so the client asks for a new token at each call.
    """

    def __init__(self) -> None:
        self.current = "token-1"
        tokens = self

        class Handler(JsonHandler):
            def respond(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                answer = {"access_token": tokens.current, "expires_in": 5, "token_type": "Bearer"}
                self.answer(answer)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/token"


@contextmanager
def serving_tokens() -> Iterator[Tokens]:
    tokens = Tokens()
    thread = threading.Thread(target=tokens.server.serve_forever, name="tokens")
    thread.start()
    try:
        yield tokens
    finally:
        tokens.server.shutdown()
        thread.join()
        tokens.server.server_close()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    try:
        return Authority(tmp_path / "authority")
    except ServiceUnavailable as absent:
        skip_or_fail(str(absent))


@pytest.mark.rule("cloud credentials expire in mid-stream")
@pytest.mark.parametrize("is_inline", [False, True], ids=["file", "contents"])
async def test_a_service_account_is_let_in_over_tls_and_its_tokens_may_run_out_in_mid_stream(
    authority: Authority, tmp_path: Path, is_inline: bool
) -> None:
    certificate, key = tmp_path / "server.crt", tmp_path / "server.key"
    authority.issue(certificate, key, days=2)
    private = tmp_path / "account.key"
    authority.issue(tmp_path / "account.crt", private, days=2)
    with serving_tokens() as tokens, open_pubsub_double(tls=(certificate, key)) as double:
        double.create("flights")
        double.tokens = {"token-1"}
        account = {
            "type": "service_account",
            "project_id": "tests",
            "private_key_id": "1",
            "private_key": private.read_text(),
            "client_email": "triggerer@tests.example",
            "token_uri": tokens.url,
        }
        file = tmp_path / "account.json"
        file.write_text(json.dumps(account))
        given = file.read_text() if is_inline else str(file)
        settings = {"credentials_file": given, "endpoint": f"localhost:{double.tls_port}"}
        async with await anyio.open_process(
            [sys.executable, "-c", _CHILD, json.dumps(settings)],
            env={
                **os.environ,
                "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(authority.file),
                "NO_PROXY": "localhost,127.0.0.1",
                "PYTHONPATH": os.pathsep.join([str(Path.cwd()), *filter(None, sys.path)]),
            },
            stderr=subprocess.PIPE,
        ) as child:
            await asyncio.to_thread(double.publish, "flights", ["first"])
            await eventually(
                lambda: double.entries("flights")[0].is_acked or child.returncode is not None,
                "the first is acknowledged",
            )
            tokens.current = "token-2"
            double.tokens = {"token-2"}
            double.break_streams()
            await asyncio.to_thread(double.publish, "flights", ["second"])
            with anyio.fail_after(60):
                assert child.stdout is not None
                assert child.stderr is not None
                said = b"".join([part async for part in child.stdout]).decode()
                errors = b"".join([part async for part in child.stderr]).decode()
                assert await child.wait() == 0, errors
        assert said.split() == ["first", "second"]
        assert double.seen_tokens == {"token-1", "token-2"}
