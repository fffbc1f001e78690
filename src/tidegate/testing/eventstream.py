"""Amazon's event stream as it goes over the wire: `application/vnd.amazon.eventstream`.

A message is its length and that of its headers, a checksum of the two, the headers, the payload, and a checksum of all;
numbers are big-endian, checksums CRC-32. botocore 1.44.5 `eventstream.py` reads it.
"""

from __future__ import annotations

import struct
import zlib

from tidegate.testing.replies import dumps

CONTENT_TYPE = "application/vnd.amazon.eventstream"

_TEXT = 7
"""The type of a header whose value is text, the only one that Bedrock sends."""


def message(headers: dict[str, str], payload: bytes) -> bytes:
    """One message."""
    named = b"".join(_header(name, value) for name, value in headers.items())
    prelude = struct.pack(">II", 16 + len(named) + len(payload), len(named))
    begun = prelude + struct.pack(">I", zlib.crc32(prelude)) + named + payload
    return begun + struct.pack(">I", zlib.crc32(begun))


def event(name: str, value: object) -> bytes:
    """An event of the type `name`, its payload in JSON."""
    return message({":event-type": name, ":content-type": "application/json", ":message-type": "event"}, dumps(value))


def exception(name: str, text: str) -> bytes:
    """The exception `name`, which ends a stream."""
    headers = {":exception-type": name, ":content-type": "application/json", ":message-type": "exception"}
    return message(headers, dumps({"message": text}))


def _header(name: str, value: str) -> bytes:
    return struct.pack(">B", len(name)) + name.encode() + struct.pack(">BH", _TEXT, len(value)) + value.encode()
