"""A credential is nowhere but in the environment: not in the database, a log, an event, an error or an export."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.cli.experiment.commands import Place
from tidegate.experiments import ExperimentRunner, load

SHAPED = "sk-proj-0123456789abcdefghijKLMNOP"
SHAPELESS = "what, no shape & no prefix"
"""Neither a prefix nor a header of a provider gives this one away."""

DECLARED = """\
name: echoed
dataset: rows.jsonl
task: {{provider: compatible, base_url: "{url}/v1", api_key_env: OUR_KEY, model: m, prompt: "What is {{n}}?"}}
evaluators:
  - {{name: judge, provider: compatible, base_url: "{url}/v1", api_key_env: JUDGE_KEY, model: m, prompt: "{{output}}?"}}
"""

CODE = """
import os
import httpx2
from tidegate.experiments import Experiment


async def answer(row):
    async with httpx2.AsyncClient() as client:
        answer = await client.post("{url}/v1/chat/completions", headers={{"authorization": os.environ["OUR_KEY"]}})
    raise PermissionError(f"{{answer.text}}, and once more: {{os.environ['OUR_KEY']}}")


experiment = Experiment("echoed", "rows.jsonl", answer, credentials=["OUR_KEY"])
"""


class Echo(BaseHTTPRequestHandler):
    """A provider that shows the credential it was given in every error, and answers nobody but the task."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        given = self.headers.get("authorization", "")
        good = SHAPED in given and b"What is 0" in body
        message = {"role": "assistant", "content": "0"}
        said = {"choices": [{"message": message, "index": 0}]} if good else {"error": {"message": f"no: {given}"}}
        text = json.dumps(said).encode()
        self.send_response(200 if good else 401)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def echo() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def everything(folder: Path) -> bytes:
    """What the files of the database hold."""
    return b"".join(path.read_bytes() for path in folder.glob("tidegate.db*"))


@pytest.mark.parametrize(("name", "text"), [("experiment.yaml", DECLARED), ("my_eval.py", CODE)])
def test_a_credential_that_a_provider_echoes_is_kept_nowhere(place: Place, echo: str, name: str, text: str) -> None:
    place.rows(9)
    place.write(name, text.format(url=echo))
    keys = {"OUR_KEY": SHAPED, "JUDGE_KEY": SHAPELESS}
    done = place.process("run", name, "--max-concurrency", "1", **keys)
    assert done.code == 7, done.err
    told = [done.out, done.err, place.run("show", "echoed").out, place.run("show", "echoed", "--json").out]
    told += [place.run("export", "echoed", "--format", form).out for form in ("jsonl", "csv")]
    told.append(everything(place.path).decode("utf-8", "replace"))
    for each in told:
        assert SHAPED not in each
        assert SHAPELESS not in each
    assert "no: " in told[-1], "what the provider said is kept otherwise"


def test_a_credential_is_in_no_event(place: Place, echo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place.rows(9)
    place.write("experiment.yaml", DECLARED.format(url=echo))
    monkeypatch.setenv("OUR_KEY", SHAPED)
    monkeypatch.setenv("JUDGE_KEY", SHAPELESS)

    async def events() -> list[str]:
        async with ExperimentRunner("tidegate.db", recover=False) as runner:
            experiment = load("experiment.yaml")
            stream = runner.subscribe(experiment)
            summary = await runner.run(experiment)
            return [repr(event) async for event in stream] + [repr(summary), repr(experiment)]

    told = asyncio.run(events())
    assert any("401" in each for each in told)
    assert not any(SHAPED in each or SHAPELESS in each for each in told)
