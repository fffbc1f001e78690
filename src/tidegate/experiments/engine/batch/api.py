"""Batch API of a provider, as the runner uses it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from tidegate.experiments.storage import BatchRecord


class Phase(StrEnum):
    """Phase of a batch at its provider; a `FAILED` one has run no request."""

    RUNNING = "running"
    ENDED = "ended"
    CANCELLED = "cancelled"
    FAILED = "failed"
    QUEUE_FULL = "queue_full"
    UNKNOWN = "unknown"


class BatchStatus(NamedTuple):
    """Status of a batch. `text` is the provider's word for it, with its reasons.

    `files` are the provider's names of its result files. `retry_after` is the time in seconds that the provider asks
    for before the next look. `ended` is the number of requests that it counts as ended: each has a line.
    """

    phase: Phase
    text: str
    files: tuple[str, ...] = ()
    retry_after: float = 0.0
    ended: int = 0


class ItemAnswer(NamedTuple):
    """Answer to one request of a batch: its body, or the reason why there is none.

    `again` means that another attempt may succeed, and `free` that it spends none.
    """

    body: Any
    request_id: str | None = None
    finish_reason: str | None = None
    kind: str = ""
    reason: str = ""
    again: bool = False
    free: bool = False


class Revoked(StrEnum):
    """Result of making a creation void; `UNKNOWN`: the provider knows nothing that the record names."""

    DONE = "done"
    IMPOSSIBLE = "impossible"
    UNKNOWN = "unknown"


class Search(NamedTuple):
    """Search for the batch of a record that a process may have submitted before its death.

    `expects` says whether an id is one of its requests. `known` has the provider's names of other records' batches.
    `since` is the time of the record by the database's clock.
    """

    record: BatchRecord
    name: str
    since: datetime
    known: frozenset[str]
    expects: Callable[[str], bool]


INLINE = "-"
"""Name in place of a file's where the requests are sent with the batch itself."""

UNDECIDED = ""
"""Result of a search that must be repeated: a batch that may be the wanted one has not ended."""


class ProviderBatchApi(Protocol):
    """Batch API of a provider. Its methods raise the errors of the SDK.

    `provider` is the provider's name. A batch has at most `max_requests` and `max_bytes`.
    """

    provider: str
    max_requests: int
    max_bytes: int

    def group(self, body: Mapping[str, Any]) -> str:
        """Return the group of a request; only those of one group may be in one batch."""
        ...

    def line(self, identity: str, body: Mapping[str, Any]) -> bytes:
        """Return a request as it is sent."""
        ...

    async def upload(self, name: str, lines: Sequence[bytes]) -> tuple[str, bool]:
        """Upload the requests; return the provider's name of the file, and True if the provider has read it.

        The name is `INLINE` where no file is needed.
        """
        ...

    async def has_read(self, file_id: str) -> bool:
        """Return True if the provider has read an uploaded file."""
        ...

    async def create(self, record: BatchRecord, name: str, lines: Sequence[bytes]) -> str:
        """Create the batch with one request, which is never repeated here; return the provider's name of it."""
        ...

    async def find(self, search: Search) -> str | None:
        """Return the provider's name of a batch that was created for a record, None without one, or `UNDECIDED`."""
        ...

    async def revoke(self, record: BatchRecord) -> Revoked:
        """Make the provider refuse a creation of this record that arrives later."""
        ...

    async def status(self, provider_id: str) -> BatchStatus:
        """Return the status of a batch."""
        ...

    async def lines(self, name: str) -> list[bytes]:
        """Return the lines of one of the result files that a status names. It makes one request."""
        ...

    def read(self, line: bytes) -> ItemAnswer:
        """Return the answer in a line of the results."""
        ...


def is_refusal(error: Exception) -> bool:
    """Return True if a request failed for a reason that lasts: it had no effect, and would have none again."""
    status = getattr(error, "status_code", None)
    return isinstance(status, int) and 400 <= status < 500 and status not in (408, 409, 429)


def was_sent(error: Exception) -> bool:
    """Return False if a request failed before a connection was there, so that no provider has got it."""
    cause: BaseException | None = error
    while cause is not None:
        if type(cause).__name__ in ("ConnectError", "ConnectTimeout", "PoolTimeout"):
            return False
        cause = cause.__cause__
    return True


def by_id(lines: Iterable[bytes]) -> tuple[dict[str, bytes], int]:
    """Return lines by their `custom_id`, and the number of lines that are no JSON object with one."""
    found: dict[str, bytes] = {}
    broken = 0
    for line in filter(None, map(bytes.strip, lines)):
        try:
            identity = json.loads(line).get("custom_id")
        except (ValueError, AttributeError):
            identity = None
        if isinstance(identity, str):
            found[identity] = line
        else:
            broken += 1
    return found, broken


def compact(value: object) -> bytes:
    """Return JSON without spaces. Raise `TypeError` or `ValueError` for a value that is none."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def seconds_of(headers: Mapping[str, str]) -> float:
    """Return the seconds of a `retry-after` header, at most an hour; 0 without one.

    A date counts from the answer's own `date`, so this machine's clock may be wrong.
    """
    told = headers.get("retry-after", "0")
    try:
        seconds = float(told)
    except ValueError:
        try:
            ahead = parsedate_to_datetime(told) - parsedate_to_datetime(headers.get("date", ""))
            seconds = ahead.total_seconds()
        except (ValueError, TypeError):
            seconds = 0.0
    return min(max(0.0, seconds), 3600.0)
