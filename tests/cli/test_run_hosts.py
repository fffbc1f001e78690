"""The last line of `tidegate run` names the hosts that passed by, also where other calls were governed."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.cli.running import PYTHON, environ, run
from tests.transports.answering import Server
from tidegate.testing import Limit, Scenario, Simulator

PROGRAM = """
import asyncio, os, signal, socket
real = socket.getaddrinfo
socket.getaddrinfo = lambda host, *args, **kwargs: real("127.0.0.1", *args, **kwargs)

import aiohttp, httpx2, openai, requests
PORT = os.environ["PORT"]
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}

def url(host):
    return f"http://{host}:{PORT}/v1/chat/completions"

async def by_aiohttp():
    async with aiohttp.ClientSession() as session, session.post(url("c.example"), json=BODY) as answer:
        return answer.status

client = openai.OpenAI(base_url=f"http://gateway.example:{PORT}/v1", api_key="sk-secret", max_retries=0)
for row in range(int(os.environ.get("ROWS", 2))):
    client.chat.completions.create(**BODY)
if os.environ.get("BARE"):
    for _ in range(3):
        headers = {"authorization": "Bearer sk-secret"}
        assert httpx2.post(url("a.example"), json=BODY, headers=headers).status_code == 200
    assert requests.post(url("b.example") + "?key=sk-secret", json=BODY).status_code == 200
    assert asyncio.run(by_aiohttp()) == 200
    httpx2.post(f"http://d.example:{PORT}/v1/things", json=BODY)
    if os.fork() == 0:
        httpx2.post(url("b.example"), json=BODY)
        os.kill(os.getpid(), signal.SIGKILL)
    os.wait()
"""


def test_run_hosts_that_pass_by_are_named_in_the_last_line(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    with Simulator() as provider:
        port = str(urlsplit(provider.url).port)
        done = run(PYTHON, "program.py", env=environ(PORT=port, BARE="1"), cwd=tmp_path)
    assert done.last == (
        "tidegate: 2 calls, 2 answered, 0 given up, 0 refusals retried, 2 input + 6 output tokens; "
        "6 calls to 3 hosts were not governed: a.example, b.example, c.example "
        "(set TIDEGATE_HOSTS=a.example,b.example,c.example to govern such calls)"
    )
    assert "secret" not in "".join(done.lines)


REFUSED = f"ConnectError: [Errno {errno.ECONNREFUSED}] {os.strerror(errno.ECONNREFUSED)}"

FAILING = """
import os, openai
client = openai.OpenAI(base_url=os.environ["URL"], api_key="sk-wrong-secret", max_retries=0)
for _ in range(3):
    try:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    except openai.APIError:
        pass
"""


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("http://127.0.0.1:9/v1", f"3 calls, 0 answered, 0 given up, 3 failed ({REFUSED}), 0 refusals retried"),
        ("localhost:9/v1", "no LLM call was governed; 3 calls had a URL without a host (does the base URL begin with "
                           "https://?)"),
    ],
)  # fmt: skip
def test_run_names_why_no_call_reached_a_server(tmp_path: Path, url: str, told: str) -> None:
    (tmp_path / "program.py").write_text(FAILING)
    assert run(PYTHON, "program.py", env=environ(URL=url), cwd=tmp_path).last == f"tidegate: {told}"


def test_run_names_the_status_and_the_cause_of_failed_calls(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(FAILING)
    rejected = b'{"error": {"message": "Incorrect API key", "code": "invalid_api_key"}}'
    with Server(lambda number, path: (401, {}, rejected)) as server:
        url = server.chat.removesuffix("/chat/completions")
        last = run(PYTHON, "program.py", env=environ(URL=url), cwd=tmp_path).last
    assert last == "tidegate: 3 calls, 0 answered, 0 given up, 3 failed (401: key rejected), 0 refusals retried"


def test_run_hosts_of_tidegate_hosts_are_governed_by_what_the_line_says(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    with Simulator() as provider:
        port = str(urlsplit(provider.url).port)
        named = environ(PORT=port, BARE="1", TIDEGATE_HOSTS="a.example,b.example,c.example")
        done = run(PYTHON, "program.py", env=named, cwd=tmp_path)
    assert done.last.startswith("tidegate: 8 calls, 8 answered, 0 given up, 0 refusals retried")
    assert "not governed" not in done.last


def test_run_sdk_with_base_url_in_code_loses_no_row(tmp_path: Path) -> None:
    """The SDK's own retries are off and the limit is overrun: one ungoverned call is a lost row."""
    (tmp_path / "program.py").write_text(PROGRAM)
    with Simulator(Scenario(limiters=(Limit(limit=6, window=1.0),))) as provider:
        port = str(urlsplit(provider.url).port)
        done = run(PYTHON, "program.py", env=environ(PORT=port, ROWS="14"), cwd=tmp_path)
        received = provider.truth().total.received
    assert done.code == 0, done.lines
    assert done.last.startswith("tidegate: 14 calls, 14 answered")
    assert received >= 14


ELSEWHERE = """
import asyncio, os
import aiohttp, httpx, openai, requests

url = os.environ["URL"]
agent = {"user-agent": "OpenAI/Python 3.57.0"}

def refused(ask):
    try:
        answer = ask()
    except openai.RateLimitError:
        pass

async def all_async():
    async with openai.AsyncOpenAI(api_key="sk-secret", base_url=url, max_retries=0) as client:
        try:
            await client.responses.retrieve("resp_1")
        except openai.RateLimitError:
            pass
    async with aiohttp.ClientSession() as session, session.get(url + "/models", headers=agent) as answer:
        assert answer.status == 429

client = openai.OpenAI(api_key="sk-secret", base_url=url, max_retries=2)
refused(lambda: client.responses.retrieve("resp_1"))
refused(lambda: client.files.create(file=("a.jsonl", b"{}"), purpose="batch"))
asyncio.run(all_async())
assert requests.get(url + "/models", headers=agent).status_code == 429
assert httpx.get(url + "/prices").status_code == 429
"""


def test_run_refused_requests_to_other_endpoints_are_in_the_last_line(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(ELSEWHERE)
    with Server(lambda number, path: (429, {"retry-after": "0"}, b"{}")) as server:
        url = server.chat.removesuffix("/chat/completions")
        done = run(PYTHON, "program.py", env=environ(URL=url), cwd=tmp_path)
        received = len(server.seen)
    assert done.code == 0, done.lines
    # One is that of no SDK.
    assert done.last == (
        f"tidegate: no LLM call was governed; {received - 1} requests to other endpoints were refused with status 429: "
        "127.0.0.1 (only calls for inference are governed)"
    )
    assert received == 3 + 3 + 1 + 1 + 1 + 1


SOCKETS = """
import asyncio, threading
import aiohttp, openai, websockets.sync.client, websockets.sync.server

def answer(socket):
    for _ in socket:
        pass

server = websockets.sync.server.serve(answer, "127.0.0.1", 0)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"ws://127.0.0.1:{server.socket.getsockname()[1]}"

async def by_aiohttp():
    async with aiohttp.ClientSession() as session, session.ws_connect(f"{url}/v1/realtime?key=sk-secret"):
        pass

client = openai.OpenAI(api_key="sk-secret", websocket_base_url=f"{url}/v1")
with client.realtime.connect(model="m"), client.responses.connect():
    pass
asyncio.run(by_aiohttp())
with websockets.sync.client.connect(f"{url}/prices"):
    pass
server.shutdown()
"""


def test_run_websocket_sessions_are_named_in_the_last_line(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(SOCKETS)
    done = run(PYTHON, "program.py", env=environ(), cwd=tmp_path)
    assert done.code == 0, done.lines
    assert done.last == (
        "tidegate: no LLM call was governed; 3 websocket sessions with 1 host were not governed: 127.0.0.1 "
        "(Realtime and the Responses API over a websocket; only calls over HTTP can be governed)"
    )
    assert "secret" not in "".join(done.lines)
