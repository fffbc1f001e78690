"""Simulated provider behind a socket of this machine: in a thread (`Simulator`) or in a child process.

A child process (`SimulatorProcess`) shares no interpreter lock with the client under test.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import ipaddress
import json
import os
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import tidegate.errors
from tidegate.errors import ConfigurationError
from tidegate.testing.accounts import Truth
from tidegate.testing.scenario import Scenario
from tidegate.testing.server import AnswerText, RequestLog, SimulatedProvider
from tidegate.testing.wire import Connection
from tidegate.transports import stub_servers


class Addresses(ABC):
    """Base URLs for the clients of each SDK, while the simulator runs; it starts and stops with a `with` block.

    Each URL raises RuntimeError while the simulator does not run.
    """

    def __init__(self) -> None:
        self._url = ""

    @property
    def url(self) -> str:
        """Return the base URL without a slash at its end: that of Anthropic and Azure."""
        if not self._url:
            raise RuntimeError("simulator not running: it was not started; use it in a `with` block, or call start()")
        return self._url

    @property
    def openai_url(self) -> str:
        """Return the base URL of OpenAI clients."""
        return self.url + "/v1"

    @property
    def bedrock_url(self) -> str:
        """Return the `endpoint_url` of boto3's bedrock-runtime, and base URL of the SDKs' Bedrock clients."""
        return self.url

    @property
    def gemini_url(self) -> str:
        """Return the base URL of google-genai clients, for Gemini and Vertex AI: they add version and path."""
        return self.url

    @abstractmethod
    def start(self) -> Self:
        """Start, and return once requests are answered."""

    @abstractmethod
    def close(self) -> None:
        """Stop. A second call does nothing."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_raised: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self.start()

    async def __aexit__(self, *_raised: object) -> None:
        self.close()


CLOSE_SECONDS = 5.0
"""Seconds until a stopped process is killed. Chosen: a process that does not hang ends in far less."""


class SimulatorProcess(Addresses):
    """Simulated provider in a child process, with the interface of `Simulator`; `answers` replace a callable.

    The child ends with `close`, with the context, and when this process dies for any reason: it watches a pipe.
    """

    def __init__(self, scenario: Scenario | None = None, *, port: int = 0) -> None:
        super().__init__()
        self._scenario = Scenario() if scenario is None else scenario
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None
        self._last: Truth | None = None

    @property
    def pid(self) -> int | None:
        """Return the child's process id; None without a child."""
        return self._process.pid if self._process else None

    def start(self) -> Self:
        """Start the child, and return once it answers. Raise RuntimeError with its error text if it fails."""
        if self._process is not None:
            return self
        source = str(Path(tidegate.errors.__file__).parents[1])
        path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
        # A separate session: only this process gets an interrupt of the terminal; the pipe ends the child with it.
        with tempfile.TemporaryFile() as errors:
            process = self._process = subprocess.Popen(
                [sys.executable, "-m", "tidegate.testing"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,
            )
            start = {"port": self._port, "scenario": self._scenario.model_dump(mode="json", exclude_defaults=True)}
            line = _tell(process, json.dumps(start).encode() + b"\n")
            if not line:
                self._end()
                errors.seek(0)
                raise RuntimeError(f"simulator not started: {errors.read().decode(errors='replace').strip()}")
        self._url = json.loads(line)["url"]
        stub_servers.add_simulator(self._url)
        return self

    def truth(self) -> Truth:
        """Return the ground truth now; after `close`, that at the end."""
        if self._process is None and self._last is not None:
            return self._last
        return Truth.from_json(self._ask("GET", "truth"))

    def reset(self) -> None:
        """Restart at 0, with full limiters and no counts; calls in flight are forgotten."""
        self._ask("POST", "reset")

    def configure(self, *, outage: float | None = None, outage_status: int | str = 503, **changes: Any) -> None:
        """Change fields of the scenario during the run. `outage` begins an outage of that many seconds now.

        Limiters of the same name and kind keep their content. Raise ConfigurationError.
        """
        self._scenario = self._scenario.replace(**changes)
        body = self._scenario.model_dump(mode="json", include=set(changes))
        body |= {"outage": outage, "outage_status": outage_status}
        self._ask("POST", "configure", json.dumps(body).encode())

    def _ask(self, method: str, what: str, body: bytes | None = None) -> bytes:
        request = urllib.request.Request(f"{self.url}/_tidegate/{what}", data=body, method=method)
        # Ignore proxies of the environment: the traffic stays on this machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=30) as response:
                content: bytes = response.read()
                return content
        except urllib.error.HTTPError as error:
            with error:
                said = json.loads(error.read())
            if error.code == 422:
                raise ConfigurationError(said["field"], said["value"], said["bound"]) from None
            raise RuntimeError(f"simulator request {what} failed: {said}") from None

    def close(self) -> None:
        """Stop the child and wait for its end. A second call does nothing."""
        if self._process is None:
            return
        if self._url and self._process.poll() is None:
            with contextlib.suppress(OSError):
                self._last = self.truth()
        self._end()

    def _end(self) -> None:
        stub_servers.remove_simulator(self._url)
        process, self._process, self._url = self._process, None, ""
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _tell(process: subprocess.Popen[bytes], line: bytes) -> bytes:
    """Send the scenario to the child, and return its first line; empty if it has ended instead."""
    if process.stdin is None or process.stdout is None:
        return b""
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(line)
        process.stdin.flush()
    return process.stdout.readline()


def check_loopback(host: str) -> str:
    """Return `host` if it is an address of this machine only; raise ConfigurationError for any other."""
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback:
        raise ConfigurationError("host", host, "it must be a loopback address: the simulator serves this machine only")
    return host


async def _serve(
    provider: SimulatedProvider, host: str, port: int, on_ready: Callable[[str], None], stopped: asyncio.Event
) -> None:
    connections: set[Connection] = set()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Connection(provider.on_request, connections), check_loopback(host), port, backlog=4096
    )
    try:
        bound = server.sockets[0].getsockname()[1]
        on_ready(f"http://[{host}]:{bound}" if ":" in host else f"http://{host}:{bound}")
        await stopped.wait()
    finally:
        # A connection that is accepted in this moment would stay open: the event loop makes it in a task, and that
        # fails after the close. So accept no more, let those tasks and the calls end, then close.
        for listener in server.sockets:
            with contextlib.suppress(NotImplementedError):
                loop.remove_reader(listener.fileno())
        _abort(connections)
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)
        server.close()
        _abort(connections)
        await server.wait_closed()


def _abort(connections: set[Connection]) -> None:
    for connection in list(connections):
        connection.abort()


class Simulator(Addresses):
    """Simulated provider on a port of this machine (0: a free one), in a daemon thread with its own event loop.

    Use it as `with` or `async with` (under asyncio, trio or neither), or call `start` and `close`. `answer` makes the
    answer's text from the prompt. Without it the scenario's `answers` decide, else a short echo. `log` is called for
    each answer, on that thread.
    """

    def __init__(
        self,
        scenario: Scenario | None = None,
        *,
        answer: AnswerText | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        log: RequestLog | None = None,
    ) -> None:
        super().__init__()
        self._provider = SimulatedProvider(Scenario() if scenario is None else scenario, answer=answer, log=log)
        self._host = check_loopback(host)
        self._port = port
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Event | None = None

    @property
    def scenario(self) -> Scenario:
        """Return the present scenario."""
        return self._provider.accounts.scenario

    def start(self) -> Self:
        """Listen, and return once requests are answered. The ground truth restarts."""
        if self._thread is not None:
            return self
        ready: concurrent.futures.Future[str] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="tidegate-simulator", daemon=True)
        self._thread.start()
        try:
            self._url = ready.result()
            stub_servers.add_simulator(self._url)
        except BaseException:
            self._thread.join()
            self._thread = None
            raise
        self._provider.accounts.reset()
        return self

    def _run(self, ready: concurrent.futures.Future[str]) -> None:
        async def main() -> None:
            self._loop = asyncio.get_running_loop()
            self._stopped = asyncio.Event()
            await _serve(self._provider, self._host, self._port, ready.set_result, self._stopped)

        try:
            asyncio.run(main())
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    def truth(self) -> Truth:
        """Return the ground truth now; after `close`, that at the end."""
        return self._provider.accounts.truth()

    def reset(self) -> None:
        """Restart at 0, with full limiters and no counts; calls in flight are forgotten."""
        self._provider.accounts.reset()

    def configure(self, *, outage: float | None = None, outage_status: int | str = 503, **changes: Any) -> None:
        """Change fields of the scenario during the run. `outage` begins an outage of that many seconds now.

        Limiters of the same name and kind keep their content. Raise ConfigurationError.
        """
        self._provider.accounts.configure(changes, outage=outage, status=outage_status)

    def close(self) -> None:
        """Stop listening and drop every connection. A second call does nothing."""
        thread, self._thread = self._thread, None
        if thread is None or self._loop is None or self._stopped is None:
            return
        self._loop.call_soon_threadsafe(self._stopped.set)
        thread.join()
        stub_servers.remove_simulator(self._url)
        self._url = ""


def serve(
    scenario: Scenario,
    *,
    port: int = 0,
    host: str = "127.0.0.1",
    stop: threading.Event | None = None,
    on_ready: Callable[[str], None] | None = None,
    answer: AnswerText | None = None,
    log: RequestLog | None = None,
) -> Truth:
    """Serve until `stop` is set (None: until KeyboardInterrupt), and return the ground truth at the end.

    Call `on_ready(url)` once requests are answered, and `log` for each answer, on the simulator's thread.
    """
    stop = threading.Event() if stop is None else stop
    with Simulator(scenario, answer=answer, host=host, port=port, log=log) as simulator:
        if on_ready is not None:
            on_ready(simulator.url)
        with contextlib.suppress(KeyboardInterrupt):
            stop.wait()
        return simulator.truth()
