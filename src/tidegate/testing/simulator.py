"""The simulator behind a socket of this machine: in a thread of this process, or for as long as `serve` runs."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import ipaddress
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from tidegate.errors import ConfigurationError
from tidegate.testing.addresses import Addresses
from tidegate.testing.scenario import Scenario
from tidegate.testing.server import AnswerText, Provider
from tidegate.testing.truth import Truth
from tidegate.testing.wire import Connection


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
    provider: Provider, host: str, port: int, on_ready: Callable[[str], None], stopped: asyncio.Event
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
        self._provider = Provider(Scenario() if scenario is None else scenario, answer=answer)
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
