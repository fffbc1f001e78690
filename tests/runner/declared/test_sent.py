"""What a declared question is on the wire: just what the file says, in each provider's own words."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tidegate.experiments.declared.clients import LazyClient
from tidegate.experiments.declared.schema import QuestionSpec

# google-genai's own, over aiohttp.
pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")

SYSTEM = 'Answer as {"answer": "…"}, {{field}} or { {field} }.'
FILLED = 'Answer as {"answer": "…"}, {field} or { in {braces} }.'
ROW = {"field": "in {braces}", "deep": {"list": [{"x": 1.0}]}}
PROMPT = "{deep.list.0} {deep} {field}"
ASKED = '{"x": 1.0} {"list": [{"x": 1.0}]} in {braces}'

PARAMETERS = {"temperature": 0, "max_tokens": 7, "stop": ["a", "b"], "of_tomorrow": {"deep": [1, 2.5, None, True, "ü"]}}
"""Some that an SDK knows, and one that it does not."""


class Recorder(BaseHTTPRequestHandler):
    """Remembers what is asked, and answers nothing."""

    heard: dict[str, Any]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.heard.update(
            path=self.path, body=json.loads(body), headers={name.lower(): value for name, value in self.headers.items()}
        )
        self.send_response(400)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def heard() -> Iterator[dict[str, Any]]:
    """What was asked, with the `url` to ask at."""
    heard: dict[str, Any] = {}
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Recording", (Recorder,), {"heard": heard})) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        heard["url"] = f"http://127.0.0.1:{server.server_port}"
        yield heard
        server.shutdown()
        thread.join()


def sent(heard: dict[str, Any], monkeypatch: pytest.MonkeyPatch, **fields: Any) -> Any:
    """The body of the one request that a question is."""
    monkeypatch.setenv("SOME_KEY", "k-a-secret")
    given = {"model": "m/1:x", "system": SYSTEM, "prompt": PROMPT, "api_key_env": "SOME_KEY", **fields}
    question = QuestionSpec(base_url=heard["url"], **given)

    async def ask() -> None:
        one = LazyClient(question, "experiment.yaml")
        try:
            with pytest.raises(Exception, match="400"):
                await one(ROW)
        finally:
            await one.close()

    asyncio.run(ask())
    return heard["body"]


@pytest.mark.parametrize("provider", ["openai", "compatible", "azure"])
def test_openai_gets_what_the_file_says(provider: str, heard: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    body = sent(heard, monkeypatch, provider=provider, parameters=PARAMETERS)
    messages = [{"role": "system", "content": FILLED}, {"role": "user", "content": ASKED}]
    assert body == {"model": "m/1:x", "messages": messages, **PARAMETERS}
    assert heard["headers"]["authorization"] == "Bearer k-a-secret"
    assert heard["path"] == ("/openai/v1" if provider == "azure" else "") + "/chat/completions"


def test_anthropic_gets_what_the_file_says_and_a_bound_where_it_names_none(
    heard: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    body = sent(heard, monkeypatch, provider="anthropic", parameters=PARAMETERS)
    asked = {"model": "m/1:x", "system": FILLED, "messages": [{"role": "user", "content": ASKED}]}
    assert body == {**asked, **PARAMETERS}
    assert any(value.endswith("k-a-secret") for value in heard["headers"].values())
    assert sent(heard, monkeypatch, provider="anthropic") == {**asked, "max_tokens": 1024}


def test_gemini_gets_what_the_file_says_as_its_configuration(
    heard: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    parameters = {"temperature": 0, "max_output_tokens": 7, "stop_sequences": ["a"]}
    body = sent(heard, monkeypatch, provider="google", model="gemini-x", parameters=parameters)
    assert body == {
        "contents": [{"role": "user", "parts": [{"text": ASKED}]}],
        "systemInstruction": {"role": "user", "parts": [{"text": FILLED}]},
        "generationConfig": {"temperature": 0, "maxOutputTokens": 7, "stopSequences": ["a"]},
    }
    assert heard["headers"]["x-goog-api-key"] == "k-a-secret"
