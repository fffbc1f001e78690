"""A user's own tests of refusals, against a stub in the test: they want the SDK's error soon."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator

import openai
import pytest


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        error = {"message": "Rate limit reached", "type": "requests", "code": "rate_limit_exceeded"}
        body = json.dumps({"error": error}).encode()
        self.send_response(int(self.path.split("/")[1]))
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    stub = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=stub.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{stub.server_port}"
    stub.shutdown()
    stub.server_close()


def call(url: str) -> None:
    openai.OpenAI(base_url=url, api_key="x", max_retries=0).chat.completions.create(model="m", messages=[])


def test_a_rate_limit_is_raised(server: str) -> None:
    with pytest.raises(openai.RateLimitError):
        call(server + "/429/v1")


def test_an_overload_is_raised(server: str) -> None:
    with pytest.raises(openai.InternalServerError):
        call(server + "/503/v1")
