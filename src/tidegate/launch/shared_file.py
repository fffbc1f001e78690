"""Header of the files that processes of several versions may share: magic, version, and length of the content."""

from __future__ import annotations

import struct

MAGIC = b"tidegate"

VERSION = 6
"""Version of the content of all shared files; any change of their layout raises it. Version 1 had no header, version 3
no changes of a key."""

HEADER = struct.Struct("=8sII")


class UnreadableFile(ValueError):
    """Error of a shared file without a header that this version knows."""


def packed(content: bytes) -> bytes:
    return HEADER.pack(MAGIC, VERSION, len(content)) + content


def unpacked(data: bytes) -> memoryview:
    """Return the content of a file's bytes, empty for a file that is not written yet; raise `UnreadableFile`."""
    if not data:
        return memoryview(b"")
    if len(data) < HEADER.size or not data.startswith(MAGIC):
        raise UnreadableFile("it was written by another version of tidegate")
    _, version, length = HEADER.unpack_from(data)
    if version != VERSION:
        raise UnreadableFile(f"it has version {version} of the format, and this tidegate reads version {VERSION}")
    if len(data) != HEADER.size + length:
        raise UnreadableFile(f"it has {len(data) - HEADER.size} of {length} bytes")
    return memoryview(data)[HEADER.size :]
