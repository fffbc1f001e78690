"""Format and reading of the counter files of one run: mapped files of its processes, which the parent reads any time.

Theory of operation. A file has a row for each key, and two tables of counts by a short text: failed calls by reason,
and ungoverned calls by host. A store into mapped memory replaces an attribute. No thread, socket or final message is
needed, and the counts survive a death by a signal or `os._exit` (a worker of `multiprocessing.Pool` always ends so).
The parent may read a row between two stores, and reads it again later.
"""

from __future__ import annotations

import os
import struct
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from tidegate.launch import counter_row
from tidegate.launch.counter_row import ROW_BYTES, KeyRow
from tidegate.shared_file import FileKind, close_and_find_held, unpacked

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
