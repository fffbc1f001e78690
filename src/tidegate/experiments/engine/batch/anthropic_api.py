"""Message batches of Anthropic through its SDK.

A message batch has no metadata. So a batch that a dead process may have created is found among those of the same
number of requests since then, by the ids in its results.

Source: https://platform.claude.com/docs/en/build-with-claude/batch-processing (100,000 requests or 256 MB, statuses,
result types); anthropic-sdk-python 2.11, types/messages/message_batch.py. Read 2026-11-24.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from tidegate.experiments.engine.batch.api import (
    INLINE,
    UNDECIDED,
    BatchStatus,
    ItemAnswer,
    Phase,
    Revoked,
    Search,
    by_id,
    compact,
    seconds_of,
)
from tidegate.experiments.engine.batch.task import called
from tidegate.experiments.storage import BatchRecord

MAX_REQUESTS, MAX_BYTES = 100_000, 256_000_000
"""Requests and bytes of a batch. Raising one lets the provider reject it. Source: the guide above."""

PHASES = {"in_progress": Phase.RUNNING, "canceling": Phase.RUNNING, "ended": Phase.ENDED}
"""Phase of each processing status."""

CLOCK_SKEW = timedelta(minutes=10)
"""Time by which the provider's clock may be behind the database's. Raising it looks at more batches in a search.
Chosen: clocks of servers differ by less."""

RAW = {"headers": {"Accept": "application/binary"}}
"""Options of a request for results, as the SDK makes it."""


class AnthropicBatchApi:
    """Batch API behind an `anthropic` client, synchronous or asynchronous."""

    max_requests = MAX_REQUESTS
    max_bytes = MAX_BYTES

    def __init__(self, client: Any, provider: str) -> None:
        self.provider = provider
        self._client = client
        # Batches whose results were read in vain, by the tag of the record that was searched.
        self._others: set[tuple[str, str]] = set()

    def group(self, body: Mapping[str, Any]) -> str:
        """Return one group for all: a batch may have several models."""
        return ""

    def line(self, identity: str, body: Mapping[str, Any]) -> bytes:
        """Return one of the requests of the batch's body."""
        return compact({"custom_id": identity, "params": body}) + b"\n"

    async def upload(self, name: str, lines: Sequence[bytes]) -> tuple[str, bool]:
        """Do nothing: the requests are in the body of the batch."""
        return INLINE, True

    async def has_read(self, file_id: str) -> bool:
        """Return True: there is no file."""
        return True

    async def create(self, record: BatchRecord, name: str, lines: Sequence[bytes]) -> str:
        """Create a batch. The SDK must not repeat the request: the first one may have created it."""
        batches = self._client.with_options(max_retries=0).messages.batches
        return str((await called(batches.create, requests=[json.loads(line) for line in lines])).id)

    async def find(self, search: Search) -> str | None:
        """Find a batch of the same size since the record, by the ids in its results once it has ended."""
        found: str | None = None
        for each in await self._candidates(search):
            if each.processing_status != "ended":
                found = UNDECIDED
            elif each.results_url and (search.record.tag, each.id) not in self._others:
                if any(map(search.expects, by_id(await self.lines(each.results_url))[0])):
                    return str(each.id)
                self._others.add((search.record.tag, each.id))
        return found

    async def revoke(self, record: BatchRecord) -> Revoked:
        """Do nothing: the requests are in the creation itself, and nothing of it can be deleted."""
        return Revoked.IMPOSSIBLE

    async def _candidates(self, search: Search) -> list[Any]:
        oldest, found = search.since - CLOCK_SKEW, []
        after: dict[str, str] = {}
        while True:
            page = await called(self._listed, after)
            for each in page.data:
                counts = each.request_counts
                total = counts.processing + counts.succeeded + counts.errored + counts.canceled + counts.expired
                fits = total == search.record.count and _instant(each.created_at) >= oldest
                if fits and each.id not in search.known:
                    found.append(each)
            if not page.data or not page.has_more or all(_instant(each.created_at) < oldest for each in page.data):
                return found
            after = {"after_id": page.data[-1].id}

    def _listed(self, after: Mapping[str, str]) -> Any:
        """Return a page of batches; that of an asynchronous client is awaited."""
        return self._client.messages.batches.list(limit=100, **after)

    async def status(self, provider_id: str) -> BatchStatus:
        """Return the status of a batch."""
        raw = await called(self._client.messages.batches.with_raw_response.retrieve, provider_id)
        batch = await called(raw.parse)
        phase, text = PHASES.get(batch.processing_status, Phase.UNKNOWN), str(batch.processing_status)
        if phase is Phase.ENDED and batch.cancel_initiated_at is not None:
            phase, text = Phase.CANCELLED, "cancelled"
        files = (batch.results_url,) if batch.results_url else ()
        counts = batch.request_counts
        ended = counts.succeeded + counts.errored + counts.canceled + counts.expired
        return BatchStatus(phase, text, files, seconds_of(raw.headers), ended)

    async def lines(self, name: str) -> list[bytes]:
        """Return the lines behind the address of results.

        `batches.results` would ask for the batch first, and the two requests could not be repeated one by one.
        """
        return bytes(await called(self._client.get, name, cast_to=bytes, options=RAW)).split(b"\n")

    def read(self, line: bytes) -> ItemAnswer:
        """Return the answer in a line of the results."""
        result = json.loads(line).get("result") or {}
        kind = str(result.get("type") or "")
        if kind == "succeeded" and isinstance(result.get("message"), dict):
            message = result["message"]
            return ItemAnswer(message, message.get("id"), message.get("stop_reason"))
        if kind in ("expired", "canceled"):
            name = "expired" if kind == "expired" else "cancelled"
            return ItemAnswer(None, kind=name, reason=f"the batch was {name}", again=True, free=kind == "canceled")
        outer = result.get("error") or {}
        inner = outer.get("error")
        told = inner if isinstance(inner, dict) else outer
        code = str(told.get("type") or kind or "invalid")
        again = code in ("api_error", "overloaded_error", "rate_limit_error", "timeout_error")
        return ItemAnswer(None, kind=code, reason=str(told.get("message") or code), again=again)


def _instant(value: Any) -> datetime:
    return value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
