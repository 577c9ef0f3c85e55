"""The request by which a service gets a part of a run's log from an executor on another machine.

A request is one line: a signature, a space, and JSON. The key of the signature is in the database. The answer is one
line of JSON, followed by the log's bytes. Instants are from the database's clock, because machines' clocks differ.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import asdict, dataclass
from typing import Any, Final

LONGEST_REQUEST: Final = 4_096
VALID_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class LogRequest:
    """Asks for at most `limit` bytes of a run's log, from `start` on. A negative `start` counts from the log's end."""

    dag_id: str
    run_id: str
    start: int
    limit: int
    valid_until: float
    """Seconds since 1970, by the database's clock."""

    def signed(self, key: bytes) -> bytes:
        """Return the request as a signed line."""
        body = json.dumps(asdict(self)).encode()
        return _mac(key, body) + b" " + body + b"\n"


def read_request(line: bytes, key: bytes, now: float) -> LogRequest | None:
    """Return the request in a line, or None if it is malformed, not signed with the key, or not valid at `now`."""
    mac, _, body = line.removesuffix(b"\n").partition(b" ")
    # Parse only text that a service has signed. A stranger's text could break the parser, for instance by its depth.
    if not hmac.compare_digest(_mac(key, body), mac):
        return None
    try:
        document: dict[str, Any] = json.loads(body)
        request = LogRequest(
            str(document["dag_id"]),
            str(document["run_id"]),
            int(document["start"]),
            int(document["limit"]),
            float(document["valid_until"]),
        )
    except (ValueError, TypeError, KeyError, OverflowError):
        return None
    is_valid = now <= request.valid_until <= now + 2 * VALID_S and request.limit >= 0
    return request if is_valid else None


def _mac(key: bytes, body: bytes) -> bytes:
    return hmac.new(key, b"log:" + body, hashlib.sha256).hexdigest().encode()
