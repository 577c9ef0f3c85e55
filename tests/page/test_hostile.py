"""A page of another origin can change nothing, even in the browser of a user who is signed in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.page.browsing import load, open_page
from tests.services.sample_service import SampleService, open_sample_service

pytestmark = pytest.mark.full

DAGS = """
from triggerer import DAG, Asset, task

with DAG("orders", schedule=Asset("x-orders://", name="orders")):

    @task
    def collect():
        raise ValueError("<img src=x onerror=alert(1)>")

    collect()
"""
UNSAFE = [
    ("PATCH", "/api/v1/dags/orders", {"is_paused": True}),
    ("POST", "/api/v1/dags/orders/dagRuns", {}),
    ("POST", "/api/v1/assets/events", {"asset": "orders"}),
    ("DELETE", "/api/v1/dags/orders/assets/queuedEvent", {}),
    ("POST", "/api/v1/parked/discard", {"all": True}),
    ("POST", "/api/v1/parked/replay", {"all": True}),
    ("POST", "/api/v1/tokens", {"role": "admin"}),
    ("DELETE", "/api/v1/session", {}),
    ("POST", "/api/v1/events", {"specversion": "1.0"}),
    ("POST", "/api/v2/assets/events", {"asset_id": 1}),
    ("PATCH", "/api/v2/dags/orders", {"is_paused": True}),
]
ATTACK = """async ([target, unsafe]) => {
  const said = []
  for (const [method, path, body] of unsafe) {
    for (const type of ['application/json', 'text/plain', 'application/x-www-form-urlencoded']) {
      for (const mode of ['cors', 'no-cors']) {
        try {
          const answer = await fetch(target + path, {
            method, mode, credentials: 'include', headers: {'content-type': type}, body: JSON.stringify(body)})
          said.push(`${method} ${path} ${answer.status}`)
        } catch (error) { said.push('refused') }
      }
    }
    if (method === 'POST') {
      const frame = document.createElement('iframe')
      frame.name = 'frame' + path
      document.body.append(frame)
      const form = document.createElement('form')
      Object.assign(form, {action: target + path, method: 'POST', target: frame.name, enctype: 'text/plain'})
      const field = document.createElement('input')
      field.name = JSON.stringify(body).slice(0, -1) + (Object.keys(body).length ? ',' : '') + '"ignored":"'
      field.value = '"}'
      form.append(field)
      document.body.append(form)
      form.submit()
    }
    const image = document.createElement('img')
    image.src = target + path
    document.body.append(image)
  }
  await new Promise((done) => setTimeout(done, 1500))
  return said
}"""


class _Blank(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>a nice game</title><body>")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def other_origin() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Blank)
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    # Another port of the same host is another origin, but the same site, so the browser sends cookies.
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[SampleService]:
    with open_sample_service(tmp_path, dags={"orders.py": DAGS}) as one:
        yield one


def test_a_hostile_page_changes_nothing_and_a_run_s_error_is_only_text(
    browser: Browser, service: SampleService, other_origin: str
) -> None:
    address, token = service.address, service.token
    with open_page(browser) as (page, record):
        page.goto(address)
        page.get_by_label("Token").fill(token)
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Is anything wrong?")).to_be_visible()
        before = _state(service)
        page.goto(other_origin)
        said = page.evaluate(ATTACK, [address, UNSAFE])
        assert not any(one.endswith((" 200", " 201", " 204")) for one in said)
        assert _state(service) == before
        # The session still exists, and the service's own page can trigger a run.
        load(page, address + "/dags/orders")
        page.get_by_role("button", name="Trigger", exact=True).click()
        page.get_by_role("dialog").get_by_role("button", name="Trigger").click()
        expect(page.locator("pre.error")).to_contain_text("<img src=x", timeout=20_000)
        assert page.locator("main img").count() == 0
        assert record.dialogs == []
        assert record.foreign(address) == [] or all(
            url.startswith((address, other_origin)) for url in record.requests
        )
    done = [row["action"] for row in _audit(service)]
    # The newest rows come first. Later in the list are rows from the start of the service.
    assert done[:2] == ["dag.trigger", "session.open"]
    assert done.count("dag.trigger") == 1


def _state(service: SampleService) -> str:
    """Return all data that the unsafe routes could change, as JSON."""
    with service.client() as client:
        lists = ("dags", "runs", "assets/events", "tokens", "parked")
        found = [client.get(f"/api/v1/{name}").json()["items"] for name in lists]
    for token in found[3]:
        token.pop("last_used_at")
    return json.dumps([found, _audit(service)], sort_keys=True)


def _audit(service: SampleService) -> list[Any]:
    with service.client() as client:
        return list(client.get("/api/v1/audit").json()["items"])
