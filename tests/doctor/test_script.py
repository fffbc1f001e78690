"""What is read in a script, and what is made of it; none of these scripts is ever run."""

from __future__ import annotations

from pathlib import Path

import pytest

import tidegate
from tests.doctor.conftest import Install
from tidegate.doctor import script as script_reader
from tidegate.doctor.environment import Finding, Installed, Severity
from tidegate.doctor.script import CHECKS
from tidegate.doctor.source import Unreadable


def read(folder: Path, text: str, **beside: str) -> list[Finding]:
    """What is found in a script of this text, with modules of these names and texts beside it."""
    for name, content in beside.items():
        (folder / f"{name}.py").write_text(content)
    path = folder / "my_eval.py"
    path.write_text(text)
    return list(script_reader.script(path, Installed(), tidegate.Settings(), {}))


def habits(folder: Path, text: str, **beside: str) -> list[tuple[str, str, str]]:
    found = read(folder, "import openai\n" + text, **beside)
    return [(each.verdict, each.name, each.place) for each in found if each.place and each.name in NAMES]


NAMES = {habit.name for habit in CHECKS}


def test_only_what_the_script_imports_is_said(install: Install, tmp_path: Path) -> None:
    install("openai", "3.52.0", ("httpx2",))
    install("httpx2", "2.16.2")
    install("anthropic", "2.11.0", ("httpx2",))
    install("requests", "2.34.2")
    install("dspy", "3.4.1")
    found = [each.line() for each in read(tmp_path, "from openai import OpenAI\n")]
    assert found == [
        "sdk governed openai 3.52.0: sends through httpx2 2.16.2",
        "stack governed httpx2 2.16.2: patched at Client.send, AsyncClient.send",
        "script note my_eval.py: does not activate tidegate; start it with `tidegate run python "
        f"{tmp_path}/my_eval.py`, or add `import tidegate.auto`",
    ]


def test_clocks_are_those_of_the_frameworks_it_imports(install: Install, tmp_path: Path) -> None:
    install("ragas", "0.4.3")
    install("dspy", "3.4.1")
    found = read(tmp_path, "from ragas import evaluate\n")
    assert [each.name for each in found if each.section == "clock"] == ["ragas"]


@pytest.mark.parametrize(
    "line",
    ["import google.genai", "from google import genai", "from google.genai import types", "import google.genai.x"],
)
def test_an_import_is_recognised_however_it_is_written(install: Install, tmp_path: Path, line: str) -> None:
    install("google-genai", "3.4.0")
    assert "google-genai" in [each.name for each in read(tmp_path, line)]


def test_an_import_inside_a_function_counts(install: Install, tmp_path: Path) -> None:
    install("openai", "3.52.0")
    assert "openai" in [each.name for each in read(tmp_path, "def ask():\n    import openai\n")]


def test_what_is_imported_and_not_installed_is_said(install: Install, tmp_path: Path) -> None:
    found = [each.line() for each in read(tmp_path, "import groq\n")]
    assert (
        "sdk note groq: not checked: it is not installed in this Python; run the doctor of the Python that has it"
        in found
    )


def test_the_modules_beside_it_are_read_too_and_they_in_turn(install: Install, tmp_path: Path) -> None:
    install("xai-sdk", "1.21.0")
    install("grpcio", "1.85.1")
    package = tmp_path / "judges"
    package.mkdir()
    (package / "__init__.py").write_text("from . import grok\n")
    (package / "grok.py").write_text("import asyncio\nimport xai_sdk\n\nasyncio.timeout(5)\n")
    found = read(tmp_path, "import judging\n", judging="from judges import anything\nimport my_eval\n")
    assert ("sdk", Severity.UNGOVERNED, "xai-sdk") in [each[:3] for each in found]
    assert "judges/grok.py:4" in [each.place for each in found]


def test_a_module_beside_it_is_not_the_package_of_that_name(install: Install, tmp_path: Path) -> None:
    install("openai-agents", "0.24.0")
    assert "openai-agents" in [each.name for each in read(tmp_path, "import agents\n")]
    assert "openai-agents" not in [each.name for each in read(tmp_path, "import agents\n", agents="")]


def test_one_that_imports_nothing_that_is_known_is_said_to(install: Install, tmp_path: Path) -> None:
    found = read(tmp_path, "import json\nclient.realtime.connect()\n")
    assert [each.text for each in found][1:] == ["imports no known SDK or HTTP stack"]


@pytest.mark.parametrize(
    ("text", "name", "line"),
    [
        ("import openai, tidegate\n\nclient = tidegate.wrap(openai.OpenAI())\n", "tidegate.wrap", 3),
        ("import openai\nfrom tidegate import install as on\non()\n", "tidegate.install", 3),
        ("import openai\nimport tidegate.auto\n", "import tidegate.auto", 2),
    ],
)
def test_where_it_puts_tidegate_on_is_said(install: Install, tmp_path: Path, text: str, name: str, line: int) -> None:
    (found,) = [each for each in read(tmp_path, text) if each.text == "activates tidegate"]
    assert (found.name, found.place) == (name, f"my_eval.py:{line}")


RETRY = "from urllib3.util import Retry\n"
UNGOVERNED = {
    "a Retry for every method": RETRY + "Retry(3, status_forcelist=[429], allowed_methods=None)",
    "a Retry for POST": RETRY + "Retry(3, status_forcelist=[429], allowed_methods=frozenset(['GET', 'POST']))",
    "a Retry for who knows what": RETRY + "Retry(3, status_forcelist=[429], method_whitelist=METHODS)",
    "a Retry of requests": "from requests.adapters import Retry\nRetry(status_forcelist=[503], allowed_methods=False)",
    "a websocket provider": "import agents\nagents.OpenAIProvider(use_responses_websocket=True)",
    "a websocket by default": "import agents\nagents.set_default_openai_responses_transport('websocket')",
    "a websocket by name": "import agents\nagents.RunConfig(transport='websocket')",
    "a realtime session": "client = openai.AsyncOpenAI()\nclient.beta.realtime.connect(model='m')",
    "a session of the Responses API": "client = openai.OpenAI()\nclient.responses.connect()",
    "an agent that speaks": "from agents import realtime\nrealtime.RealtimeRunner(agent)",
    "a socket of one's own": "import websockets\nwebsockets.connect('wss://api.openai.com/v1/realtime?model=m')",
    "a socket by keyword": "import websockets as w\nw.connect(uri=f'wss://api.x.ai/v1/realtime?model={m}')",
    "a socket of aiohttp": "s = ours()\ns.ws_connect('wss://gateway.example/v1/responses')",
    "a live session": "from google import genai\ngenai.Client().aio.live.connect(model='m')",
    "a client with a send of its own": "import httpx\nclass C(httpx.Client):\n    def send(self, r): return 1",
    "a session with a send of its own": "import requests as r\nclass S(r.Session):\n    def send(self, q): return 1",
    "a transport that repeats": "import httpx\nclass T(httpx.BaseTransport):\n    def handle_request(self, r):\n"
    "        for _ in range(3):\n            self.inner.handle_request(r)",
    "a transport of pydantic-ai": "from pydantic_ai.retries import AsyncTenacityTransport\nAsyncTenacityTransport()",
    "promptfoo": "import subprocess\nsubprocess.run(['promptfoo', 'eval'])",
    "promptfoo through a shell": "import os\nos.system('promptfoo eval -c x')",
    "promptfoo through npx": "import subprocess\nsubprocess.check_call(['sh', '-c', 'npx promptfoo eval'])",
    "an isolated Python": "import subprocess, sys\nsubprocess.run([sys.executable, '-I', 'x.py'])",
}


@pytest.mark.parametrize("text", UNGOVERNED.values(), ids=UNGOVERNED)
def test_what_cannot_be_governed_is_found_on_its_line(install: Install, tmp_path: Path, text: str) -> None:
    found = habits(tmp_path, text)
    assert [verdict for verdict, _, _ in found] == ["ungoverned"]
    assert found[0][2] == f"my_eval.py:{2 if 'class' in text.splitlines()[0] else 3}"


LESSER = {
    "a Retry for GET": (
        RETRY + "Retry(3, status_forcelist=[429], allowed_methods=['GET'])",
        "Retry(status_forcelist=)",
    ),
    "a Retry as it is": (RETRY + "Retry(3, status_forcelist=[429])", "Retry(status_forcelist=)"),
    "tenacity": ("import tenacity\n@tenacity.retry(stop=1)\ndef ask(): ...", "decorator that repeats"),
    "bare tenacity": ("from tenacity import retry\n@retry\nasync def ask(): ...", "decorator that repeats"),
    "backoff": ("import backoff as b\n@b.on_exception(b.expo, Exception)\ndef ask(): ...", "decorator that repeats"),
    "max_retries": ("openai.OpenAI(max_retries=5)", "max_retries="),
    "wait_for": ("import asyncio\nasyncio.wait_for(ask(), 5)", "timeout of your own"),
    "fail_after": ("from anyio import fail_after\nfail_after(5)", "timeout of your own"),
    "disabled": ("from tidegate import disabled\ndisabled()", "disabled()"),
    "a rate limiter": (
        "from langchain_openai import ChatOpenAI\nChatOpenAI(model='m', rate_limiter=mine)",
        "rate_limiter=",
    ),
    "limits of a pool": ("import httpx\nlimits = httpx.Limits(max_connections=10)", "connection pool of your own"),
    "limits by place": ("from httpx2 import Limits\nlimits = Limits(10)", "connection pool of your own"),
    "a connector": ("import aiohttp\naiohttp.TCPConnector(limit=30)", "connection pool of your own"),
    "a bare client": ("import httpx\nclient = httpx.AsyncClient(timeout=60)", "pool of 100 connections"),
    "a bare session": ("import aiohttp\nsession = aiohttp.ClientSession()", "pool of 100 connections"),
}


@pytest.mark.parametrize(("text", "name"), LESSER.values(), ids=LESSER)
def test_what_is_worth_a_word_gets_one(install: Install, tmp_path: Path, text: str, name: str) -> None:
    (found,) = habits(tmp_path, text)
    assert found[1] == name
    assert found[0] != "ungoverned"


HARMLESS = {
    "a socket of something else": "import websockets\nwebsockets.connect('wss://stream.example/prices')",
    "a connection of something else": "import sqlite3\nsqlite3.connect('responses.db')",
    "a Retry of connections": RETRY + "Retry(connect=3)",
    "somebody else's Retry": "from mine import Retry\nRetry(status_forcelist=[429], allowed_methods=None)",
    "a send that goes up": "import httpx\nclass C(httpx.Client):\n    def send(self, r): return super().send(r)",
    "another class with a send": "class Mailer:\n    def send(self, r): return 1",
    "a transport that counts": "import httpx\nclass T(httpx.BaseTransport):\n    def handle_request(self, r):\n"
    "        for _ in r.headers: pass\n        return self.inner.handle_request(r)",
    "another transport": "run(transport='stdio')",
    "another connect": "database.connect()",
    "no rate limiter": "from langchain_openai import ChatOpenAI\nChatOpenAI(model='m', rate_limiter=None)",
    "a rate limiter of something else": "import shop\nshop.Counter(rate_limiter=mine)",
    "no retries": "openai.OpenAI(max_retries=0)",
    "limits that are computed": "import httpx\nhttpx.AsyncClient(limits=httpx.Limits(max_connections=MOST))",
    "a connector without a limit": "import aiohttp\naiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))",
    "retries of an adapter": "from requests.adapters import HTTPAdapter\nHTTPAdapter(max_retries=3)",
    "another decorator": "@cache\ndef ask(): ...",
    "another command": "import subprocess\nsubprocess.run(['git', 'log', 'node'])",
    "a Python of ours": "import subprocess, sys\nsubprocess.run([sys.executable, '-m', 'x'])",
    "words": "print('promptfoo', '-I', 'python')",
}


@pytest.mark.parametrize("text", HARMLESS.values(), ids=HARMLESS)
def test_what_is_harmless_is_not_spoken_of(install: Install, tmp_path: Path, text: str) -> None:
    assert habits(tmp_path, text) == []


def test_pool_of_an_sdk_is_told_once_unless_the_script_gives_another_client(install: Install, tmp_path: Path) -> None:
    text = "import openai, anthropic\na = openai.AsyncOpenAI()\nb = anthropic.Anthropic()\n"
    (found,) = [each for each in read(tmp_path, text) if each.name == "pool of 1,000 connections"]
    assert (found.verdict, found.place) == (Severity.NOTE, "my_eval.py:2")
    text = "import openai\na = openai.AsyncOpenAI(http_client=mine)\n"
    assert not [each for each in read(tmp_path, text) if each.name == "pool of 1,000 connections"]


def test_every_habit_is_met_by_one_of_these(install: Install, tmp_path: Path) -> None:
    texts = [*UNGOVERNED.values(), *(text for text, _ in LESSER.values())]
    assert {name for text in texts for _, name, _ in habits(tmp_path, text)} == NAMES
    assert all(habit.source for habit in CHECKS)


def test_nothing_is_run(install: Install, tmp_path: Path) -> None:
    left = tmp_path / "left"
    read(tmp_path, f"import beside\nopen({str(left)!r}, 'w')\n", beside=f"open({str(left)!r}, 'w')\n")
    assert not left.exists()


def test_a_module_beside_it_that_cannot_be_read_is_left_out(install: Install, tmp_path: Path) -> None:
    install("openai", "3.52.0")
    assert "openai" in [each.name for each in read(tmp_path, "import openai, beside\n", beside="def (")]


def test_what_the_parser_warns_of_is_not_said(install: Install, tmp_path: Path) -> None:
    install("openai", "3.52.0")
    assert "openai" in [each.name for each in read(tmp_path, 'import openai\n"\\d"\n')]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"def (", r"it is not Python source \(line 1"),
        (b"\x00", "it is not Python source"),
        (b"\xff\xfe", "it is not Python source"),
        (b"-" * 200_000 + b"1", "it is not Python source"),
        (None, "it cannot be read"),
    ],
)
def test_what_is_no_script_is_unreadable(
    install: Install, tmp_path: Path, content: bytes | None, complaint: str
) -> None:
    path = tmp_path / "x.py"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(Unreadable, match=complaint):
        list(script_reader.script(path, Installed(), tidegate.Settings(), {}))
