"""Format, writing and reading of the counter files of one run, which its processes write and the parent reads any time.

Theory of operation. A file has a row for each key, and two tables of counts by a short text: failed calls by reason,
and ungoverned calls by host. A process has the content in private memory, and writes each row after a change of it. No
thread, socket or final message is needed, and the counts survive a death by a signal or `os._exit` (a worker of
`multiprocessing.Pool` always ends so). The parent may read a row during a write, and reads it again later.

Nothing is mapped: a store into a mapped file that another process has cut off ends the program.
"""

from __future__ import annotations

import os
import struct
from collections import Counter
from contextlib import suppress
from errno import EBADF
from pathlib import Path
from typing import NamedTuple

from tidegate.launch import counter_row
from tidegate.launch.counter_row import ROW_BYTES, KeyRow
from tidegate.shared_file import HEADER, FileKind, close_and_find_held, packed, unpacked

FILE_KEYS = 16
"""Keys of one file; a process with more of them creates another file. Raising it makes every file larger. Chosen: most
processes have fewer keys."""

TEXT = struct.Struct("=q248s")
"""Layout of a count by text: a count, and the text as UTF-8, padded with zeros. 248 bytes are kept. A DNS name has at
most 253 characters."""

TABLE_TEXTS = 64
"""Rows of a table, 16 kB; row 0 counts all texts that have no row. Raising it makes every file larger. Chosen: a
program calls few hosts, and its calls fail for few reasons."""

FAILURES, HOSTS = 0, 1
"""Tables of a file."""

TABLES_AT = FILE_KEYS * ROW_BYTES
TABLE_BYTES = TABLE_TEXTS * TEXT.size
CONTENT_BYTES = TABLES_AT + (HOSTS + 1) * TABLE_BYTES

SUFFIX = ".counters"


class FileCounts(NamedTuple):
    """Counts of a counter file, whose process `is_live`: by key, failed calls by reason, ungoverned calls by host.

    Texts without a row are counted under the empty text.
    """

    is_live: bool
    rows: list[KeyRow]
    failures: Counter[str]
    hosts: Counter[str]


class CounterFile:
    """Content of a counter file of this process, and the open file (-1: none).

    A program may close the files that it has not opened itself, and open its own under the same number. So each write
    finds out which file it is.
    """

    __slots__ = ("_descriptor", "_identity", "content")

    def __init__(self, descriptor: int = -1) -> None:
        self.content = memoryview(bytearray(packed(FileKind.COUNTERS, bytes(CONTENT_BYTES))))
        self._descriptor = descriptor
        self._identity = (0, 0)
        if descriptor >= 0:
            facts = os.fstat(descriptor)
            self._identity = facts.st_dev, facts.st_ino

    def fill(self) -> None:
        """Write all of it, so that later writes need no more space on the disk; raise `OSError` where there is none."""
        os.pwrite(self._descriptor, self.content, 0)

    def close(self) -> None:
        """Close the file, unless the program has done so: the number may be that of another file now."""
        with suppress(OSError):
            self._facts()
            os.close(self._descriptor)

    def write(self, part: memoryview, at: int) -> None:
        """Write a part of the content at `at`, or all of it where the file was cut off; drop what the disk refuses."""
        try:
            if self._facts().st_size < len(self.content):
                part, at = self.content, 0
            os.pwrite(self._descriptor, part, at)
        except OSError:
            return

    def _facts(self) -> os.stat_result:
        """Return the facts of the file; raise `OSError` where the program has closed it."""
        facts = os.fstat(self._descriptor)
        if (facts.st_dev, facts.st_ino) != self._identity:
            raise OSError(EBADF, "another file has its number")
        return facts

    def part(self, at: int, size: int) -> CounterPart:
        """Return the part that begins at `at`, counted from the end of the header."""
        return CounterPart(self, HEADER.size + at, size)


class CounterPart:
    """Part of a counter file: its memory, which `save` writes to the file."""

    __slots__ = ("_at", "_file", "memory")

    def __init__(self, file: CounterFile, at: int, size: int) -> None:
        self._file = file
        self._at = at
        self.memory = file.content[at : at + size]

    def save(self) -> None:
        self._file.write(self.memory, self._at)


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
