"""The simulator in a process of its own, so that it shares no interpreter lock with the client under test.

The simulator behind a socket of this machine: in a thread of this process, or for as long as `serve` runs.

Under which addresses a simulated provider answers, wherever it runs.
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
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import tidegate.errors
from tidegate.errors import ConfigurationError
from tidegate.testing.accounts import Truth
from tidegate.testing.scenario import Scenario, plain
from tidegate.testing.server import AnswerText, SimulatedProvider
from tidegate.testing.wire import Connection


class Addresses:
    """The base URLs for the clients of each SDK; each raises RuntimeError while nothing runs."""

    def __init__(self) -> None:
        self._url = ""

    @property
    def url(self) -> str:
        """The base URL, without a slash at its end: Anthropic's and Azure's base."""
        if not self._url:
            raise RuntimeError("the simulator is not running: use it as a context, or start it")
        return self._url

    @property
    def openai_url(self) -> str:
        """The base URL of OpenAI clients."""
        return self.url + "/v1"

    @property
    def bedrock_url(self) -> str:
        """The `endpoint_url` of boto3's bedrock-runtime, and the base URL of the SDKs' own Bedrock clients."""
        return self.url

    @property
    def gemini_url(self) -> str:
        """The base URL of google-genai clients, for Gemini and Vertex AI alike: they add version and path."""
        return self.url


CLOSE_SECONDS = 5.0
"""How long a stopped process may take to go before it is killed."""


class SimulatorProcess(Addresses):
    """A simulated provider as a child process, with the surface of `Simulator`; `answers` take the place of a callable.

    The child ends with `close`, with the context, and when this process dies in whatever way: it watches a pipe.
    """

    def __init__(self, scenario: Scenario | None = None, *, port: int = 0) -> None:
        super().__init__()
        self._scenario = Scenario() if scenario is None else scenario
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None
        self._last: Truth | None = None

    @property
    def pid(self) -> int | None:
        """The child's process id, None where there is none."""
        return self._process.pid if self._process else None

    def start(self) -> SimulatorProcess:
        """Start the child, and return once it answers; raises RuntimeError with its complaint if it does not."""
        if self._process is not None:
            return self
        source = str(Path(tidegate.errors.__file__).parents[1])
        path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
        # Its own session: an interrupt at the terminal is ours to act on, and the pipe tells the child of our end.
        with tempfile.TemporaryFile() as complaints:
            process = self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tidegate.testing",
                    "--scenario=-",
                    "--until-stdin-closes",
                    f"--port={self._port}",
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,
            )
            line = _tell(process, self._scenario.to_json().encode() + b"\n")
            if not line:
                self._end()
                complaints.seek(0)
                raise RuntimeError(f"the simulator did not start: {complaints.read().decode(errors='replace').strip()}")
        self._url = json.loads(line)["url"]
        return self

    def truth(self) -> Truth:
        """The ground truth now; after `close`, as it was at the end."""
        if self._process is None and self._last is not None:
            return self._last
        return Truth.from_json(self._ask("GET", "truth"))

    def reset(self) -> None:
        """Begin anew at 0: full limiters, nothing counted; calls in flight are forgotten."""
        self._ask("POST", "reset")

    def configure(self, *, outage: float | None = None, outage_status: int | str = 503, **changes: Any) -> None:
        """Change fields of the scenario in mid-run; `outage` begins one of so many seconds now.

        Limiters of the same name and kind go on from what they hold. Raises ConfigurationError.
        """
        self._scenario = self._scenario.replace(**changes)
        body = {name: plain(value) for name, value in changes.items()}
        body |= {"outage": outage, "outage_status": outage_status}
        self._ask("POST", "configure", json.dumps(body).encode())

    def _ask(self, method: str, what: str, body: bytes | None = None) -> bytes:
        request = urllib.request.Request(f"{self.url}/_tidegate/{what}", data=body, method=method)
        # A proxy of the environment must not come between: this is one machine talking to itself.
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
            raise RuntimeError(f"{what}: {said}") from None

    def close(self) -> None:
        """Stop the child and wait for its end; a second time does nothing."""
        if self._process is None:
            return
        if self._url and self._process.poll() is None:
            with contextlib.suppress(OSError):
                self._last = self.truth()
        self._end()

    def _end(self) -> None:
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

    def __enter__(self) -> SimulatorProcess:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> SimulatorProcess:
        return self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _tell(process: subprocess.Popen[bytes], line: bytes) -> bytes:
    """The child's first line after it was told its scenario; empty where it has ended instead."""
    if process.stdin is None or process.stdout is None:
        return b""
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(line)
        process.stdin.flush()
    return process.stdout.readline()


def check_loopback(host: str) -> str:
    """`host`, if it is an address of this machine only; raises ConfigurationError for every other."""
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback:
        raise ConfigurationError("host", host, "a loopback address: the simulator serves this machine only")
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
        server.close()
        for connection in list(connections):
            connection.abort()
        await server.wait_closed()


class Simulator(Addresses):
    """A simulated provider on a free port of this machine, in a daemon thread with its own event loop.

    Use it as `with` or `async with` (it works under asyncio, trio and without either), or `start` and `close` it.
    `answer` makes the answer's text from the prompt; without it the scenario's `answers` decide, else a short echo.
    """

    def __init__(
        self,
        scenario: Scenario | None = None,
        *,
        answer: AnswerText | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        super().__init__()
        self._provider = SimulatedProvider(Scenario() if scenario is None else scenario, answer=answer)
        self._host = check_loopback(host)
        self._port = port
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Event | None = None

    @property
    def scenario(self) -> Scenario:
        """The scenario as it is now."""
        return self._provider.accounts.scenario

    def start(self) -> Simulator:
        """Listen, and return once requests are answered; the ground truth begins anew."""
        if self._thread is not None:
            return self
        ready: concurrent.futures.Future[str] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="tidegate-simulator", daemon=True)
        self._thread.start()
        try:
            self._url = ready.result()
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
        """The ground truth now; after `close`, as it was at the end."""
        return self._provider.accounts.truth()

    def reset(self) -> None:
        """Begin anew at 0: full limiters, nothing counted; calls in flight are forgotten."""
        self._provider.accounts.reset()

    def configure(self, *, outage: float | None = None, outage_status: int | str = 503, **changes: Any) -> None:
        """Change fields of the scenario in mid-run; `outage` begins one of so many seconds now.

        Limiters of the same name and kind go on from what they hold. Raises ConfigurationError.
        """
        self._provider.accounts.configure(changes, outage=outage, status=outage_status)

    def close(self) -> None:
        """Stop listening and drop every connection; a second time does nothing."""
        thread, self._thread = self._thread, None
        if thread is None or self._loop is None or self._stopped is None:
            return
        self._loop.call_soon_threadsafe(self._stopped.set)
        thread.join()
        self._url = ""

    def __enter__(self) -> Simulator:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Simulator:
        return self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def serve(
    scenario: Scenario,
    *,
    port: int = 0,
    host: str = "127.0.0.1",
    stop: threading.Event | None = None,
    on_ready: Callable[[str], None] | None = None,
    answer: AnswerText | None = None,
) -> Truth:
    """Serve until `stop` is set (None: until KeyboardInterrupt), and return the ground truth at the end.

    `on_ready(url)` is called once requests are answered.
    """
    stop = threading.Event() if stop is None else stop
    with Simulator(scenario, answer=answer, host=host, port=port) as simulator:
        if on_ready is not None:
            on_ready(simulator.url)
        with contextlib.suppress(KeyboardInterrupt):
            stop.wait()
        return simulator.truth()
