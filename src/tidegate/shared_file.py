"""Files that the processes of a user share: the header of each, and the lock that shows whether its owner lives.

A process holds the lock of a file or folder of its own. The kernel frees a lock however its holder ends. A process
number of the system would not do: it is used again, and differs between the namespaces of containers.
"""

from __future__ import annotations

import os
import struct
from enum import IntEnum

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

CAN_LOCK = fcntl is not None

MAGIC = b"tidegate"

VERSION = 15
"""Version of all shared files; any change of a layout or of a payload raises it. Version 1 had no header, version 5 no
kind."""

HEADER = struct.Struct("=8sHHI")
"""Magic, version, kind, and bytes of the content."""


class FileKind(IntEnum):
    """Kinds of content."""

    COMMAND = 1
    COUNTERS = 2
    LOG = 3


class UnreadableFile(ValueError):
    """Error of a shared file without a header that this version knows."""


def header(kind: FileKind, size: int) -> bytes:
    """Return the header of a file with `size` bytes of content."""
    return HEADER.pack(MAGIC, VERSION, kind, size)


def packed(kind: FileKind, content: bytes) -> bytes:
    """Return the bytes of a file with this content."""
    return header(kind, len(content)) + content


def unpacked(kind: FileKind, data: bytes, size: int | None = None) -> memoryview:
    """Return the content of a file's bytes, of the given size where that is fixed; raise `UnreadableFile`."""
    if len(data) < HEADER.size or not data.startswith(MAGIC):
        raise UnreadableFile("it was written by another version of tidegate")
    _, version, found, length = HEADER.unpack_from(data)
    if version != VERSION:
        raise UnreadableFile(f"it has version {version} of the format, and this tidegate reads version {VERSION}")
    if found != kind:
        raise UnreadableFile("it has content of another kind")
    if len(data) != HEADER.size + length or size not in (None, length):
        raise UnreadableFile(f"it has {len(data) - HEADER.size} of {size or length} bytes")
    return memoryview(data)[HEADER.size :]


def lock(descriptor: int, exclusive: bool = True) -> bool:
    """Lock an open file without waiting; return whether that succeeded. The kernel unlocks it when its holder ends."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(descriptor: int) -> None:
    """Release the lock of `lock`."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)


def close_and_find_held(descriptor: int) -> bool:
    """Return whether another open file holds the lock of this one, which is closed."""
    try:
        # A shared lock: two processes that ask at once do not take each other for the owner.
        return not lock(descriptor, exclusive=False)
    finally:
        os.close(descriptor)
