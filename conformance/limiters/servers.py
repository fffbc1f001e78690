"""The limiters as processes: each in a temporary folder, on a free loopback port, until its run ends."""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.environments import HOME, Environment
from bench.peers.node import NodeEnvironment

HERE = Path(__file__).parent
FILES, PROGRAMS = HERE / "files", HERE / "programs"
PINS = HERE / "pins.txt"

NODE = NodeEnvironment(folder=HOME / "limiters" / "node", packages=HERE / "node" / "package.json")
WEB = Environment(
    folder=HOME / "limiters" / "web",
    pins=PINS,
    requirements=("slowapi==0.1.10", "limits==5.8.0", "uvicorn==0.54.0", "starlette==1.10.0", "aiohttp==3.14.5"),
    ours=False,
)
LITELLM = Environment(
    folder=HOME / "limiters" / "litellm", pins=PINS, requirements=("litellm[proxy]==1.106.2",), ours=False
)
RAY = Environment(
    folder=HOME / "limiters" / "ray", pins=PINS, requirements=("ray[serve]==2.60.0", "aiohttp==3.14.5"), ours=False
)

START_SECONDS = 120.0
"""How long a limiter may take until it listens: Ray and the LiteLLM proxy need 10 to 30 s on two busy cores."""

END_SECONDS = 10.0
"""How long a limiter may take to end when asked; then it is killed."""

PLAIN_STATUS = r"^POST (\d+)"
UVICORN_STATUS = r'"POST \S+ HTTP/1\.1" (\d+)'
RAY_STATUS = r"POST /v1\S* (\d+) "


class NotStartedError(Exception):
    """A limiter is not installed, or does not listen."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where one limiter runs: its folder, its port and that of the stub behind it."""

    folder: Path
    port: int
    upstream: int

    def write(self, name: str, more: Mapping[str, str] | None = None) -> Path:
        """Write a file of `files` with the ports of this place in it."""
        text = (FILES / name).read_text()
        known = {"port": str(self.port), "upstream": str(self.upstream), "user": getpass.getuser()}
        for key, value in (known | dict(more or {})).items():
            text = text.replace(f"@{key}@", value)
        path = self.folder / name
        path.write_text(text)
        return path

    @property
    def url(self) -> str:
        """Return the address of the stub for a call."""
        return f"http://127.0.0.1:{self.upstream}/v1/chat/completions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The processes of one limiter.

    commands  the limiter first, then what reads its log
    settings  environment variables
    log       a pattern of files in the folder: the access log; the limiter's own output is `output.0`
    status    finds the status of a request in the log
    ready     a file that is there once the limiter answers, where listening does not say so
    """

    commands: Sequence[Sequence[str]]
    settings: Mapping[str, str] = field(default_factory=dict)
    log: str = "output.0"
    status: str = PLAIN_STATUS
    ready: Path | None = None


Limiter = Callable[[Place], Server]
"""Prepares the files of a limiter in a place, and returns its processes."""


def program(name: str, package: str) -> str:
    """Return the path of a program that a Debian package installs."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    if found is None:
        raise NotStartedError(f"{name} not installed: no such program; apt-get install {package} brings it")
    return found


def nginx(limits: str, zones: str) -> Limiter:
    """Nginx with these lines in its location, and these in its http block."""

    def prepare(place: Place) -> Server:
        place.write("nginx.conf", {"limits": limits, "zones": zones})
        command = [program("nginx", "nginx-light"), "-p", str(place.folder), "-c", "nginx.conf", "-e", "error.log"]
        return Server(commands=[command], log="access.log")

    return prepare


def haproxy(configuration: str) -> Limiter:
    """HAProxy with one of the configurations of `files`."""

    def prepare(place: Place) -> Server:
        path = place.write(configuration)
        return Server(commands=[[program("haproxy", "haproxy"), "-db", "-f", str(path)]])

    return prepare


def varnish(place: Place) -> Server:
    """Varnish with vsthrottle: its log is written by varnishncsa."""
    vcl, state = place.write("throttle.vcl"), str(place.folder / "varnish")
    daemon = [program("varnishd", "varnish varnish-modules"), "-F", "-j", "none", "-n", state]
    daemon += ["-a", f"127.0.0.1:{place.port}", "-f", str(vcl), "-s", "malloc,32m", "-p", "thread_pool_min=500"]
    log = [program("varnishncsa", "varnish"), "-n", state, "-t", "60", "-F", "%m %s"]
    return Server(commands=[daemon, log], log="output.1")


def node(kind: str) -> Limiter:
    """One of the kinds of node/limiters.cjs."""

    def prepare(place: Place) -> Server:
        NODE.make()
        command = [program("node", "nodejs"), str(HERE / "node" / "limiters.cjs"), kind, str(place.port)]
        settings = {"NODE_PATH": str(NODE.folder / "node_modules"), "NODE_ENV": "production"}
        return Server(commands=[[*command, str(place.upstream)]], settings=settings)

    return prepare


def uvicorn(app: str, *options: str, **settings: str) -> Limiter:
    """One of the applications of `programs` under uvicorn."""

    def prepare(place: Place) -> Server:
        WEB.make()
        command = [str(WEB.bin / "python"), "-m", "uvicorn", app, "--app-dir", str(PROGRAMS)]
        command += ["--port", str(place.port), "--no-use-colors", *options]
        given = {"UPSTREAM": place.url, "PYTHONUNBUFFERED": "1", **settings}
        return Server(commands=[command], settings=given, status=UVICORN_STATUS)

    return prepare


def litellm(**settings: str) -> Limiter:
    """The LiteLLM proxy, whose keys have the limits of the settings."""

    def prepare(place: Place) -> Server:
        LITELLM.make()
        path = place.write("litellm.yaml")
        shutil.copy(PROGRAMS / "litellm_keys.py", place.folder)
        command = [str(LITELLM.bin / "litellm"), "--config", str(path), "--host", "127.0.0.1"]
        given = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(place.folder)}
        # The proxy refuses to start without a strong key of an administrator, whom nothing here needs.
        given["LITELLM_MASTER_KEY"] = f"sk-{secrets.token_hex(24)}"
        return Server(
            commands=[[*command, "--port", str(place.port), "--telemetry", "False"]],
            settings={**given, **settings},
            status=UVICORN_STATUS,
        )

    return prepare


def ray(place: Place) -> Server:
    """Ray Serve with a short queue: its proxy writes the access log."""
    RAY.make()
    ready = place.folder / "ready"
    settings = {"PORT": str(place.port), "UPSTREAM": place.url, "READY": str(ready), "RAY_USAGE_STATS_ENABLED": "0"}
    # The sockets below this folder have names of some 60 characters; a Unix socket's path has 107 at most.
    settings["RAY_FOLDER"] = str(place.folder)
    command = [str(RAY.bin / "python"), str(PROGRAMS / "ray_app.py")]
    log = "session_2*/logs/serve/proxy_*.log"
    return Server(commands=[command], settings=settings, log=log, status=RAY_STATUS, ready=ready)


def free_port() -> int:
    """Return a loopback port that is free now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


@contextlib.contextmanager
def running(server: Server, place: Place) -> Iterator[None]:
    """Start the processes of a limiter, wait until it answers, and end them."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for number, command in enumerate(server.commands):
            if number:
                time.sleep(1.0)  # a reader of a log attaches to what the limiter has made by then
            with (place.folder / f"output.{number}").open("wb") as output:
                processes.append(
                    subprocess.Popen(
                        command,
                        cwd=place.folder,
                        env={**os.environ, "HOME": str(place.folder), **server.settings},
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )
            if not number:
                _wait(server, place, processes[0])
        yield
    finally:
        for process in reversed(processes):
            _end(process)


def _wait(server: Server, place: Place, process: subprocess.Popen[bytes]) -> None:
    ends = time.monotonic() + START_SECONDS
    while not _answers(server, place):
        if process.poll() is not None or time.monotonic() > ends:
            how = "still starting" if process.poll() is None else f"exit code {process.returncode}"
            said = (place.folder / "output.0").read_text(errors="replace").strip().splitlines()[-3:]
            raise NotStartedError(f"{Path(process.args[0]).name} not listening: {how}; it said {' / '.join(said)!r}")  # type: ignore[index, arg-type]
        time.sleep(0.1)


def _answers(server: Server, place: Place) -> bool:
    if server.ready is not None:
        return server.ready.exists()
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", place.port)) == 0


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and those that it started, which share its group."""
    for name in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, name)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
