"""The body of an error that the caller asked to stream.

An error is judged by its status, its headers and its body. The body is read before the answer is judged, up to
`MAX_BYTES` and `MAX_SECONDS`. The bytes that were read are replayed to the caller, who can read on from there.
An exception of the reading belongs to the caller's own reading: it is raised there, after the bytes before it.

A body that drips is left at the next chunk after `MAX_SECONDS`. One that stalls is left then by asyncio's clients;
a thread's client, or one on trio, waits for it until the client's own read timeout: a read that is cut short there
would lose the connection, and the rest of the body with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

MAX_BYTES = 1 << 18
"""Bytes, as they were sent, that are read of an error. More would not be judged (`providers._body._MAX_BODY`)."""

MAX_SECONDS = 2.0
"""Seconds for which an error's body is read before the status is handed on. A higher value delays a caller longer
whose server never ends its body. Providers send an error of some kilobytes together with its headers."""

PIECE = 16
"""Bytes that are decompressed at a time. A higher value allows a larger bomb: 16 bytes of Brotli can describe 16 MB."""


class ErrorBody:
    """The beginning of an error's body: the chunks that nobody has consumed yet, and how the reading ended.

    `ended` says that nothing follows the chunks; `error` is what the reading raised after them. No more than
    `MAX_BYTES` are wanted, and none after `until`, in monotonic seconds.
    """

    __slots__ = ("chunks", "ended", "error", "size", "until")

    def __init__(self) -> None:
        self.chunks: deque[bytes] = deque()
        self.size = 0
        self.until = 0.0
        self.ended = False
        self.error: Exception | None = None

    def add(self, chunk: bytes, now: float) -> bool:
        """Keep a chunk; return whether another one is wanted."""
        self.chunks.append(chunk)
        self.size += len(chunk)
        return self.size < MAX_BYTES and now < self.until

    def replay(self) -> Iterator[bytes]:
        """Yield the chunks and forget each; then raise what the reading raised."""
        while self.chunks:
            yield self.chunks.popleft()
        if self.error is not None:
            raise self.error

    def pieces(self) -> Iterator[bytes]:
        """Yield the kept bytes in pieces that are safe to decompress."""
        for chunk in self.chunks:
            for start in range(0, len(chunk), PIECE):
                yield chunk[start : start + PIECE]


def decoded(pieces: Iterable[bytes]) -> bytes:
    """Return decompressed pieces in one, up to `MAX_BYTES`; up to the first that cannot be decompressed."""
    parts, size = [], 0
    try:
        for piece in pieces:
            parts.append(piece)
            size += len(piece)
            if size >= MAX_BYTES:
                break
    except Exception:
        # The caller's own reading raises it; the status and the headers are known.
        return b"".join(parts)
    return b"".join(parts)
