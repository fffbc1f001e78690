"""Processes of a run that are ungoverned, and hosts whose inference calls are not governed.

A process that cannot install tidegate writes the reason to a file in the run's folder, and removes it after a later
success. A process with ungoverned calls to inference paths counts them by host in a mapped file, so the counts survive
a kill -9. The file holds the host alone: no path, no query, no header.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from tidegate.admission.key_hook import SOCKET
from tidegate.launch import UNGOVERNED
from tidegate.launch.shared_file import HEADER, UnreadableFile, packed, unpacked

WITHOUT = "without-"
"""Prefix of the files that `site/sitecustomize.py` writes for a Python without tidegate."""

SUFFIX = ".hosts"

ROWS = 64
"""Rows of one process's file, 16 kB; row 0 counts the calls to all hosts that have no row. Raising it makes every file
larger. Chosen: a program calls few hosts that are not governed."""

ROW = struct.Struct("=q248s")
"""Layout of a row: a count, and the host as UTF-8, padded with zeros. A DNS name has at most 253 characters; 248 bytes
are kept."""


class HostCounts:
    """Ungoverned calls of this process by host, in its own mapped file, or in plain memory where there can be none."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.forked()

    def forked(self) -> None:
        """Restart the counts at zero: the earlier ones are the parent's."""
        self._lock = threading.Lock()
        self._rows: dict[str, int] = {}
        self._memory: mmap.mmap | bytearray | None = None

    def count(self, host: str) -> None:
        """Count one call."""
        with self._lock:
            if self._memory is None:
                self._memory = self._make()
            row = self._rows.get(host)
            if row is None:
                row = len(self._rows) + 1
                if row < ROWS:
                    self._rows[host] = row
                    ROW.pack_into(self._memory, _at(row), 0, host.encode("utf-8", "replace"))
                else:
                    row = 0
            number, name = ROW.unpack_from(self._memory, _at(row))
            ROW.pack_into(self._memory, _at(row), number + 1, name)

    def _make(self) -> mmap.mmap | bytearray:
        path = Path(self._folder) / f"{os.getpid()}-{time.time_ns()}{SUFFIX}"
        blank = packed(bytes(ROWS * ROW.size))
        try:
            with path.open("x+b", buffering=0) as file:
                # Write the zeros instead of extending the file: a store into a page without disk space ends the
                # program.
                file.write(blank)
                return mmap.mmap(file.fileno(), len(blank))
        except OSError:
            return bytearray(blank)


def _at(row: int) -> int:
    return HEADER.size + row * ROW.size


class Ungoverned(NamedTuple):
    """Ungoverned calls by host, calls to further hosts, and the reason of each ungoverned process.

    `sockets` counts websocket sessions with inference servers by host.
    """

    hosts: Counter[str]
    others: int = 0
    processes: tuple[str, ...] = ()
    sockets: Counter[str] = Counter()  # noqa: RUF012  # never changed

    @property
    def calls(self) -> int:
        """Return the ungoverned calls over all hosts."""
        return self.hosts.total() + self.others


def read(folder: Path) -> Ungoverned:
    """Return the current counts and reasons of a run's processes."""
    hosts: Counter[str] = Counter()
    sockets: Counter[str] = Counter()
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            content = unpacked(path.read_bytes())
        except UnreadableFile:
            # Another version of tidegate wrote it; `totals` names that process by its counter file.
            continue
        for number, name in ROW.iter_unpack(content[: len(content) // ROW.size * ROW.size]):
            if number > 0:
                host = name.rstrip(b"\0").decode("utf-8", "replace")
                counts = sockets if host.startswith(SOCKET) else hosts
                counts[host.removeprefix(SOCKET)] += number
    others = hosts.pop("", 0)
    left = (*sorted(folder.glob(f"{UNGOVERNED}*")), *sorted(folder.glob(f"{WITHOUT}*")))
    return Ungoverned(hosts, others, tuple(path.read_text("utf-8", "replace") for path in left), sockets)
