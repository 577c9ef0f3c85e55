"""The OpenAPI description against a live service: no 5xx, and every answer is described."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.services.sample_service import open_sample_service

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,"
    "response_headers_conformance,response_schema_conformance"
)


@pytest.mark.parametrize(
    "examples",
    [pytest.param(1, marks=pytest.mark.soak), pytest.param(100, marks=pytest.mark.soak)],
)
def test_every_answer_of_a_live_service_is_described(tmp_path: Path, examples: int) -> None:
    # Streams of answers do not end by themselves.
    left_out = ("/api/v1/changes", r"/api/v1/dags/{dag_id}/dagRuns/{run_id}/logs")
    with open_sample_service(tmp_path, settings="rate_limit = 100000\n") as service:
        done = subprocess.run(
            [
                str(Path(sys.executable).with_name("schemathesis")),
                "run",
                f"{service.address}/api/v1/openapi.json",
                "-H",
                f"Authorization: Bearer {service.token}",
                f"--max-examples={examples}",
                "--phases=examples,coverage,fuzzing",
                f"--checks={CHECKS}",
                *(f"--exclude-path={path}" for path in left_out),
                "--request-timeout=20",
                "--suppress-health-check=all",
                "--no-color",
            ],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=1_000,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-5_000:] + done.stderr[-2_000:]
    assert "request failed" not in (tmp_path / "service.log").read_text()
