"""Counter files of the processes of one run: mapped files, which the parent may read at any time.

Theory of operation. A file has a row for each key, and two tables of counts by a short text: failed calls by reason,
and ungoverned calls by host. A store into mapped memory replaces an attribute. No thread, socket or final message is
needed, and the counts survive a death by a signal or `os._exit` (a worker of `multiprocessing.Pool` always ends so). A
row has one writer, under its registry's lock. The parent may read it between two stores, and reads it again later.

A process holds the lock of its files. It leaves them at a fork, and an exec closes them.
"""

from __future__ import annotations

import mmap
import os
import secrets
import struct
import threading
import weakref
from collections import Counter, deque
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tidegate.admission.key_queue import KeyQueue
from tidegate.launch import counter_row
from tidegate.launch.counter_row import ROW_BYTES, KeyRow
from tidegate.launch.shared_counters import SharedHeldTime, SharedKeyCounts, SharedLineLength, SharedTokenCounter
from tidegate.shared_file import HEADER, FileKind, close_and_find_held, lock, packed, unpacked

ROWS = 16
"""Keys of one file; a process with more of them creates another file. Raising it makes every file larger. Chosen: most
processes have fewer keys."""

TEXT = struct.Struct("=q248s")
"""Layout of a count by text: a count, and the text as UTF-8, padded with zeros. 248 bytes are kept. A DNS name has at
most 253 characters."""

TEXTS = 64
"""Rows of a table, 16 kB; row 0 counts all texts that have no row. Raising it makes every file larger. Chosen: a
program calls few hosts, and its calls fail for few reasons."""

FAILURES, HOSTS = 0, 1
"""Tables of a file."""

TABLES_AT = ROWS * ROW_BYTES
TABLE_BYTES = TEXTS * TEXT.size
CONTENT_BYTES = TABLES_AT + (HOSTS + 1) * TABLE_BYTES

SUFFIX = ".counters"


class CounterFile:
    """Counter files of this process: another file when one is full, and separate files after a fork."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._counts: weakref.WeakSet[SharedKeyCounts] = weakref.WeakSet()
        self._descriptors: list[int] = []
        self.forked()

    def forked(self) -> None:
        """Leave the files, which are the parent's, and restart the counts at zero."""
        while self._descriptors:
            os.close(self._descriptors.pop())
        self._free: deque[memoryview] = deque()
        self._lock = threading.Lock()
        self._tables: memoryview | None = None
        self._places: tuple[dict[str, int], ...] = ({}, {})
        for counts in self._counts:
            counts.detach()

    def track(self, queue: KeyQueue) -> None:
        """Count in a row the events of the key queue `queue` from now on."""
        counts = SharedKeyCounts(queue, self._row, partial(self._count, FAILURES))
        queue.admission.counts = counts
        queue.waiting = SharedLineLength(counts)
        queue.tokens = SharedTokenCounter(counts)
        queue.held = SharedHeldTime(counts, queue.admission.used_at)
        self._counts.add(counts)

    def count_host(self, host: str) -> None:
        """Count one more ungoverned call to `host`."""
        self._count(HOSTS, host)

    def _row(self) -> memoryview:
        """Return a free row; in private memory where no file can be created."""
        while True:
            try:
                return self._free.popleft()
            except IndexError:
                self._add_file()

    def _count(self, table: int, text: str) -> None:
        with self._lock:
            memory = self._tables or self._add_file()
            places = self._places[table]
            place = places.get(text, 0)
            if not place and len(places) + 1 < TEXTS:
                place = places[text] = len(places) + 1
            at = table * TABLE_BYTES + place * TEXT.size
            number, name = TEXT.unpack_from(memory, at)
            TEXT.pack_into(memory, at, number + 1, text.encode("utf-8", "replace") if place else name)

    def _add_file(self) -> memoryview:
        """Make the rows of one more file free; return the tables that are in use."""
        content = self._mapped()[HEADER.size :]
        # A deque, because two registries may take rows at the same time.
        self._free.extend(content[at : at + ROW_BYTES] for at in range(0, TABLES_AT, ROW_BYTES))
        if self._tables is None:
            self._tables = content[TABLES_AT:]
        return self._tables

    def _mapped(self) -> memoryview:
        blank = packed(FileKind.COUNTERS, bytes(CONTENT_BYTES))
        path = Path(self._folder) / f"{os.getpid()}-{secrets.token_hex(8)}"
        try:
            with path.open("x+b", buffering=0) as file:
                # Write the zeros instead of extending the file: a store into a page without disk space ends the
                # program.
                file.write(blank)
                mapped = mmap.mmap(file.fileno(), len(blank))
            # Another open file: a mapping keeps its own one open in a forked child, too.
            descriptor = os.open(path, os.O_RDWR)
            self._descriptors.append(descriptor)
            lock(descriptor)
            # Readers take a file without a lock for that of an ended process.
            path.rename(path.with_suffix(SUFFIX))
        except (OSError, ValueError):
            return memoryview(bytearray(blank))
        return memoryview(mapped)


class FileCounts(NamedTuple):
    """Counts of a counter file, whose process `is_live`: by key, failed calls by reason, ungoverned calls by host.

    Texts without a row are counted under the empty text.
    """

    is_live: bool
    rows: list[KeyRow]
    failures: Counter[str]
    hosts: Counter[str]


def pid_of(path: Path) -> int:
    """Return the process of a counter file."""
    return int(path.stem.partition("-")[0])


def read(path: Path) -> FileCounts:
    """Return the present counts of a file; raise `UnreadableFile`."""
    # The lock goes before the content: that of an ended process is then final.
    is_live = close_and_find_held(os.open(path, os.O_RDONLY))
    content = unpacked(FileKind.COUNTERS, path.read_bytes(), CONTENT_BYTES)
    found = (counter_row.read(content[at : at + ROW_BYTES]) for at in range(0, TABLES_AT, ROW_BYTES))
    tables = (content[at : at + TABLE_BYTES] for at in range(TABLES_AT, CONTENT_BYTES, TABLE_BYTES))
    return FileCounts(is_live, [row for row in found if row is not None], *map(_by_text, tables))


def _by_text(table: memoryview) -> Counter[str]:
    counts: Counter[str] = Counter()
    for number, name in TEXT.iter_unpack(table):
        if number > 0:
            counts[name.rstrip(b"\0").decode("utf-8", "replace")] += number
    return counts
