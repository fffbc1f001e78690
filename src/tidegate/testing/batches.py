"""Files and batches of OpenAI, and message batches of Anthropic, as their SDKs read them. No limiter counts them.

A batch ends `Scenario.batch_seconds` after its creation. Its requests are answered as single calls are, without their
latency. Until then it can be cancelled, and its results are not there. `batch_failures` and `batch_expired` are the
shares of requests without an answer, `batch_rate` limits the endpoints, `batch_tokens` the queue.

Sources: openai-python 3.54, types/batch.py, types/file_object.py and resources/batches.py; the input and output lines
of https://platform.openai.com/docs/guides/batch. anthropic-sdk-python 2.12, types/messages/message_batch.py; the
answers of https://platform.claude.com/docs/en/api/retrieving-message-batches.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.parser import BytesParser
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from tidegate.testing.formats.base import Body, dumps, error_body
from tidegate.testing.limiters import DAY
from tidegate.testing.scenario import Scenario
from tidegate.testing.wire import Request

PAGE = 20
"""Objects in a page of a list that names no other limit, as at both providers."""

JSON = "application/json"
LINES = "application/x-jsonl"

AnswerOne = Callable[[str, Body], tuple[int, dict[str, Any]]]
"""Function that answers one request of a batch, by path and body, with a status and a body."""

Facts = Callable[..., dict[str, Any]]
"""Function that states the facts of an object to a request."""


class BatchAnswer(NamedTuple):
    """BatchAnswer to a request: status, body, content type and further headers."""

    status: int
    content: bytes
    kind: str
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class StoredFile:
    """File that was uploaded, or that a batch has made; `created` is in seconds of the epoch."""

    id: str
    name: str
    purpose: str
    content: bytes
    created: int

    def facts(self, request: Request) -> dict[str, Any]:
        return {
            "id": self.id, "object": "file", "bytes": len(self.content), "created_at": self.created,
            "expires_at": None, "filename": self.name, "purpose": self.purpose, "status": "processed",
            "status_details": None,
        }  # fmt: skip


@dataclass(slots=True)
class Batch:
    """Batch until its end: `lines` are its requests. Instants are seconds of the simulator's clock or of the epoch."""

    id: str
    lines: list[Body]
    created: float
    ends_at: float
    facts: dict[str, Any] = field(default_factory=dict)
    cancelled: float | None = None
    ended: float | None = None
    results: list[dict[str, Any]] = field(default_factory=list)
    output: StoredFile | None = None
    errors: StoredFile | None = None
    failed: bool = False
    expired: bool = False

    @property
    def tokens(self) -> int:
        """Return the tokens of its requests, by the size of their bodies."""
        return sum(len(dumps(each)) // 4 for each in self.lines)


class BatchApi:
    """Files and batches of one simulated provider."""

    def __init__(self, answer: AnswerOne, scenario: Callable[[], Scenario], clock: Callable[[], float]) -> None:
        self._answer = answer
        self._scenario = scenario
        self._clock = clock
        self._random = random.Random(f"batches of {scenario().seed}")
        self._free_at = -math.inf
        self._numbers = itertools.count(1)
        self._files: dict[str, StoredFile] = {}
        self._batches: dict[str, Batch] = {}
        self._message_batches: dict[str, Batch] = {}
        self._collections: tuple[tuple[str, dict[str, Any], Callable[..., Any], Facts], ...] = (
            ("/v1/files", self._files, self._upload, StoredFile.facts),
            ("/v1/batches", self._batches, self._create, self._openai_facts),
            ("/v1/messages/batches", self._message_batches, self._create_messages, self._message_facts),
        )
        """Path of each collection, its objects, and the functions that make an object and state its facts."""

    def handle(self, request: Request) -> BatchAnswer | None:
        path = request.path.removeprefix("/openai")
        if path != request.path and not path.startswith("/v1/"):
            # Azure's paths have no version.
            path = f"/v1{path}"
        for prefix, kept, make, state in self._collections:
            if path == prefix or path.startswith(f"{prefix}/"):
                name, _, action = path[len(prefix) + 1 :].partition("/")
                if (refused := self._refused()) is not None:
                    return refused
                try:
                    found = self._serve(request, name, action, kept, make, state)
                except (ValueError, AttributeError, TypeError, KeyError) as error:
                    return _answer(400, error_body(str(error)))
                return found or _answer(404, error_body(f"No such object: {request.method} {path}"))
        return None

    def _serve(
        self, request: Request, name: str, action: str, kept: dict[str, Any], make: Callable[..., Any], state: Facts
    ) -> BatchAnswer | None:
        """Answer a request to a collection, or to one object of it; None if there is no such object or action."""
        match request.method, name, action:
            case "POST", "", "":
                return _answer(200, state(make(request), request))
            case "GET", "", "":
                return _answer(200, _page([state(each, request) for each in reversed(kept.values())], request))
        found, messages = kept.get(name), kept is self._message_batches
        match found, request.method, action:
            case None, _, _:
                return None
            case _, "GET", "":
                return _answer(200, state(found, request))
            case StoredFile(), "GET", "content":
                return BatchAnswer(200, found.content, "application/octet-stream")
            case StoredFile(), "DELETE", "":
                del kept[name]
                return _answer(200, {"id": name, "object": "file", "deleted": True})
            case Batch(), "POST", "cancel":
                if not self._has_ended(found):
                    found.cancelled = found.ended = time.time()
                return _answer(200, state(found, request, cancelling=True))
            case Batch(), "GET", "results" if messages:
                if not self._has_ended(found):
                    return _answer(404, error_body(f"{found.id} has no results yet", "not_found_error"))
                return BatchAnswer(200, _lines(_message_results(found)), LINES)
            case Batch(), "DELETE", "" if messages:
                if not self._has_ended(found):
                    return _answer(400, error_body(f"{found.id} is still being processed; cancel it first"))
                del kept[name]
                return _answer(200, {"id": name, "type": "message_batch_deleted"})
        return None

    def _refused(self) -> BatchAnswer | None:
        """Return a 429 for a request that comes sooner than the rate of these endpoints allows."""
        rate, now = self._scenario().batch_rate, self._clock()
        if rate is None:
            return None
        if now < self._free_at:
            wait = math.ceil((self._free_at - now) * 1000) / 1000
            refused = _answer(429, error_body("Rate limit of the batch endpoints reached", "rate_limit_error"))
            return refused._replace(headers=(("retry-after", f"{wait:.3f}"),))
        self._free_at = now + 1 / rate
        return None

    def _upload(self, request: Request) -> StoredFile:
        kind = request.headers.get("content-type", "")
        form = BytesParser().parsebytes(b"content-type: " + kind.encode("latin-1") + b"\r\n\r\n" + request.body)
        if not form.is_multipart():
            raise ValueError("a form with `file` and `purpose` is required")
        parts: dict[str, tuple[str, bytes]] = {}
        for part in form.get_payload():
            name = str(part.get_param("name", "", "content-disposition"))  # type: ignore[union-attr]
            parts[name] = (part.get_filename() or "", bytes(part.get_payload(decode=True)))  # type: ignore
        if "file" not in parts:
            raise ValueError("file: Field required")
        return self._store(parts["file"][0] or "file", parts.get("purpose", ("", b""))[1].decode(), parts["file"][1])

    def _store(self, name: str, purpose: str, content: bytes) -> StoredFile:
        stored = StoredFile(f"file-{next(self._numbers):024d}", name, purpose, content, int(time.time()))
        self._files[stored.id] = stored
        return stored

    def _create(self, request: Request) -> Batch:
        body = json.loads(request.body)
        stored = self._files.get(str(body["input_file_id"]))
        if stored is None:
            raise ValueError(f"Invalid 'input_file_id': {body['input_file_id']}")
        lines = [json.loads(line) for line in stored.content.splitlines() if line.strip()]
        facts = {
            "endpoint": str(body["endpoint"]),
            "input_file_id": stored.id,
            "completion_window": str(body.get("completion_window", "24h")),
            "metadata": body.get("metadata"),
        }
        made = self._begin(self._batches, "batch", lines, facts)
        most = self._scenario().batch_tokens
        if most is not None:
            models = {_model(each) for each in lines}
            queued = (each for each in self._batches.values() if not self._has_ended(each))
            if sum(each.tokens for each in queued if models & {_model(line) for line in each.lines}) > most:
                made.failed, made.ended = True, time.time()
        return made

    def _begin(self, kept: dict[str, Batch], prefix: str, lines: list[Body], facts: dict[str, Any]) -> Batch:
        name = f"{prefix}_{next(self._numbers):024d}"
        made = kept[name] = Batch(name, lines, time.time(), self._clock() + self._scenario().batch_seconds, facts)
        return made

    def _has_ended(self, batch: Batch) -> bool:
        """Return whether a batch has ended, and answer its requests if it ends now."""
        if batch.ended is None and self._clock() >= batch.ends_at:
            batch.ended = time.time()
            answered = len(batch.lines) - int(len(batch.lines) * self._scenario().batch_expired)
            batch.expired = answered < len(batch.lines)
            for number, line in enumerate(batch.lines):
                batch.results.append(self._result(batch, line) if number < answered else self._unanswered(line))
        return batch.ended is not None

    def _unanswered(self, line: Body) -> dict[str, Any]:
        return {"custom_id": line.get("custom_id"), "status": 0, "body": None, "number": next(self._numbers)}

    def _result(self, batch: Batch, line: Body) -> dict[str, Any]:
        if self._random.random() < self._scenario().batch_failures:
            return {**self._unanswered(line), "status": 500, "body": error_body("Internal server error", "api_error")}
        path, body = batch.facts.get("endpoint", "/v1/messages"), line.get("body", line.get("params"))
        url = str(line.get("url") or path)
        url = url if url.startswith("/v1/") else f"/v1{url}"
        status, answer = self._answer(url, body if isinstance(body, dict) else {})
        return {"custom_id": line.get("custom_id"), "status": status, "body": answer, "number": next(self._numbers)}

    def _openai_facts(self, batch: Batch, request: Request, cancelling: bool = False) -> dict[str, Any]:
        ended = self._has_ended(batch)
        good = [each for each in batch.results if each["status"] == 200]
        bad = [each for each in batch.results if each["status"] != 200]
        if good and batch.output is None:
            batch.output = self._store(f"{batch.id}_output.jsonl", "batch_output", _lines(map(_openai_line, good)))
        if bad and batch.errors is None:
            batch.errors = self._store(f"{batch.id}_error.jsonl", "batch_output", _lines(map(_openai_line, bad)))
        is_cancelled = batch.cancelled is not None
        words = {"failed": batch.failed, "cancelled": is_cancelled, "expired": batch.expired, "completed": ended}
        word = next((word for word, holds in words.items() if ended and holds), "in_progress")
        is_over = word != "completed"
        created, end = int(batch.created), int(batch.ended) if batch.ended is not None else None
        return {
            "id": batch.id, "object": "batch", **batch.facts, "errors": _queue_full(batch) if batch.failed else None,
            "status": "cancelling" if cancelling and is_cancelled else word,
            "output_file_id": batch.output.id if batch.output is not None else None,
            "error_file_id": batch.errors.id if batch.errors is not None else None,
            "created_at": created, "in_progress_at": created, "expires_at": created + int(DAY),
            "finalizing_at": None if is_over else end, "completed_at": None if is_over else end,
            "failed_at": end if batch.failed else None, "expired_at": end if batch.expired else None,
            "cancelling_at": end if is_cancelled else None, "cancelled_at": end if is_cancelled else None,
            "request_counts": {"total": len(batch.lines), "completed": len(good), "failed": len(bad)},
        }  # fmt: skip

    def _create_messages(self, request: Request) -> Batch:
        lines = json.loads(request.body)["requests"]
        if not isinstance(lines, list) or not all(isinstance(each, dict) for each in lines):
            raise ValueError("requests: a list of objects is required")
        return self._begin(self._message_batches, "msgbatch", lines, {})

    def _message_facts(self, batch: Batch, request: Request, cancelling: bool = False) -> dict[str, Any]:
        ended = self._has_ended(batch) and not (cancelling and batch.cancelled is not None)
        good = sum(each["status"] == 200 for each in batch.results)
        expired = sum(each["status"] == 0 for each in batch.results)
        total, bad = len(batch.lines), len(batch.results) - good - expired
        is_cancelled = batch.cancelled is not None
        url = f"http://{request.headers.get('host', '127.0.0.1')}/v1/messages/batches/{batch.id}/results"
        return {
            "id": batch.id, "type": "message_batch",
            "processing_status": "ended" if ended else "canceling" if is_cancelled else "in_progress",
            "request_counts": {
                "processing": 0 if ended else total, "succeeded": good, "errored": bad,
                "canceled": total if ended and is_cancelled else 0, "expired": expired,
            },
            "created_at": _instant(batch.created), "expires_at": _instant(batch.created + DAY),
            "ended_at": _instant(batch.ended) if ended else None,
            "cancel_initiated_at": _instant(batch.cancelled),
            "archived_at": None, "results_url": url if ended else None,
        }  # fmt: skip


def _message_results(batch: Batch) -> Iterator[dict[str, Any]]:
    if batch.cancelled is not None:
        yield from ({"custom_id": each.get("custom_id"), "result": {"type": "canceled"}} for each in batch.lines)
    for each in batch.results:
        result = {"type": "errored", "error": each["body"]}
        if each["status"] in (0, 200):
            result = {"type": "succeeded", "message": each["body"]} if each["status"] else {"type": "expired"}
        yield {"custom_id": each["custom_id"], "result": result}


EXPIRED = {
    "code": "batch_expired",
    "message": "This request could not be executed before the completion window expired.",
}
"""Error of a request that an expired batch has not answered, as in the guide."""


def _model(line: Body) -> str:
    body = line.get("body")
    return str(body.get("model")) if isinstance(body, dict) else ""


def _queue_full(batch: Batch) -> dict[str, Any]:
    """Return the errors of a batch for which the queue of its model has no room."""
    message = f"Enqueued token limit reached: {batch.tokens} more tokens do not fit"
    return {
        "object": "list",
        "data": [{"code": "token_limit_exceeded", "message": message, "line": None, "param": None}],
    }


def _openai_line(result: dict[str, Any]) -> dict[str, Any]:
    status, number = result["status"], result["number"]
    response = {"status_code": status, "request_id": f"req_{number:08d}", "body": result["body"]}
    return {
        "id": f"batch_req_{number:024d}",
        "custom_id": result["custom_id"],
        "response": response if status else None,
        "error": None if status else EXPIRED,
    }


def _lines(values: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(dumps(each) + b"\n" for each in values)


def _page(rows: list[dict[str, Any]], request: Request) -> dict[str, Any]:
    """Return the page of a list behind the object that the query names."""
    asked = dict(parse_qsl(request.query))
    limit, name = int(asked.get("limit", PAGE)), asked.get("after", asked.get("after_id"))
    start = next((number + 1 for number, each in enumerate(rows) if each["id"] == name), 0)
    page = rows[start : start + limit]
    first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
    return {
        "object": "list", "data": page, "has_more": start + limit < len(rows), "first_id": first, "last_id": last
    }  # fmt: skip


def _instant(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _answer(status: int, value: object) -> BatchAnswer:
    return BatchAnswer(status, dumps(value), JSON)
