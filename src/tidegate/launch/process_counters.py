"""Counter files of this process, which its keys write and the parent reads.

A row has one writer, under its registry's lock. A process holds the lock of its files. It leaves them at a fork, and an
exec closes them.
"""

from __future__ import annotations

import os
import secrets
import threading
import weakref
from collections import deque
from functools import partial
from pathlib import Path

from tidegate.admission import process
from tidegate.admission.key_queue import KeyQueue
from tidegate.launch.counter_file import (
    FAILURES,
    HOSTS,
    SUFFIX,
    TABLE_BYTES,
    TABLE_TEXTS,
    TABLES_AT,
    TEXT,
    CounterFile,
    CounterPart,
)
from tidegate.launch.counter_row import ROW_BYTES
from tidegate.launch.shared_counters import SharedHeldTime, SharedKeyCounts, SharedLineLength, SharedTokenCounter
from tidegate.shared_file import lock


class ProcessCounters:
    """Counter files of this process: another file when one is full, and separate files after a fork."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._counts: weakref.WeakSet[SharedKeyCounts] = weakref.WeakSet()
        self._files: list[CounterFile] = []
        self.forked()
        # At a fork the counters leave the rows of the parent before a registry clears its queues.
        process.call_first(self.forked)

    def forked(self) -> None:
        """Leave the files, which are the parent's, and restart the counts at zero."""
        while self._files:
            self._files.pop().close()
        self._free: deque[CounterPart] = deque()
        self._lock = threading.RLock()
        self._counting = False
        self._uncounted: deque[tuple[int, str]] = deque()
        self._tables: CounterFile | None = None
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

    def _row(self) -> CounterPart:
        """Return a free row; in private memory where no file can be created."""
        while True:
            try:
                return self._free.popleft()
            except IndexError:
                self._add_file()

    def _count(self, table: int, text: str) -> None:
        """Count one more of a text; a signal handler inside this leaves its own counts to it."""
        self._uncounted.append((table, text))
        while self._uncounted:
            with self._lock:
                if self._counting:
                    return
                self._counting = True
                try:
                    while self._uncounted:
                        self._write_count(*self._uncounted.popleft())
                finally:
                    self._counting = False

    def _write_count(self, table: int, text: str) -> None:
        file = self._tables or self._add_file()
        places = self._places[table]
        place = places.get(text, 0)
        if not place and len(places) + 1 < TABLE_TEXTS:
            place = places[text] = len(places) + 1
        part = file.part(TABLES_AT + table * TABLE_BYTES + place * TEXT.size, TEXT.size)
        number, name = TEXT.unpack(part.memory)
        TEXT.pack_into(part.memory, 0, number + 1, text.encode("utf-8", "replace") if place else name)
        part.save()

    def _add_file(self) -> CounterFile:
        """Make the rows of one more file free; return the file whose tables are in use."""
        file = self._created()
        # A deque, because two registries may take rows at the same time.
        self._free.extend(file.part(at, ROW_BYTES) for at in range(0, TABLES_AT, ROW_BYTES))
        if self._tables is None:
            self._tables = file
        return self._tables

    def _created(self) -> CounterFile:
        path = Path(self._folder) / f"{os.getpid()}-{secrets.token_hex(8)}"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            file = CounterFile(descriptor)
            self._files.append(file)
            file.fill()
            lock(descriptor)
            # Readers take a file without a lock for that of an ended process.
            path.rename(path.with_suffix(SUFFIX))
        except OSError:
            return CounterFile()
        return file
