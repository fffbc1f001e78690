"""Results of the rows of a batch: answers, failures, and rows that get another attempt."""

from __future__ import annotations

import json
from typing import Any

from tidegate.admission.key_table import KeyTable
from tidegate.admission.redaction import clean_fact
from tidegate.core.token_totals import TokenTotals, totals_of
from tidegate.core.values import Key, Usage
from tidegate.errors import UnusableAnswer
from tidegate.experiments.engine.background import redacted
from tidegate.experiments.engine.batch import BatchTask
from tidegate.experiments.engine.batch.apis import BatchStatus, ItemAnswer, Phase, ProviderBatchApi
from tidegate.experiments.engine.queues import Item, Place, copied
from tidegate.experiments.engine.run import ExperimentRun
from tidegate.experiments.storage import ItemUsage, ResultStatus
from tidegate.providers import COMPATIBLE, adopt, credential_of, named, price_of, usage_of

BATCH = "batch"
"""Family of the keys of batches: their quotas are separate from those of single calls."""


class BatchResults:
    """Receiver of the answers of batches; it counts the attempts at rows without one."""

    def __init__(self, run: ExperimentRun, api: ProviderBatchApi, task: BatchTask) -> None:
        self._run = run
        self._task = task
        self._provider = api.provider
        self._paid_by = AccountKeys(task.client, api.provider, run.shared.registry)
        self._attempts: dict[Place, int] = {}
        # The name by which a model was asked, by the one that it answers with.
        self._asked_as: dict[str, str] = {}

    def take(self, item: Item, answer: ItemAnswer, batch: int) -> bool:
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

    def _asked(self, item: Item) -> str:
        """Return the model that a request names; a deployment of Azure, or an alias, answers as another one."""
        try:
            return str(self._task.body(copied(item.body)).get("model") or "")
        except Exception:
            return ""

    def end(self) -> None:
        """End a batch: let its results be written without waiting for more."""
        self._run.shared.writer.flush()
        self._run.offer()

    def _usage(self, item: Item, answer: ItemAnswer) -> ItemUsage:
        """Return the usage that a body states, at the price of the Batch API."""
        body: Any = answer.body
        stated = usage_of(named(self._provider) or COMPATIBLE, json.dumps({"usage": body.get("usage")}).encode())
        model = (self._provider == "azure" and self._asked(item)) or clean_fact(str(body.get("model") or "")) or ""
        facts = clean_fact(answer.finish_reason), clean_fact(answer.request_id)
        if stated is None:
            return ItemUsage(TokenTotals(), model or None, *facts)
        usage = stated._replace(model=model)
        family = self._paid_by.provider.name
        price = price_of(family, model) or price_of(family, self._asked(item))
        spent = None if price is None else price.nanodollars(usage, batch=True)
        if model not in self._asked_as:
            self._asked_as[model] = self._asked(item) or model
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
