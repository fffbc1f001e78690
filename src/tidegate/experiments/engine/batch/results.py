"""Results of the rows of a batch: answers, failures, and rows that get another attempt."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from tidegate.admission.key_table import KeyTable
from tidegate.admission.redaction import clean, clean_fact
from tidegate.core.backoff import half_jitter
from tidegate.core.token_totals import TokenTotals, totals_of
from tidegate.core.values import Key, Usage
from tidegate.errors import UnusableAnswer
from tidegate.experiments.engine.background import redacted
from tidegate.experiments.engine.batch import ItemSet, custom_id
from tidegate.experiments.engine.batch.apis import BatchStatus, ItemAnswer, Phase, by_id
from tidegate.experiments.engine.batch.submission import POLL_SECONDS, BatchError, BatchPart, RequestRetries
from tidegate.experiments.engine.queues import TASK, Item, Place, copied
from tidegate.experiments.engine.results import WRITE_SECONDS
from tidegate.experiments.storage import BatchRecord, BatchState, ItemUsage, ResultStatus
from tidegate.providers import COMPATIBLE, adopt, credential_of, named, price_of, usage_of

BATCH = "batch"
"""Family of the keys of batches: their quotas are separate from those of single calls."""


POLL_AGE_SHARE = 0.1
"""Time between two looks at a batch, as a share of its age. Chosen: the end is noticed within a tenth of the time that
the batch took."""

LEAST_POLL_SECONDS = 1.0
"""Minimum seconds between two looks. Chosen: batches take minutes."""

TURN_RESULTS = 50
"""Results that are processed before other work of the loop gets a turn. Chosen: about 10 ms of parsing."""

MAX_SHOWN_CHARACTERS = 80
"""Maximum characters of an unknown id in the log. Derived from the longest id that a provider allows, 64."""

logger = logging.getLogger("tidegate")

T = TypeVar("T")


class BatchResults(BatchPart):
    """Results of the batches of one run; it counts the attempts at rows without an answer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._provider = self._api.provider
        self._paid_by = AccountKeys(self._task.client, self._provider, self._shared.registry)
        self._attempts: dict[Place, int] = {}
        # The name by which a model was asked, by the one that it answers with.
        self._asked_as: dict[str, str] = {}

    async def watch(self, record: BatchRecord) -> BatchRecord:
        began = self._run.shared.loop.time()
        while True:
            status = await self.status(record)
            if status.phase is not Phase.RUNNING:
                return await self._save(replace(record, state=BatchState.ENDED, detail=status.text))
            if status.text != record.detail:
                record = await self._save(replace(record, detail=status.text))
            age = self._run.shared.loop.time() - began
            await asyncio.sleep(
                max(min(POLL_SECONDS, max(LEAST_POLL_SECONDS, POLL_AGE_SHARE * age)), status.retry_after)
            )

    async def status(self, record: BatchRecord) -> BatchStatus:
        provider_id = record.provider_id or ""
        status = await self._asked(record, partial(self._api.status, provider_id))
        if status.phase is Phase.UNKNOWN:
            raise BatchError(record.number, f"{provider_id} has the unknown status {status.text!r}")
        return status

    async def fetch(self, record: BatchRecord, status: BatchStatus) -> list[Place] | None:
        """Queue the results of an ended batch, and wait until they are durable; return the rows that have none.

        Return None where the run is no longer live.
        """
        items = ItemSet(record.items)
        ids = {custom_id(self._name, record.tag, place) for place in items}
        found, broken = await self._found(record, status, ids)
        short = is_short(status, len(ids & found.keys()), record.count)
        unknown = found.keys() - ids
        if unknown:
            text = "%s: %d results of batch %d ignored: their ids are not its own, such as %s"
            logger.warning(text, self._what, len(unknown), record.number, clean(min(unknown), MAX_SHOWN_CHARACTERS))
        back, queued = [], []
        count = 0
        async for task in self._pending(items):
            place = Place(task.ordinal, task.repetition)
            item = Item(TASK, place, task.row, size=task.size)
            line = found.get(custom_id(self._name, record.tag, place))
            if line is None and broken:
                # It may be in the part that is cut off, and is paid for.
                continue
            answer = self._read(line) if line is not None else missing_answer(status, short)
            if self._take(item, answer, record.number):
                queued.append(item)
            else:
                back.append(place)
            count += 1
            await self._turn(count)
            if not self._run.live:
                return None
        # The results are written without a wait for more.
        self._run.shared.writer.flush()
        self._run.offer()
        await self._durable(queued)
        if broken and ids - found.keys():
            raise BatchError(record.number, f"{broken} lines of its results are cut or no JSON")

        return back

    async def _asked(self, record: BatchRecord, call: Callable[[], Awaitable[T]]) -> T:
        return await RequestRetries(self._run.shared, self._what, record).asked(call)

    async def _found(self, record: BatchRecord, status: BatchStatus, ids: set[str]) -> tuple[dict[str, bytes], int]:
        """Return the lines of the results by their ids, and the number of broken ones.

        Results that lack lines are fetched again: another batch for these rows would be paid for.
        """
        settings, shared = self._run.shared.settings, self._run.shared
        for attempt in range(1, settings.attempts + 1):
            lines = []
            for name in status.files:
                lines += await self._asked(record, partial(self._api.lines, name))
            found, broken = by_id(lines)
            short = is_short(status, len(ids & found.keys()), record.count)
            if not (broken or short) or not ids - found.keys() or attempt == settings.attempts:
                break
            text = "%s: results of batch %d lack %d rows: they are fetched again"
            logger.warning(text, self._what, record.number, len(ids - found.keys()))
            await asyncio.sleep(half_jitter(attempt, shared.gates.draw()))
        return found, broken

    def _read(self, line: bytes) -> ItemAnswer:
        """Return the answer in a line of the results; one of an unknown form is an error of its row."""
        try:
            return self._api.read(line)
        except (ValueError, TypeError, AttributeError, LookupError):
            return ItemAnswer(None, kind="invalid", reason="its line in the results has an unknown form")

    async def _turn(self, count: int) -> None:
        """Let other work go on, and wait while results cannot be queued."""
        if count % TURN_RESULTS == 0:
            self._run.offer()
            await asyncio.sleep(0)
        while self._run.live and not self._run.shared.writer.room:
            self._run.shared.writer.flush()
            await asyncio.sleep(WRITE_SECONDS)

    async def _durable(self, queued: list[Item]) -> None:
        tracker = self._run.tracker
        while queued:
            queued = [item for item in queued if tracker.is_live(item)]
            if queued:
                await asyncio.sleep(WRITE_SECONDS)

    def _take(self, item: Item, answer: ItemAnswer, batch: int) -> bool:
        """Queue the result of a row of that batch; return False if it gets another attempt.

        The provider has answered or refused every row by now, so failures of some do not stop the run. Errors of
        `parse` do: it is repaired, and the answers are still at the provider.
        """
        run = self._run
        item.attempts = self._attempts.get(item.place, 0)
        if answer.body is None and answer.again:
            if not answer.free:
                item.attempts += 1
            if answer.free or item.attempts < run.shared.settings.attempts:
                self._attempts[item.place] = item.attempts
                return False
            item.attempts -= 1
        self._attempts.pop(item.place, None)
        run.tracker.open(item)
        if answer.body is None:
            item.attempts += 1
            run.write_failure(item, ResultStatus.ERROR, answer.kind, answer.reason)
            return True
        item.usage = self._usage(item, answer)._replace(batch=batch)
        try:
            output = self._task.parse(answer.body)
        except UnusableAnswer as error:
            # The model's answer is the cause, not `parse`; another attempt would be paid for.
            item.attempts += 1
            run.write_failure(item, ResultStatus.ERROR, type(error).__name__, redacted(error))
        except Exception as error:
            self._run.results.fail(item, error)
        else:
            self._run.results.answer(item, output)
        return True

    def _model(self, item: Item) -> str:
        """Return the model that a request names; a deployment of Azure, or an alias, answers as another one."""
        try:
            return str(self._task.body(copied(item.body)).get("model") or "")
        except Exception:
            return ""

    def _usage(self, item: Item, answer: ItemAnswer) -> ItemUsage:
        body: Any = answer.body
        stated = usage_of(named(self._provider) or COMPATIBLE, json.dumps({"usage": body.get("usage")}).encode())
        model = (self._provider == "azure" and self._model(item)) or clean_fact(str(body.get("model") or "")) or ""
        facts = clean_fact(answer.finish_reason), clean_fact(answer.request_id)
        if stated is None:
            return ItemUsage(TokenTotals(), model or None, *facts)
        usage = stated._replace(model=model)
        family = self._paid_by.provider.name
        price = price_of(family, model) or price_of(family, self._model(item))
        spent = None if price is None else price.nanodollars(usage, batch=True)
        if model not in self._asked_as:
            self._asked_as[model] = self._model(item) or model
        self._paid_by.count(self._asked_as[model], usage, spent)
        self._run.audit.tokens.add(usage, spent)
        return ItemUsage(totals_of(usage, spent), model or None, *facts)


class AccountKeys:
    """Keys whose totals get the answers of batches: the account of the client, each model, and the family `batch`.

    `provider` is the one of a single call of the client, and its prices count. A server of the user's own, or a
    gateway, is no provider of the price table. Azure is in it with no model at all.
    """

    def __init__(self, client: Any, family: str, registry: KeyTable) -> None:
        base = client.base_url
        path = {"openai": "/chat/completions", "anthropic": "/v1/messages"}.get(family)
        adopted = None if path is None else adopt(str(base.host), str(base.path).rstrip("/") + path, family)
        self.provider = adopted or (COMPATIBLE if path is not None else named(family) or COMPATIBLE)
        self._registry = registry
        given = [*dict(client.default_headers).items(), *dict(client.auth_headers).items()]
        # An absent header is a marker of the SDK, not a text.
        headers = {str(name).lower(): value for name, value in given if isinstance(value, str)}
        origin = str(base.copy_with(path="/", query=None, fragment=None, userinfo=b"")).rstrip("/")
        self._account = Key(
            self.provider.name, origin, registry.digest(credential_of(self.provider, headers.get)), family=BATCH
        )

    def count(self, model: str, usage: Usage, nanodollars: int | None) -> None:
        """Add one answer to the totals of the key of the `model` that was asked, as for a single call."""
        if not self._registry.disabled:
            key = self._account._replace(scope=model)
            self._registry.count_usage(key, self.provider.default_window, usage, nanodollars)


def _is_complete(status: BatchStatus) -> bool:
    """Return True if the provider has ended a batch by itself, so that each request has a line."""
    return status.phase is Phase.ENDED and _word(status) != "expired"


def _word(status: BatchStatus) -> str:
    return status.text.partition(":")[0]


def is_short(status: BatchStatus, lines: int, requests: int) -> bool:
    """Return True if results lack lines that the provider has written, of requests that may be paid for."""
    return lines < (requests if _is_complete(status) else status.ended)


def missing_answer(status: BatchStatus, short: bool) -> ItemAnswer:
    """Return the answer of a request without a line in the results.

    Where these are `short`, it may have been answered and paid for, so it gets no other attempt.
    """
    if short:
        return ItemAnswer(
            None, kind="no_result", reason=f"batch {_word(status)}: its results have no line for this row"
        )
    cancelled = status.phase is Phase.CANCELLED
    kind = "cancelled" if cancelled else "no_result" if _is_complete(status) else "expired"
    return ItemAnswer(
        None, kind=kind, reason=f"batch {_word(status)}: no result for this row", again=True, free=cancelled
    )
