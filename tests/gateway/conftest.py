"""One gateway process for all tests, in front of a simulator, of a server of the tests, and of a port without one."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.running import TIDEGATE, environ
from tests.gateway.upstream import PATIENCE, Upstream, serve
from tidegate.testing import Limit, Scenario, SimulatorProcess
from tidegate.transports.gateway_url import through

LIMIT, WINDOW = 6, 1.0


@dataclass
class Gateway:
    """A running gateway: its root, and the folder in which its counts are found."""

    root: str
    folder: Path
    printed: list[str]

    def to(self, url: str) -> str:
        return through(self.root, url)


@pytest.fixture(scope="session")
def provider() -> Iterator[SimulatorProcess]:
    """A provider that allows a few calls in each second, to each credential."""
    with SimulatorProcess(Scenario(limiters=(Limit(limit=LIMIT, window=WINDOW),))) as provider:
        yield provider


@pytest.fixture(scope="session")
def shared_upstream() -> Iterator[Upstream]:
    upstream = Upstream()
    server = serve(upstream)
    yield upstream
    server.shutdown()
    server.server_close()


@pytest.fixture
def upstream(shared_upstream: Upstream) -> Upstream:
    """The server of the tests, without the answers and requests of others."""
    shared_upstream.answers.clear()
    shared_upstream.received.clear()
    return shared_upstream


@pytest.fixture(scope="session")
def silent() -> Iterator[str]:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


@pytest.fixture(scope="session")
def gateway(
    provider: SimulatorProcess, shared_upstream: Upstream, silent: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("gateway")
    named = [word for url in (provider.url, shared_upstream.url, silent) for word in ("--upstream", url)]
    with running(named, folder, f"# {silent}") as gateway:
        yield gateway


@contextlib.contextmanager
def running(options: Sequence[str], folder: Path, last: str, **variables: str) -> Iterator[Gateway]:
    """A gateway of its own, whose printed lines are read up to one that begins with `last`."""
    process = subprocess.Popen(
        [*TIDEGATE, "gateway", "--port", "0", *options],
        env=environ(TMPDIR=str(folder), **variables),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        ready = process.stderr.readline()
        assert "gateway ready" in ready, ready + process.stderr.read()
        lines = [process.stdout.readline().rstrip()]
        found = re.fullmatch(r"export TIDEGATE_GATEWAY=(\S+)", lines[0])
        assert found is not None, lines
        while not lines[-1].startswith(last):
            lines.append(process.stdout.readline().rstrip())
        yield Gateway(found[1], folder, lines)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()
