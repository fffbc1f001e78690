"""Gateway of a run: its socket, its process, and the variables that lead the programs of the run to it.

Theory of operation. The run opens the socket itself, so the address is known at once and connections wait for the
gateway's process. That process loads its libraries at the first connection. It has a session of its own: a signal of
the terminal ends the command, and the end of the run ends the gateway.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tidegate.transports.gateway_url import VARIABLE, resolved, through

TOKEN_BYTES = 32
END_SECONDS = 10.0
"""Seconds that the gateway's process may take to end before it is killed. Chosen: it needs about one."""

MAX_FOLDERS_ABOVE = 32
"""Folders above the working one in which `.env` files are read, at most. Chosen: deeper than projects are."""

BASE_URL = re.compile(r"_(?:BASE_URL|API_BASE|API_HOST|API_URL|API_ENDPOINT|BASE_PATH|HOST)\Z")
"""Ends of the names of variables that name a server."""

LOCAL_NAMES = "127.0.0.1,localhost,::1"


class Redirection(NamedTuple):
    """Changed variables of a run's programs, the servers of the user's own base URLs, and the variables left alone.

    `kept` maps a variable that is not changed to the reason.
    """

    changed: dict[str, str]
    upstreams: list[str]
    kept: dict[str, str]


def redirection(given: Mapping[str, str], root: str, folder: Path) -> Redirection:
    """Return the variables that lead programs with the environment `given` to the gateway at `root`.

    A variable that the user has set leads to that server. One that a `.env` file names, or a similar one that names a
    server, stays unset: the file does not replace it, so the program would send the server's key elsewhere.
    """
    # A run without a gateway starts sooner without the provider tables.
    from tidegate.providers import GATEWAY_VARIABLES

    changed: dict[str, str] = {VARIABLE: root}
    upstreams: list[str] = []
    kept: dict[str, str] = {}
    in_files = dict(_names_in_files(folder))
    ours = {row.name for row in GATEWAY_VARIABLES}
    for name, default, _ in GATEWAY_VARIABLES:
        own = given.get(name, "").strip()
        if own:
            url = resolved(own)
            try:
                changed[name] = through(root, url)
            except ValueError:
                kept[name] = "its value is no URL that the gateway can stand for"
                continue
            upstreams.append(url)
        elif name in in_files:
            kept[name] = f"{in_files[name]} sets it"
        elif default:
            maker = name.partition("_")[0]
            similar = [
                other
                for other, value in (*given.items(), *in_files.items())
                if other != name and value and other.partition("_")[0] == maker and BASE_URL.search(other)
            ]
            named = [other for other in similar if other not in ours or given.get(other, "") or other in in_files]
            if named:
                kept[name] = f"{named[0]} names another server"
            else:
                changed[name] = through(root, default)
    return Redirection(changed | _without_proxy(given), upstreams, kept)


def _without_proxy(given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that keep requests to the gateway away from the user's proxies."""
    proxies = ("http_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY")
    if not any(given.get(name) for name in proxies):
        return {}
    return {name: ",".join(filter(None, [given.get(name, ""), LOCAL_NAMES])) for name in ("NO_PROXY", "no_proxy")}


def _names_in_files(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the variables that `.env` files of a folder and of those above it set, each with the file."""
    pattern = re.compile(r"^[ \t]*(?:export[ \t]+)?([A-Z][A-Z0-9_]*)[ \t]*[=:][ \t]*[^\s#]", re.MULTILINE)
    for above in [folder, *folder.parents][:MAX_FOLDERS_ABOVE]:
        for path in sorted(above.glob(".env*")):
            with contextlib.suppress(OSError):
                for name in pattern.findall(path.read_text("utf-8", "replace")):
                    yield name, str(path)


class GatewayProcess:
    """Process of a run's gateway; raises `OSError` where it cannot be started.

    `environ` is that of a governed process of the run, with the user's own base URLs.
    """

    def __init__(self, environ: Mapping[str, str], folder: Path) -> None:
        token = secrets.token_urlsafe(TOKEN_BYTES)
        with socket.create_server(("127.0.0.1", 0), backlog=socket.SOMAXCONN) as listener:
            root = f"http://127.0.0.1:{listener.getsockname()[1]}/{token}"
            self.redirection = redirection(environ, root, folder)
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tidegate.server.gateway", str(listener.fileno())],
                env={name: value for name, value in environ.items() if name != VARIABLE},
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=(listener.fileno(),),
                start_new_session=True,
            )
        start = {"token": token, "upstreams": self.redirection.upstreams}
        assert self._process.stdin is not None
        # The token is not on the command line, which every user of the machine can read.
        self._process.stdin.write(json.dumps(start).encode() + b"\n")
        self._process.stdin.flush()

    def environ(self, given: Mapping[str, str]) -> dict[str, str]:
        return {**given, **self.redirection.changed}

    def end(self) -> None:
        """End the process, so that its counts and its learned limits are complete."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
