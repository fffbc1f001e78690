"""Nothing that a provider writes is in what processes share: keys in its answers are in no log, file or table."""

from __future__ import annotations

import base64
import json
import os
import random
import re
import string
import subprocess
import sys
import uuid
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import psycopg
import pytest
from redis import Redis

from tests.cli.running import TIDEGATE
from tests.postgres import served
from tests.shared_log.redis_server import RedisServer
from tests.shared_log.test_processes import go, line

pytestmark = pytest.mark.real

PART = 12
"""Characters of a key that must not be found."""

MODELS = ("rate", "money", "day", "overload", "wrong", "unpaid", "good")

WORKER = """
import json, sys
import httpx, tidegate

url, token, models = sys.argv[1], sys.argv[2], sys.argv[3].split(",")
with httpx.Client(timeout=60) as client:
    for each in sys.stdin:
        for model in models * 2:
            client.post(
                url + "/v1/chat/completions",
                json={"model": model, "messages": [{"role": "user", "content": "x"}]},
                headers={"authorization": "Bearer " + token},
            )
        seen = tidegate.registry().snapshot().keys.values()
        print(json.dumps([min(key.members for key in seen), "".join(key.share_lost for key in seen)]), flush=True)
"""


def made_keys() -> list[str]:
    draw = random.Random(7)

    def text(letters: str, length: int) -> str:
        return "".join(draw.choice(letters) for _ in range(length))

    mixed, hexadecimal = string.ascii_letters + string.digits, string.digits + "abcdef"
    prefixes = ("sk-proj-", "sk-", "sk-ant-api03-", "gsk_", "AIza", "xai-", "hf_", "r8_", "pplx-", "tgp_v1_", "")
    found = [prefix + text(mixed, 40) for prefix in prefixes]
    found += [text(hexadecimal, length) for length in (32, 40, 64)]
    found += ["AKIA" + text(string.ascii_uppercase + string.digits, 16), text(mixed + "+/", 40)]
    found += [str(uuid.UUID(int=draw.getrandbits(128))) for _ in range(2)]
    found += [base64.urlsafe_b64encode(draw.randbytes(32)).decode().rstrip("=") for _ in range(3)]
    found += [f"{text(mixed, 20)}.{text(mixed, 40)}.{text(mixed, 43)}", f"Usr{text(mixed, 14)}:{text(mixed, 20)}"]
    found += [text(string.ascii_lowercase, 24), text(string.ascii_lowercase, 16) + "-" + text(string.digits, 16)]
    found += ["org-" + text(mixed, 24), "proj_" + text(mixed, 24), text(string.digits, 24)]
    found += [text(mixed + "-_", 48) for _ in range(30 - len(found))]
    assert len({*found}) == 30
    return found


KEYS = made_keys()


class Provider(BaseHTTPRequestHandler):
    """It repeats keys wherever an answer may have a text, in turn."""

    protocol_version = "HTTP/1.1"
    number = 0

    def do_POST(self) -> None:
        model = json.loads(self.rfile.read(int(self.headers["content-length"])))["model"]
        Provider.number += 1
        keys = [KEYS[(Provider.number + place) % len(KEYS)] for place in range(len(KEYS))]
        status = {"rate": 429, "money": 429, "day": 429, "overload": 503, "wrong": 401, "unpaid": 402, "good": 200}
        codes = {"money": "insufficient_quota", "wrong": "invalid_api_key", "rate": keys[0]}
        limit = "requests per day" if model == "day" else "refused"
        quotas = [{"quotaMetric": keys[6], "quotaId": f"Requests{keys[7]}PerDay", "quotaValue": "100"}]
        failure = {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": quotas}
        error = {
            "message": f"{limit}: key {keys[1]} of {keys[2]}; {self.path}",
            "type": keys[3], "param": keys[4], "code": codes.get(model), "status": keys[5],
            "details": [failure] if model == "day" else [],
        }  # fmt: skip
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        good = {"id": keys[8], "model": keys[9], "usage": usage, "system_fingerprint": keys[10], "choices": []}
        content = json.dumps(good if model == "good" else {"error": error, "request_id": keys[11]}).encode()
        self.send_response(status[model])
        for name, value in (
            ("content-type", "application/json"), ("content-length", str(len(content))), ("retry-after", "0"),
            ("x-request-id", keys[12]), ("openai-organization", keys[13]), ("cf-ray", keys[14]),
            ("x-amzn-errortype", keys[15]), ("www-authenticate", f'Bearer realm="{keys[16]}"'),
            ("set-cookie", keys[17]), ("ratelimit-policy", f'"{keys[18]}";q=1000;w=60, "{keys[19]}";q=5000;w=3600'),
            ("ratelimit", f'"{keys[18]}";r=900;t=30'), ("x-ratelimit-type", keys[20]), ("x-ratelimit-limit", keys[21]),
            (f"x-ratelimit-limit-{keys[22].replace(':', '-').replace('/', '-')}-hour", "6000"),
            (f"x-ratelimit-remaining-{keys[22].replace(':', '-').replace('/', '-')}-hour", "5000"),
            ("x-ratelimit-reset-requests", keys[23]), ("x-should-retry", keys[24]), ("openai-version", keys[25]),
        ):  # fmt: skip
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def provider() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def unpacked(data: bytes, depth: int = 3) -> bytes:
    """The bytes, and what is compressed or encoded in them."""
    found, place = [data], data.find(b"\x78")
    while place >= 0 and depth:
        if data[place + 1 : place + 2] in (b"\x01", b"\x9c", b"\xda", b"\x5e"):
            with suppress(zlib.error):
                found.append(unpacked(zlib.decompressobj().decompress(data[place:]), depth - 1))
        place = data.find(b"\x78", place + 1)
    for text in re.findall(rb"[A-Za-z0-9+/]{16,}", data):
        found.append(base64.b64decode(text[: len(text) // 4 * 4]))
    return b"".join(found)


def leaks(data: bytes) -> list[str]:
    lower = unpacked(data).lower()
    parts = {key[place : place + PART].lower() for key in KEYS for place in range(len(key) - PART + 1)}
    return sorted(part for part in parts if part.encode() in lower)


def files_in(*folders: Path) -> bytes:
    found = []
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.name.endswith(".sock"):
                found += [str(path).encode(), path.read_bytes()]
    return b"\n".join(found)


class HostPlace:
    def __init__(self, folder: Path) -> None:
        self.share = str(folder / "shared")
        Path(self.share).mkdir(mode=0o700)

    def content(self) -> bytes:
        return files_in(Path(self.share))


class RedisPlace:
    def __init__(self, server: RedisServer, folder: Path) -> None:
        self.share, self._folder = server.url, folder

    def content(self) -> bytes:
        with Redis.from_url(self.share) as client:
            names = list(client.scan_iter())
            found = [client.dump(name) or b"" for name in names]
            for name in names:
                kind = client.type(name)
                if kind == b"list":
                    found += client.lrange(name, 0, -1)
                elif kind == b"hash":
                    found += [part for pair in client.hgetall(name).items() for part in pair]
                else:
                    found.append(client.get(name) or b"")
            client.save()
        return b"\n".join([*found, files_in(self._folder)])


class PostgresPlace:
    def __init__(self, url: str) -> None:
        self.share = url

    def content(self) -> bytes:
        with psycopg.connect(self.share) as connection:
            names = connection.execute("select tablename from pg_tables where tablename like 'tidegate%'").fetchall()
            found = []
            for (name,) in names:
                with connection.cursor().copy(f"copy {name} to stdout (format binary)".encode()) as rows:
                    found += [bytes(part) for part in rows]
        return b"".join(found)


@contextmanager
def place_of(kind: str, folder: Path) -> Iterator[HostPlace | RedisPlace | PostgresPlace]:
    if kind == "file":
        yield HostPlace(folder)
    elif kind == "redis":
        (kept := folder / "redis").mkdir()
        server = RedisServer(kept)
        server.start()
        try:
            yield RedisPlace(server, kept)
        finally:
            server.stop()
    else:
        with served() as postgresql:
            yield PostgresPlace(postgresql.url("postgres"))


@pytest.mark.parametrize("kind", ["file", "redis", "postgresql"])
def test_no_key_of_an_answer_is_in_what_processes_share(kind: str, tmp_path: Path, provider: str) -> None:
    temporary, saved = tmp_path / "tmp", tmp_path / "state.json"
    temporary.mkdir()
    found: list[bytes] = []
    with place_of(kind, tmp_path) as place, ExitStack() as stack:
        environment = {
            **os.environ,
            "TIDEGATE_SHARE": place.share,
            "TIDEGATE_MAX_WAIT": "0.2",
            "TMPDIR": str(temporary),
        }
        environment.pop("TIDEGATE_STATUS", None)
        processes: list[subprocess.Popen[str]] = []

        def round_of(*members: subprocess.Popen[str]) -> list[object]:
            go(members)
            said = [json.loads(line(each)) for each in members]
            found.append(place.content() + files_in(temporary))
            return said

        for _ in range(2):
            state = ["--state", str(saved)] if not processes else []
            process = subprocess.Popen(
                [*TIDEGATE, "run", *state, sys.executable, "-c", WORKER,
                 provider, KEYS[0], ",".join(MODELS)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
            )  # fmt: skip
            stack.callback(process.communicate)
            stack.callback(process.kill)
            processes.append(process)
            round_of(process)
        for _ in range(60):
            said = round_of(*processes)
            if said == [[2, ""]] * 2:
                break
        round_of(processes[0])
        round_of(processes[1])
        assert said == [[2, ""]] * 2, "both processes share all keys"
        for process in processes:
            process.communicate()
    everything = b"\n".join({*found}) + saved.read_bytes()
    assert b"quota_exhausted" in unpacked(everything), "the refusals are there"
    assert b"tidegate" in everything
    assert b"requests-minute-" in everything
    assert leaks(everything) == []
