"""Counts by a short text, such as a host, in a mapped file of this process, so that they survive a kill -9."""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from collections import Counter
from pathlib import Path

from tidegate.launch.shared_file import HEADER, UnreadableFile, packed, unpacked

ROWS = 64
"""Rows of one process's file, 16 kB; row 0 counts all other texts. Chosen: few hosts, few reasons of failures."""

ROW = struct.Struct("=q248s")
"""Layout of a row: a count, and the text as UTF-8, padded with zeros. 248 bytes are kept. A DNS name has at most 253
characters."""


class TextCounts:
    """Counts of this process by text, in its own mapped file, or in plain memory where there can be none."""

    def __init__(self, folder: str, suffix: str) -> None:
        self._folder = folder
        self._suffix = suffix
        self.forked()

    def forked(self) -> None:
        self._lock = threading.Lock()
        self._rows: dict[str, int] = {}
        self._memory: mmap.mmap | bytearray | None = None

    def count(self, text: str) -> None:
        with self._lock:
            if self._memory is None:
                self._memory = self._make()
            row = self._rows.get(text)
            if row is None:
                row = len(self._rows) + 1
                if row < ROWS:
                    self._rows[text] = row
                    ROW.pack_into(self._memory, _at(row), 0, text.encode("utf-8", "replace"))
                else:
                    row = 0
            number, name = ROW.unpack_from(self._memory, _at(row))
            ROW.pack_into(self._memory, _at(row), number + 1, name)

    def _make(self) -> mmap.mmap | bytearray:
        path = Path(self._folder) / f"{os.getpid()}-{time.time_ns()}{self._suffix}"
        blank = packed(bytes(ROWS * ROW.size))
        try:
            with path.open("x+b", buffering=0) as file:
                # Write the zeros instead of extending the file: a store into a page without disk space ends the
                # program.
                file.write(blank)
                return mmap.mmap(file.fileno(), len(blank))
        except (OSError, ValueError):
            return bytearray(blank)


def _at(row: int) -> int:
    return HEADER.size + row * ROW.size


def read_counts(folder: Path, suffix: str) -> Counter[str]:
    """Return the counts of all processes of a run; texts without a row count under the empty text."""
    counts: Counter[str] = Counter()
    for path in sorted(folder.glob(f"*{suffix}")):
        try:
            content = unpacked(path.read_bytes())
        except UnreadableFile:
            # Another version of tidegate wrote it; `totals` names that process by its counter file.
            continue
        for number, name in ROW.iter_unpack(content[: len(content) // ROW.size * ROW.size]):
            if number > 0:
                counts[name.rstrip(b"\0").decode("utf-8", "replace")] += number
    return counts
