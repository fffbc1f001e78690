"""Batch APIs of providers, through their SDKs.

A message batch of Anthropic has no metadata. So a batch that a dead process may have created is found among those of
the same number of requests since then, by the ids in its results.

Sources: https://platform.openai.com/docs/guides/batch (50,000 requests and 200 MB a file, one model a file, statuses,
output and error files), openai-python 3.52, types/batch.py and resources/batches.py; Azure: azure-ai-docs,
how-to/batch.md; https://platform.claude.com/docs/en/build-with-claude/batch-processing (100,000 requests or 256 MB,
statuses, result types), anthropic-sdk-python 2.11, types/messages/message_batch.py. Read 2026-11-24.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias

from tidegate.errors import ConfigurationError
from tidegate.experiments.engine.batch import BatchTask, called
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
    """Status of a batch. `text` is the provider's name for it, with its reasons.

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


INLINE = "-"
"""Name in place of a file's where the requests are sent with the batch itself."""

UNDECIDED = ""
"""Result of a search that must be repeated: a batch that may be the wanted one has not ended."""


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


OPENAI_PHASES = {
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

OPENAI_CLOCK_SKEW = timedelta(hours=1)
"""Time by which the provider's clock may be behind the database's. Chosen: clocks of servers differ by less."""

KEPT_FILE_STATUSES = (409, 501)
"""Statuses of a deletion that say that a file is in use, or that files are never deleted."""

UNREAD = ("uploaded", "pending", "running", "notRunning")
"""States of a file that the provider has not read yet. Source: azure-ai-docs, how-to/batch.md, and its files API."""


class OpenAIBatchApi:
    """Batch API behind an `openai` client, synchronous or asynchronous."""

    max_requests = 50_000
    max_bytes = 200_000_000

    def __init__(self, client: Any, provider: str, endpoint: str) -> None:
        self.provider = provider
        self._client = client
        # Azure's paths have no version (how-to/batch.md).
        self._endpoint = endpoint.removeprefix("/v1") if provider == "azure" else endpoint

    def group(self, body: Mapping[str, Any]) -> str:
        """Return the model: a file has requests to one model only."""
        return str(body.get("model", ""))

    def line(self, identity: str, body: Mapping[str, Any]) -> bytes:
        return compact({"custom_id": identity, "method": "POST", "url": self._endpoint, "body": body}) + b"\n"

    async def upload(self, name: str, lines: Sequence[bytes]) -> tuple[str, bool]:
        content = (f"{name}.jsonl", b"".join(lines))
        stored = await called(self._client.files.create, file=content, purpose="batch")
        return str(stored.id), _is_read(stored)

    async def has_read(self, file_id: str) -> bool:
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

    async def find(
        self, record: BatchRecord, since: datetime, known: frozenset[str], expects: Callable[[str], bool]
    ) -> str | None:
        """Find a batch by the tag in its metadata. Pages are sorted by time, the newest first."""
        oldest = (since - OPENAI_CLOCK_SKEW).timestamp()
        after: dict[str, str] = {}
        while True:
            page = await called(self._listed, after)
            for each in page.data:
                if (each.metadata or {}).get(TAG) == record.tag:
                    return str(each.id)
            if not page.data or not page.has_more or all(each.created_at < oldest for each in page.data):
                return None
            after = {"after": page.data[-1].id}

    async def revoke(self, record: BatchRecord) -> bool | None:
        """Delete the input file of a batch that was not found: no batch can be created from it any more.

        Return False where that is impossible, and None where the provider does not know the file.
        """
        try:
            await called(self._client.files.delete, record.file_id)
        except Exception as error:
            status = getattr(error, "status_code", None)
            if status == 404:
                return await self._unknown_or_kept(record)
            if status in KEPT_FILE_STATUSES or is_refusal(error):
                return False
            raise
        return True

    async def _unknown_or_kept(self, record: BatchRecord) -> bool | None:
        """Return whether the server has the file, but no way to delete it."""
        try:
            await called(self._client.files.retrieve, record.file_id)
        except Exception as error:
            if getattr(error, "status_code", None) != 404:
                raise
            return None
        return False

    def _listed(self, after: Mapping[str, str]) -> Any:
        """Return a page of batches; that of an asynchronous client is awaited."""
        return self._client.batches.list(limit=100, **after)

    async def status(self, provider_id: str) -> BatchStatus:
        """Return the status of a batch; its files are those of outputs and of errors."""
        raw = await called(self._client.batches.with_raw_response.retrieve, provider_id)
        batch = await called(raw.parse)
        phase = OPENAI_PHASES.get(batch.status, Phase.UNKNOWN)
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
        return bytes((await called(self._client.files.content, name)).content).split(b"\n")

    def read(self, line: bytes) -> ItemAnswer:
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


ANTHROPIC_PHASES = {"in_progress": Phase.RUNNING, "canceling": Phase.RUNNING, "ended": Phase.ENDED}
"""Phase of each processing status."""

ANTHROPIC_CLOCK_SKEW = timedelta(minutes=10)
"""Time by which the provider's clock may be behind the database's. Chosen: clocks of servers differ by less."""

RAW = {"headers": {"Accept": "application/binary"}}
"""Options of a request for results, as the SDK makes it."""


class AnthropicBatchApi:
    """Batch API behind an `anthropic` client, synchronous or asynchronous."""

    max_requests = 100_000
    max_bytes = 256_000_000

    def __init__(self, client: Any, provider: str) -> None:
        self.provider = provider
        self._client = client
        # Batches whose results were read in vain, by the tag of the record that was searched.
        self._others: set[tuple[str, str]] = set()

    def group(self, body: Mapping[str, Any]) -> str:
        """Return one group for all: a batch may have several models."""
        return ""

    def line(self, identity: str, body: Mapping[str, Any]) -> bytes:
        return compact({"custom_id": identity, "params": body}) + b"\n"

    async def upload(self, name: str, lines: Sequence[bytes]) -> tuple[str, bool]:
        """Do nothing: the requests are in the body of the batch."""
        return INLINE, True

    async def has_read(self, file_id: str) -> bool:
        return True

    async def create(self, record: BatchRecord, name: str, lines: Sequence[bytes]) -> str:
        """Create a batch. The SDK must not repeat the request: the first one may have created it."""
        batches = self._client.with_options(max_retries=0).messages.batches
        return str((await called(batches.create, requests=[json.loads(line) for line in lines])).id)

    async def find(
        self, record: BatchRecord, since: datetime, known: frozenset[str], expects: Callable[[str], bool]
    ) -> str | None:
        """Find a batch of the same size since the record, by the ids in its results once it has ended.

        `expects` says whether an id is one of its requests. `known` has the provider's names of other records' batches.
        """
        found: str | None = None
        for each in await self._candidates(record.count, since, known):
            if each.processing_status != "ended":
                found = UNDECIDED
            elif each.results_url and (record.tag, each.id) not in self._others:
                if any(map(expects, by_id(await self.lines(each.results_url))[0])):
                    return str(each.id)
                self._others.add((record.tag, each.id))
        return found

    async def revoke(self, record: BatchRecord) -> bool | None:
        """Do nothing: the requests are in the creation itself, and nothing of it can be deleted."""
        return False

    async def _candidates(self, count: int, since: datetime, known: frozenset[str]) -> list[Any]:
        oldest, found = since - ANTHROPIC_CLOCK_SKEW, []
        after: dict[str, str] = {}
        while True:
            page = await called(self._listed, after)
            for each in page.data:
                counts = each.request_counts
                total = counts.processing + counts.succeeded + counts.errored + counts.canceled + counts.expired
                fits = total == count and _instant(each.created_at) >= oldest
                if fits and each.id not in known:
                    found.append(each)
            if not page.data or not page.has_more or all(_instant(each.created_at) < oldest for each in page.data):
                return found
            after = {"after_id": page.data[-1].id}

    def _listed(self, after: Mapping[str, str]) -> Any:
        """Return a page of batches; that of an asynchronous client is awaited."""
        return self._client.messages.batches.list(limit=100, **after)

    async def status(self, provider_id: str) -> BatchStatus:
        raw = await called(self._client.messages.batches.with_raw_response.retrieve, provider_id)
        batch = await called(raw.parse)
        phase, text = ANTHROPIC_PHASES.get(batch.processing_status, Phase.UNKNOWN), str(batch.processing_status)
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


ProviderBatchApi: TypeAlias = OpenAIBatchApi | AnthropicBatchApi
"""Batch API of a provider. Its methods raise the errors of the SDK."""


def api_of(task: BatchTask) -> ProviderBatchApi:
    """Return the Batch API behind a task's client. Raise `ConfigurationError` if it has none."""
    client: Any = task.client
    if hasattr(getattr(client, "messages", None), "batches"):
        return AnthropicBatchApi(client, "anthropic")
    if hasattr(client, "batches") and hasattr(client, "files"):
        azure = any(each.__name__ == "BaseAzureClient" for each in type(client).__mro__)
        return OpenAIBatchApi(client, "azure" if azure else "openai", task.endpoint)
    raise ConfigurationError("client", type(client).__name__, "a client of the openai or anthropic SDK with batches")
