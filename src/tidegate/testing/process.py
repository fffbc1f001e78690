"""The simulator in a process of its own, so that it shares no interpreter lock with the client under test."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

import tidegate.errors
from tidegate.errors import ConfigurationError
from tidegate.testing.addresses import Addresses
from tidegate.testing.scenario import Scenario
from tidegate.testing.text import plain
from tidegate.testing.truth import Truth

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
