"""moto, a double of many of Amazon's services, on a free loopback port of this process: SQS, and STS for roles."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from tests.services.brokers.sqs_client import SqsClient


@contextmanager
def open_moto() -> Iterator[SqsClient]:
    """Serve in threads of this process. All open servers share their state."""
    # Not at the top: it takes half a second to import.
    from moto.server import ThreadedMotoServer

    # Otherwise werkzeug logs each request.
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield SqsClient(f"http://{host}:{port}")
    finally:
        server.stop()
