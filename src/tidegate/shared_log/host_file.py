"""Layout of a host's log, and each read and write of it. The caller holds the file's lock, except where stated.

The first page has the header of `shared_file`, 8-byte words, and a row for each member. Then follow the heads and a
ring of entries. Everything is read and written by offset, and nothing is mapped: a file that is cut off gives an error
and not a signal. A step reads the words once, and stores them with its end in one write. Content is written before the
words that make it visible, so a process that is killed at any instant leaves the content before.
"""

from __future__ import annotations

import math
import os
import secrets
import struct
import sys
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tidegate.shared_file import HEADER, FileKind, header
from tidegate.shared_log.carrier import (
    HEAD,
    MAX_MEMBERS,
    CorruptLog,
    Entry,
    Head,
    Unshared,
    packed_head,
    unpacked_head,
)
from tidegate.shared_log.lives import boot_seconds, clock_identity

PAGE_BYTES = 4096
"""Bytes of the first page, all that a lone member has. Derived from the size of a memory page."""

(
    GENERATION,
    POPULATION,
    TAIL,
    LIMIT,
    NEXT_MEMBER,
    WAITING,
    LAST_AT,
    PROBED_AT,
    CLOCK,
    BOOT_SECONDS,
    WALL_SECONDS,
    STEPS,
) = range(HEADER.size // 8, 14)
"""Indexes of the words. `POPULATION` changes at each join and leave. `TAIL` counts the bytes ever appended, `LIMIT`
those that may be overwritten already. `WAITING` has a bit for each member with a head."""

ROWS_AT = 1024
ROW = struct.Struct("<QH6x")
"""A member: life (0: none), number."""

WORDS_SIZE = 8 * (STEPS + 1)
HEADER_SIZE = ROWS_AT + MAX_MEMBERS * ROW.size
"""Bytes of the words, and of the words and the rows, which are read together."""

HEADS_AT = PAGE_BYTES
RING_AT = HEADS_AT + 2 * PAGE_BYTES
RING_BYTES = 512 * 1024
"""Bytes of entries. Measured: 300 bytes a call, so 1,700 calls."""

RESERVED_BYTES = RING_BYTES // 64
"""Bytes after an append that may be overwritten by the next ones. Chosen: 30 appends."""

ENTRY = struct.Struct("<IHd")
MAX_PAYLOAD_BYTES = RING_BYTES // 4
"""Bytes of a record. Measured: events have 60 to 220 bytes. Chosen: four of the largest states fit into the ring."""

FILE_BYTES = RING_AT + RING_BYTES
"""Bytes of a file that is shared."""

LOG_HEADER = header(FileKind.LOG, FILE_BYTES - HEADER.size)

CLOCK_SLACK_SECONDS = 60.0
"""Seconds by which an entry may be ahead of this clock, and a wall clock may have been set while a log is in use.
Chosen: more than the wait for the lock and than a time daemon steps, less than clocks of tests differ."""


class Member(NamedTuple):
    """One live member: its row, the number of its process, its own number."""

    row: int
    life: int
    number: int


class LogFile:
    """An open file, and a copy of its words and rows as `load` has read them."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._header = memoryview(bytearray(HEADER_SIZE))
        self.words: memoryview[int] = self._header.cast("Q")
        self._seconds: memoryview[float] = self._header.cast("d")
        self._stored = bytes(WORDS_SIZE)
        self._members: tuple[int, list[Member]] = (-1, [])

    @property
    def size(self) -> int:
        return os.fstat(self.descriptor).st_size

    @property
    def is_log(self) -> bool:
        """Return whether the first bytes are those of a log."""
        return bool(self._header[: HEADER.size] == LOG_HEADER)

    def attach(self) -> bool:
        """Read the words and the rows; return False where the file has no whole page yet."""
        if self.size < PAGE_BYTES:
            return False
        self.load()
        return True

    def load(self) -> None:
        found = self.read(HEADER_SIZE, 0)
        self._header[:], self._stored = found, found[:WORDS_SIZE]

    def peek(self, word: int) -> int:
        """Return a word as it is in the file now, also without the lock; 0 where the file is cut off."""
        return int.from_bytes(os.pread(self.descriptor, 8, 8 * word), sys.byteorder)

    def commit(self) -> None:
        words = bytes(self._header[:WORDS_SIZE])
        if words != self._stored:
            self.write(words, 0)
            self._stored = words

    def reset(self) -> None:
        os.ftruncate(self.descriptor, min(self.size, PAGE_BYTES))
        self._header[:] = bytes(HEADER_SIZE)
        self._header[: HEADER.size] = LOG_HEADER
        self.words[GENERATION] = secrets.randbits(63) | 1
        self.write(bytes(self._header) + bytes(PAGE_BYTES - HEADER_SIZE), 0)
        self._stored = bytes(self._header[:WORDS_SIZE])
        self._members = (-1, [])

    def grow(self) -> None:
        """Give the file its full size; an `OSError` leaves it as it was."""
        size = self.size
        if size >= FILE_BYTES:
            return
        try:
            self.write(bytes(FILE_BYTES - PAGE_BYTES), PAGE_BYTES)
        except OSError:
            self.shrink()
            raise

    def shrink(self) -> None:
        """Reduce the file to its first page: its member is alone."""
        self.words[WAITING] = 0
        self.commit()
        os.ftruncate(self.descriptor, PAGE_BYTES)

    def second(self, word: int) -> float:
        """Return a word that is an instant; raise `CorruptLog` where it is none."""
        value = self._seconds[word]
        if not math.isfinite(value):
            raise CorruptLog("an instant in its header is not finite")
        return value

    def set_second(self, word: int, value: float) -> None:
        self._seconds[word] = value

    def members(self, reread: bool = False) -> list[Member]:
        """Return the rows in use. A member that left without the lock is only seen with `reread`."""
        population = self.words[POPULATION]
        if reread or self._members[0] != population:
            rows = ROW.iter_unpack(self._header[ROWS_AT:])
            found = [Member(row, life, number) for row, (life, number) in enumerate(rows) if life]
            if len({each.number for each in found}) != len(found):
                raise CorruptLog("two of its members have one number")
            self._members = (population, found)
        return self._members[1]

    def add_member(self, life: int) -> Member | None:
        """Give a process a row and a number that no live member has; None where all rows are in use."""
        present = self.members()
        rows, numbers = {each.row for each in present}, {each.number for each in present}
        row = next((row for row in range(MAX_MEMBERS) if row not in rows), None)
        if row is None:
            return None
        number = self.words[NEXT_MEMBER] & 0xFFFF
        while number in numbers:
            number = (number + 1) & 0xFFFF
        self.words[NEXT_MEMBER] = number + 1
        self._clear_head(row)
        member = Member(row, life, number)
        place = ROWS_AT + row * ROW.size
        ROW.pack_into(self._header, place, life, number)
        self.write(self._header[place : place + ROW.size], place)
        self._count_population()
        return member

    def set_life(self, row: int, life: int) -> None:
        """Store the number of a member's process; also without the lock, by that member itself."""
        place = ROWS_AT + row * ROW.size
        self.words[place // 8] = life
        self.write(self._header[place : place + 8], place)

    def life(self, row: int) -> int:
        return self.words[(ROWS_AT + row * ROW.size) // 8]

    def remove_member(self, member: Member) -> None:
        self._clear_head(member.row)
        self.set_life(member.row, 0)
        self._count_population()

    def _count_population(self) -> None:
        self.words[POPULATION] = (self.words[POPULATION] + 1) & 0x7FFF_FFFF_FFFF_FFFF

    def _clear_head(self, row: int) -> None:
        self.words[WAITING] &= ~(1 << row)

    def reaches(self, position: int) -> bool:
        """Return whether the ring still has all entries since a place in the log."""
        tail = self.words[TAIL]
        return position <= tail and max(tail, self.words[LIMIT]) - position <= RING_BYTES

    def read(self, size: int, offset: int) -> bytes:
        found = os.pread(self.descriptor, size, offset)
        if len(found) < size:
            raise CorruptLog("it is cut off")
        return found

    def write(self, content: bytes | bytearray | memoryview, offset: int) -> None:
        done = os.pwrite(self.descriptor, content, offset)
        while done < len(content):
            content, offset = memoryview(content)[done:], offset + done
            done = os.pwrite(self.descriptor, content, offset)

    def close(self) -> None:
        os.close(self.descriptor)


def append_entries(file: LogFile, number: int, records: Iterable[tuple[float, bytes]]) -> None:
    """Append entries of a member; their instants are raised to that of the entry before."""
    last = file.second(LAST_AT)
    block = bytearray()
    for at, payload in records:
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise ValueError(f"a record of {len(payload)} bytes is larger than {MAX_PAYLOAD_BYTES}")
        last = max(last, at)
        block += ENTRY.pack(len(payload), number, last)
        block += payload
        if len(block) > RING_BYTES // 4:
            _append(file, block, last)
            block.clear()
    if block:
        _append(file, block, last)


def _append(file: LogFile, block: bytes | bytearray, last: float) -> None:
    tail = file.words[TAIL]
    # Readers must know what is overwritten also when this process is killed before it moves the tail, so the limit
    # is not lowered; beyond the ring it is that of a corrupt file. It is raised by more, as each time is a write.
    if not tail + len(block) <= file.words[LIMIT] <= tail + RING_BYTES:
        file.words[LIMIT] = tail + len(block) + RESERVED_BYTES
        file.commit()
    start = tail % RING_BYTES
    first = RING_BYTES - start
    if len(block) <= first:
        file.write(block, RING_AT + start)
    else:
        file.write(block[:first], RING_AT + start)
        file.write(block[first:], RING_AT)
    file.set_second(LAST_AT, last)
    file.words[TAIL] = tail + len(block)


def read_entries(file: LogFile, position: int, now: float, last: float) -> list[Entry]:
    """Return the entries since a place that `reaches` holds for; raise `CorruptLog` for content that is none."""
    size = file.words[TAIL] - position
    if not size:
        return []
    start = position % RING_BYTES
    first = min(size, RING_BYTES - start)
    block = file.read(first, RING_AT + start)
    if first < size:
        block += file.read(size - first, RING_AT)
    found, offset = [], 0
    while offset < size:
        if size - offset < ENTRY.size:
            raise CorruptLog("its last entry is cut off")
        length, number, at = ENTRY.unpack_from(block, offset)
        offset += ENTRY.size
        if length > MAX_PAYLOAD_BYTES or length > size - offset:
            raise CorruptLog(f"an entry of {length} bytes is larger than what was appended")
        if not at <= now + CLOCK_SLACK_SECONDS or at == -math.inf:
            raise CorruptLog("an entry is not of this time")
        last = max(last, at)
        found.append(Entry(number, last, block[offset : offset + length], position + offset))
        offset += length
    return found


def write_head(file: LogFile, row: int, head: Head | None) -> None:
    """Store or clear the head of a member."""
    bit = 1 << row
    if head is not None:
        file.write(packed_head(head), HEADS_AT + row * HEAD.size)
        file.words[WAITING] |= bit
    elif file.words[WAITING] & bit:
        file.words[WAITING] &= ~bit


def read_heads(file: LogFile, but: int) -> Sequence[Head]:
    """Return the heads of all members except that in the row `but`."""
    waiting = file.words[WAITING] & ~(1 << but)
    if not waiting:
        return ()
    block = file.read(MAX_MEMBERS * HEAD.size, HEADS_AT)
    found = []
    for member in file.members():
        if waiting >> member.row & 1:
            place = member.row * HEAD.size
            found.append(unpacked_head(member.number, block[place : place + HEAD.size]))
    return found


def sound_members(file: LogFile) -> list[Member]:
    try:
        return file.members()
    except CorruptLog:
        # Nothing in it can be believed; a log that other members still use is left to them.
        if file.is_log:
            raise
        return []


def check_header(file: LogFile) -> None:
    if not file.is_log:
        raise CorruptLog("its first bytes are not those of a log")
    identity, seconds = clock_identity(), file.second(WALL_SECONDS) - file.second(BOOT_SECONDS)
    if file.words[CLOCK] != identity or abs(time.time() - boot_seconds() - seconds) > CLOCK_SLACK_SECONDS:
        raise Unshared("its members have another clock")


def set_clock(file: LogFile) -> None:
    file.words[CLOCK] = clock_identity()
    file.set_second(BOOT_SECONDS, boot_seconds())
    file.set_second(WALL_SECONDS, time.time())


def due_members(file: LogFile, live: Sequence[Member], now: float, every: float) -> list[Member]:
    """Return the members to be looked at now: one each part of `every` seconds, however many there are."""
    probed_at, each_for = file.second(PROBED_AT), every / len(live)
    if not probed_at <= now < probed_at + every:
        return file.members(reread=True)
    first, last = int(probed_at / each_for), int(now / each_for)
    return [live[place % len(live)] for place in range(first + 1, last + 1)]


def peek(file: LogFile | None, word: int) -> int:
    """Return a word as it is in a file now; 0 where there is no file, or it is gone."""
    try:
        return file.peek(word) if file is not None else 0
    except OSError:
        return 0
