"""Batch API of OpenAI and Azure OpenAI through openai's SDK.

Source: https://platform.openai.com/docs/guides/batch (50,000 requests and 200 MB a file, one model a file, statuses,
output and error files), openai-python 3.52, types/batch.py and resources/batches.py; Azure: azure-ai-docs,
how-to/batch.md. Read 2026-11-24.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from tidegate.experiments.engine.batch.api import (
    BatchStatus,
    ItemAnswer,
    Phase,
    Revoked,
    Search,
    compact,
    is_refusal,
    seconds_of,
)
from tidegate.experiments.engine.batch.task import called
from tidegate.experiments.storage import BatchRecord

MAX_REQUESTS, MAX_BYTES = 50_000, 200_000_000
"""Requests and bytes of an input file. Raising one lets the provider reject the file. Source: the guide above."""

PHASES = {
    "validating": Phase.RUNNING,
    "in_progress": Phase.RUNNING,
    "finalizing": Phase.RUNNING,
    "cancelling": Phase.RUNNING,
    "completed": Phase.ENDED,
    "expired": Phase.ENDED,
    "cancelled": Phase.CANCELLED,
    "failed": Phase.FAILED,
}
"""Phase of each status."""

QUEUE_FULL = "token_limit_exceeded"
"""Code of a failure because too many tokens of a model are in unfinished batches."""

TAG = "tidegate_tag"
"""Name of the record's tag in a batch's metadata."""

CLOCK_SKEW = timedelta(hours=1)
"""Time by which the provider's clock may be behind the database's. Raising it reads older batches in a search. Chosen:
clocks of servers differ by less."""

KEPT = (409, 501)
"""Statuses of a deletion that say that a file is in use, or that files are never deleted."""

UNREAD = ("uploaded", "pending", "running", "notRunning")
"""States of a file that the provider has not read yet. Source: azure-ai-docs, how-to/batch.md, and its files API."""


class OpenAIBatchApi:
    """Batch API behind an `openai` client, synchronous or asynchronous."""

    max_requests = MAX_REQUESTS
    max_bytes = MAX_BYTES

    def __init__(self, client: Any, provider: str, endpoint: str) -> None:
        self.provider = provider
        self._client = client
        # Azure's paths have no version (how-to/batch.md).
        self._endpoint = endpoint.removeprefix("/v1") if provider == "azure" else endpoint

    def group(self, body: Mapping[str, Any]) -> str:
        """Return the model: a file has requests to one model only."""
        return str(body.get("model", ""))

    def line(self, identity: str, body: Mapping[str, Any]) -> bytes:
        """Return a line of the input file."""
        return compact({"custom_id": identity, "method": "POST", "url": self._endpoint, "body": body}) + b"\n"

    async def upload(self, name: str, lines: Sequence[bytes]) -> tuple[str, bool]:
        """Upload an input file."""
        content = (f"{name}.jsonl", b"".join(lines))
        stored = await called(self._client.files.create, file=content, purpose="batch")
        return str(stored.id), _is_read(stored)

    async def has_read(self, file_id: str) -> bool:
        """Return True if the provider has read an input file, or has refused to."""
        return _is_read(await called(self._client.files.retrieve, file_id))

    async def create(self, record: BatchRecord, name: str, lines: Sequence[bytes]) -> str:
        """Create a batch. The SDK must not repeat the request: the first one may have created it."""
        made = await called(
            self._client.with_options(max_retries=0).batches.create,
            input_file_id=record.file_id,
            endpoint=self._endpoint,
            completion_window="24h",
            metadata={"tidegate_experiment": name[:512], "tidegate_batch": str(record.number), TAG: record.tag},
        )
        return str(made.id)

    async def find(self, search: Search) -> str | None:
        """Find a batch by the tag in its metadata. Pages are sorted by time, the newest first."""
        oldest = (search.since - CLOCK_SKEW).timestamp()
        after: dict[str, str] = {}
        while True:
            page = await called(self._listed, after)
            for each in page.data:
                if (each.metadata or {}).get(TAG) == search.record.tag:
                    return str(each.id)
            if not page.data or not page.has_more or all(each.created_at < oldest for each in page.data):
                return None
            after = {"after": page.data[-1].id}

    async def revoke(self, record: BatchRecord) -> Revoked:
        """Delete the input file of a batch that was not found: no batch can be created from it any more."""
        try:
            await called(self._client.files.delete, record.file_id)
        except Exception as error:
            status = getattr(error, "status_code", None)
            if status == 404:
                return await self._unknown_or_kept(record)
            if status in KEPT or is_refusal(error):
                return Revoked.IMPOSSIBLE
            raise
        return Revoked.DONE

    async def _unknown_or_kept(self, record: BatchRecord) -> Revoked:
        """Return whether the server has the file, but no way to delete it."""
        try:
            await called(self._client.files.retrieve, record.file_id)
        except Exception as error:
            if getattr(error, "status_code", None) != 404:
                raise
            return Revoked.UNKNOWN
        return Revoked.IMPOSSIBLE

    def _listed(self, after: Mapping[str, str]) -> Any:
        """Return a page of batches; that of an asynchronous client is awaited."""
        return self._client.batches.list(limit=100, **after)

    async def status(self, provider_id: str) -> BatchStatus:
        """Return the status of a batch; its files are those of outputs and of errors."""
        raw = await called(self._client.batches.with_raw_response.retrieve, provider_id)
        batch = await called(raw.parse)
        phase = PHASES.get(batch.status, Phase.UNKNOWN)
        text, told = str(batch.status), batch.errors.data if batch.errors is not None else None
        if told:
            text += ": " + "; ".join(dict.fromkeys(str(each.message or each.code) for each in told[:3]))
            if phase is Phase.FAILED and any(each.code == QUEUE_FULL for each in told):
                phase = Phase.QUEUE_FULL
        files = tuple(each for each in (batch.output_file_id, batch.error_file_id) if each)
        counts = getattr(batch, "request_counts", None)
        ended = 0 if counts is None else (counts.completed or 0) + (counts.failed or 0)
        return BatchStatus(phase, text, files, seconds_of(raw.headers), ended)

    async def lines(self, name: str) -> list[bytes]:
        """Return the lines of an output or error file."""
        return bytes((await called(self._client.files.content, name)).content).split(b"\n")

    def read(self, line: bytes) -> ItemAnswer:
        """Return the answer in a line of an output or error file."""
        said = json.loads(line)
        response, error = said.get("response") or {}, said.get("error") or {}
        status, body = response.get("status_code"), response.get("body")
        if status == 200 and isinstance(body, dict):
            choices = body.get("choices")
            reason = choices[0].get("finish_reason") if isinstance(choices, list) and choices else None
            return ItemAnswer(body, response.get("request_id"), reason)
        inner = body.get("error") if isinstance(body, dict) else None
        told = error or (inner if isinstance(inner, dict) else {})
        code = str(told.get("code") or told.get("type") or "")
        reason = str(told.get("message") or code or "no reason given")
        expired, cancelled = code == "batch_expired", code in ("batch_cancelled", "batch_canceled")
        again = expired or cancelled or (isinstance(status, int) and (status in (408, 409, 429) or status >= 500))
        kind = "expired" if expired else "cancelled" if cancelled else f"status {status}" if status else code
        return ItemAnswer(None, kind=kind or "invalid", reason=reason, again=again, free=cancelled)


def _is_read(file: Any) -> bool:
    """Return True if a provider has read a file, or has refused to. Compatible providers may state no status."""
    return getattr(file, "status", None) not in UNREAD
