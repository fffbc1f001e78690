"""A Redis server for tests, started by them on its own port; it keeps nothing on disk unless it is given a folder."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

from tests.ports import END, free_port

PATIENCE = 300.0
GUARD = '"$@" & server=$!; read -r end; kill -KILL $server; wait $server'
"""A shell stands between the two, and ends the server with the process that started it."""


CLUSTER_BUS = 10_000
"""Distance of the port by which the servers of a cluster talk from the port of a server."""


class RedisServer:
    """One server. `stop` and `start` may follow each other; the port stays. Content is kept in `folder`, or is lost."""

    def __init__(self, folder: Path | None = None, *words: str) -> None:
        self._words = ["--save", "", "--appendonly", "no" if folder is None else "yes", *words]
        if folder is not None:
            self._words += ["--dir", str(folder)]
        found = shutil.which("redis-server") or shutil.which("valkey-server")
        if found is None:
            raise RuntimeError("these tests need redis-server: apt-get install redis-server")
        self._binary = found
        self.port = free_port(END - CLUSTER_BUS)
        self.url = f"redis://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the server; returns when it answers."""
        words = ["--port", str(self.port), "--bind", "127.0.0.1", *self._words]
        self._process = subprocess.Popen(
            ["sh", "-c", GUARD, "sh", self._binary, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "LC_ALL": "C"},
        )
        until = time.monotonic() + PATIENCE
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self.port), 1.0) as connection:
                    connection.sendall(b"PING\r\n")
                    if connection.recv(16).startswith((b"+PONG", b"-NOAUTH")):
                        return
            except OSError:
                pass
            assert time.monotonic() < until, "redis-server does not start"
            time.sleep(0.01)

    def within(self, folder: Path) -> None:
        self._words += ["--dir", str(folder)]

    @property
    def pid(self) -> int:
        with socket.create_connection(("127.0.0.1", self.port), 5.0) as connection:
            connection.sendall(b"INFO server\r\n")
            text = b""
            while b"process_id:" not in text or not text.partition(b"process_id:")[2].count(b"\r"):
                text += connection.recv(4096)
        return int(text.partition(b"process_id:")[2].split()[0])

    def kill(self) -> None:
        """Kills the server, as `stop`."""
        self.stop()

    def stop(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(PATIENCE)
            self._process = None
