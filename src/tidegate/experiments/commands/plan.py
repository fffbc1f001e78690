"""Command `tidegate experiment plan`, the first lines of `run`, and the line that corrects them.

A plan reads the dataset, the database and the saved limits of earlier runs. Nothing is sent, and nothing is written.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import tidegate
from tidegate import providers
from tidegate.admission.accounts import account_of, shared_by
from tidegate.admission.saved_state import MAX_AGE, LearnedState
from tidegate.cli.common import stop
from tidegate.core.cost_estimator import FIRST_OUTPUT_TOKENS, CostEstimator
from tidegate.core.saved_state import SavedKey
from tidegate.core.token_totals import DOLLARS_PER_UNIT, TokenTotals, dollars
from tidegate.core.values import Key, RequestFacts, Usage
from tidegate.core.wait_text import amount, clock, counted, duration
from tidegate.errors import CannotLoad
from tidegate.experiments import Experiment, Progress
from tidegate.experiments.commands.common import Code, existing, install, is_there, loaded
from tidegate.experiments.commands.display import printer
from tidegate.experiments.declared import Declared
from tidegate.experiments.declared.clients import UnsentRequest
from tidegate.experiments.declared.schema import MissingField
from tidegate.experiments.engine.dataset import first_rows
from tidegate.experiments.engine.forecast import (
    ESTIMATE,
    CallCosts,
    KeyLimits,
    Range,
    TimeForecast,
    expected_costs,
    foresee,
    likely_mean,
    limits_of,
    longest,
)
from tidegate.experiments.engine.loader import lacking
from tidegate.experiments.engine.queues import TASK, TASK_STAGE
from tidegate.experiments.storage import ResultCounts, ResultStatus, Store
from tidegate.transports.request_key import OutgoingRequest, RequestRoute, key_of

SAMPLE_ROWS = 1_000
"""First rows whose requests are estimated, and last results whose tokens are read. Derived: the mean of 1,000 amounts
that vary by 100 % is right within 6 %; they take less than a second."""

READ_CLAIMS = 64
"""Last claims of a database whose learned limits are read. Chosen: more than run between two plans."""

CORRECTED_AFTER_ROWS = 50
"""Rows of a run after which its plan is corrected. Chosen: by then the limits of its keys are known."""

SHORT_REST_SECONDS = 10.0
"""Seconds of a rest that needs no correction. Chosen: the run is over soon after the line is read."""

NO_LIMITS = KeyLimits()

LATER = "unknown until the first answers"


@dataclass(frozen=True, slots=True)
class StagePlan:
    """Plan of one stage: the number of its items to do (None: unknown), and the likely means of one of them.

    `usd` is None without a price. `costs` are None where its calls are unknown, for the reason `why`. `asks` says
    whether it asks a model at all, as far as known. The output is `guessed` before the first answer.
    """

    name: str
    items: int | None
    key: Key | None = None
    limits: KeyLimits = NO_LIMITS
    age: float = 0.0
    tokens: tuple[Range, Range] | None = None
    usd: Range | None = None
    costs: CallCosts | None = None
    why: str = ""
    asks: bool = True
    guessed: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan of a run: its `rows` (None: unknown), its stages, and the time that their calls take (None: unknown).

    The time is that of the stages whose limits are known: the calls of the `unlimited` ones may take longer.
    """

    name: str
    rows: int | None
    repetitions: int
    stages: tuple[StagePlan, ...]
    time: TimeForecast | None
    unlimited: tuple[str, ...]
    batch: bool

    @property
    def asking(self) -> list[StagePlan]:
        return [each for each in self.stages if each.asks and each.items != 0]

    @property
    def usd(self) -> Range | None:
        """Return the cost of all in US dollars; None where the price of any stage is unknown."""
        total = Range(0.0, 0.0, 0.0)
        for each in self.asking:
            if each.usd is None or each.items is None:
                return None
            total = total.plus(each.usd.times(each.items))
        return total

    def lines(self) -> Iterator[str]:
        if self.stages and not any(each.items != 0 for each in self.stages):
            yield f"{self.name}: every row is answered and judged"
            return
        yield f"{self.name}: {self._headline()}"
        for each in self.asking:
            yield f"{each.name}: {_tokens_text(each)}"
        for key, stage in {each.key: each for each in self.asking if each.key is not None}.items():
            if stage.limits.known:
                known = ", ".join(stage.limits.texts)
                yield f"limits of {key}: {known} (learned {duration(stage.age)} ago)"
        yield f"time: {self._time_text()}"
        yield f"cost: {self._cost_text()}"

    def _time_text(self) -> str:
        if self.batch:
            return "the provider answers a batch within a day"
        if self.time is None:
            return LATER
        bound = f", bound by {self.time.bound_by}" if self.time.bound_by else ""
        if self.unlimited:
            least = duration(self.time.seconds.low)
            return f"at least {least}{bound}; no limit of {' and '.join(self.unlimited)} is known yet"
        return f"{_range_text(self.time.seconds, duration)}{bound}"

    def _cost_text(self) -> str:
        if self.usd is not None:
            return _range_text(self.usd, dollars)
        models = {f"{each.key.provider}/{each.key.scope}" for each in self.asking if each.key and each.usd is None}
        return f"unknown: no price of {' and '.join(sorted(models))}" if models else LATER

    def _headline(self) -> str:
        if self.rows is None:
            return "its rows are counted while they are read"
        times = f" × {self.repetitions}" if self.repetitions > 1 else ""
        judgements = sum(each.items or 0 for each in self.stages[1:])
        left = [f"{self.stages[TASK].items} to answer", *([f"{judgements} to judge"] if judgements else [])]
        return f"{counted(self.rows, 'row')}{times}, {', '.join(left)}"


def _tokens_text(stage: StagePlan) -> str:
    if stage.tokens is None:
        return f"{stage.why}: {LATER}"
    noun = "item" if stage.costs is None else "call"
    items = f"{noun}s" if stage.items is None else counted(stage.items, noun)
    into, out = stage.tokens
    assumed = " (assumed)" if stage.guessed else ""
    each = f"{items} of about {into.middle:.0f} input + {out.middle:.0f} output tokens{assumed}"
    return each if stage.items is None else f"{each}, {amount((into.middle + out.middle) * stage.items)} in all"


def _range_text(amounts: Range, text: Any) -> str:
    low, middle, high = map(text, amounts)
    return f"about {middle}" + (f" ({low} to {high})" if low != high else "")


def print_plan(source: str, url: str, at_once: int | None, limit: int | None) -> None:
    """Print the plan of the experiment at `source`, of its first `limit` rows."""
    install()
    experiment, _ = loaded(source, url, to_read=True)
    if reason := lacking(experiment.credentials):
        raise stop(str(CannotLoad(source, reason)), Code.BLOCKED)
    for line in asyncio.run(_read_and_plan(experiment, url, at_once, limit)).lines():
        printer().print(line, markup=False, soft_wrap=True)


async def _read_and_plan(experiment: Experiment, url: str, at_once: int | None, limit: int | None) -> Plan:
    try:
        if not is_there(url):
            return await planned(experiment, None, at_once, limit)
        async with existing(url, to_read=True) as store:
            return await planned(experiment, store, at_once, limit)
    finally:
        if isinstance(experiment, Declared):
            await experiment.aclose()


async def first_lines(experiment: Experiment, store: Store, at_once: int | None, limit: int | None) -> list[str]:
    """Return the plan of a run that begins; empty where it tells nothing but the rows."""
    try:
        plan = await planned(experiment, store, at_once, limit)
    except Exception:
        # A run says itself what is wrong with its dataset or its code.
        return []
    return list(plan.lines()) if any(each.tokens is not None for each in plan.asking) else []


async def planned(experiment: Experiment, store: Store | None, at_once: int | None, limit: int | None) -> Plan:
    """Return the plan of what is left of an experiment, which the `store` need not have."""
    row = await store.experiments.find(experiment.name) if store is not None else None
    counts, spent = ResultCounts(0, {}, {}), dict[str, list[TokenTotals]]()
    names = [TASK_STAGE, *(each.name for each in experiment.evaluators)]
    if store is not None and row is not None:
        counts = await store.reports.counts(row.id)
        for name in names:
            last = await store.usages.last_spent(row.id, name, SAMPLE_ROWS)
            spent[name] = [each for each in last if each.metered]
    sample, rows = await asyncio.to_thread(first_rows, experiment.dataset, SAMPLE_ROWS)
    rows = row.rows if row is not None and row.complete else rows
    rows = rows if limit is None or rows is None else min(rows, limit)
    known = _newest(await _states(store), datetime.now(UTC))
    stages: list[StagePlan] = []
    for index, name in enumerate(names):
        items, stored = _items_left(experiment, rows, counts, index), spent.get(name, [])
        if not isinstance(experiment, Declared):
            judged = counts.runs if index == TASK else counts.annotations.get(name, {})
            stages.append(_of_function(name, items, stored, asks=bool(stored) or not judged.get(ResultStatus.OK)))
            continue
        answer = stages[TASK].tokens if index else None
        written = FIRST_OUTPUT_TOKENS if answer is None else answer[1].middle
        bodies = [each.body for each in sample if each.invalid is None]
        requests, why = await _requests(experiment, index, bodies, written)
        stages.append(_of_requests(name, items, requests, stored, known, experiment.batch and index == TASK, why))
    bounds = [each for each in (at_once, experiment.max_concurrency) if each is not None]
    time, unlimited = (None, ()) if experiment.batch else _time(stages, min(bounds, default=None))
    return Plan(experiment.name, rows, experiment.repetitions, tuple(stages), time, unlimited, experiment.batch)


async def _states(store: Store | None) -> list[LearnedState]:
    """Return the saved limits of earlier runs: of the environment, and of the last claims in the database."""
    given = tidegate.registry().settings.initial_state
    found = [given.of_providers({each.provider for each in given.keys})] if given is not None else []
    for stored in await store.reports.learned_limits(READ_CLAIMS) if store is not None else ():
        try:
            found.append(LearnedState.of(stored))
        except ValueError:
            continue  # another version of tidegate wrote it
    return found


def _newest(states: Iterable[LearnedState], today: datetime) -> dict[Key, tuple[SavedKey, float]]:
    """Return what was learned last of each key, and its age in seconds; credentials are not told apart."""
    found = sorted((each for state in states for each in state.keys), key=lambda each: each.taken_on)
    newest = {each.key: each for each in found}
    ages = {key: today - each.taken_on for key, each in newest.items()}
    return {key: (newest[key].learned, max(0.0, age.total_seconds())) for key, age in ages.items() if age <= MAX_AGE}


def _items_left(experiment: Experiment, rows: int | None, counts: ResultCounts, stage: int) -> int | None:
    if rows is None:
        return None
    tasks, invalid = rows * experiment.repetitions, counts.runs.get(ResultStatus.INVALID, 0)
    done = counts.runs if stage == TASK else counts.annotations.get(experiment.evaluators[stage - 1].name, {})
    return max(0, tasks - invalid - done.get(ResultStatus.OK, 0))


async def _requests(
    experiment: Declared, stage: int, rows: Sequence[Any], answer: float
) -> tuple[list[UnsentRequest], str]:
    """Return the requests of a stage for some rows, whose answers have so many tokens, and why there are none."""
    found, why = [], "the dataset has no row that can be read"
    output = "x" * round(answer * CostEstimator().chars_per_token)
    for row in rows:
        try:
            found.append(await experiment.request(stage, row, output))
        except MissingField as error:
            why = str(error)
    return found, "" if found else why


def _of_function(name: str, items: int | None, spent: Sequence[TokenTotals], *, asks: bool) -> StagePlan:
    """Return the plan of a stage that is a function, of which stored results alone tell something."""
    why = "its calls are in your code"
    if not spent:
        return StagePlan(name, items, why=why, asks=asks)
    return StagePlan(name, items, tokens=_measured(spent, items), usd=_paid(spent, items))


def _measured(spent: Sequence[TokenTotals], items: int | None) -> tuple[Range, Range]:
    """Return the tokens of an item, in and out, by those of the last items."""
    population = len(spent) + (items or len(spent))
    into, out = [each.input_tokens for each in spent], [each.output_tokens for each in spent]
    return likely_mean(into, population), likely_mean(out, population)


def _paid(spent: Sequence[TokenTotals], items: int | None) -> Range | None:
    if any(each.priced < each.metered for each in spent):
        return None
    return likely_mean([each.nanodollars * DOLLARS_PER_UNIT for each in spent], len(spent) + (items or len(spent)))


def _of_requests(
    name: str,
    items: int | None,
    requests: Sequence[UnsentRequest],
    spent: Sequence[TokenTotals],
    known: Mapping[Key, tuple[SavedKey, float]],
    batch: bool,
    why: str,
) -> StagePlan:
    """Return the plan of a declared stage, by the requests of the first rows and the tokens of the last answers."""
    if not requests:
        return StagePlan(name, items, why=why)
    provider, key, facts = _facts_of(requests)
    saved, age = known.get(key, (SavedKey((), {}), 0.0))
    shared = shared_by(key, tidegate.registry().settings)
    of_account, account_age = known.get(account_of(key, shared[0]), (None, 0.0)) if shared else (None, 0.0)
    limits = limits_of(saved, age)
    if of_account is not None:
        limits = limits._replace(quotas=(*limits.quotas, *limits_of(of_account, account_age).quotas))
    measured = _measured(spent, items) if spent else None
    calls = expected_costs(provider, facts, items, saved, measured)
    costs = calls[1:]
    price = providers.price_of(provider.name, facts[0].model)
    tokens = Range(*(each.input_estimate for each in costs)), Range(*(each.output_estimate for each in costs))
    usages = [Usage(round(into), round(out)) for into, out in zip(*tokens, strict=True)]
    usd = _paid(spent, items) if spent else None
    if usd is None and price is not None:
        usd = Range(*(price.nanodollars(each, batch) * DOLLARS_PER_UNIT for each in usages))
    guessed = measured is None and ESTIMATE not in saved.gates
    return StagePlan(name, items, key, limits, max(age, account_age), tokens, usd, calls, guessed=guessed)


def _facts_of(requests: Sequence[UnsentRequest]) -> tuple[providers.Provider, Key, list[RequestFacts]]:
    """Return the provider and the key of requests of one stage, without a credential, and the facts of each."""
    first = requests[0]
    parts = urlsplit(first.url)
    provider = providers.adopt(parts.hostname or "", parts.path, first.family)
    assert provider is not None, "a declared question goes to an inference endpoint"
    route = RequestRoute(provider, parts.scheme, parts.hostname or "", parts.port, parts.path)
    facts = [providers.read_body(provider, route.place, json.dumps(dict(each.body)).encode()) for each in requests]
    key, _ = key_of(tidegate.registry(), OutgoingRequest(route, (), None, True), facts[0], {})
    return provider, key, facts


def _time(stages: Sequence[StagePlan], at_once: int | None) -> tuple[TimeForecast | None, tuple[str, ...]]:
    """Return the time of the stages whose limits are known, and the names of the others."""
    by_key: dict[Key, tuple[CallCosts, KeyLimits]] = {}
    unlimited = []
    for each in stages:
        if not each.asks or each.items == 0:
            continue
        if each.key is None or each.costs is None or each.items is None or not each.limits.known:
            unlimited.append(each.name)
            continue
        # Stages of one key go one after another.
        earlier = by_key.get(each.key)
        by_key[each.key] = (each.costs if earlier is None else earlier[0].plus(each.costs), each.limits)
    known = [each for each in (foresee(*calls, at_once) for calls in by_key.values()) if each is not None]
    return longest(known) if known else None, tuple(unlimited)


class Correction:
    """The one line that corrects a plan, once `CORRECTED_AFTER_ROWS` rows are done and the limits of the keys are
    known."""

    def __init__(self) -> None:
        self._earlier: int | None = None
        self._is_told = False

    def line(self, seen: Progress) -> str:
        """Return the line at the look at which it is due, else nothing."""
        tasks = seen.stages[TASK]
        if self._earlier is None and tasks.total:
            self._earlier = tasks.finished
        done = tasks.finished - (self._earlier or 0)
        if self._is_told or done < CORRECTED_AFTER_ROWS or seen.rest is None or seen.rest < SHORT_REST_SECONDS:
            return ""
        self._is_told = True
        bound = f", bound by {seen.bound_by}" if seen.bound_by else ""
        cost = seen.tokens.cost
        in_all = "" if cost is None else f"; about {dollars(cost / tasks.finished * tasks.total)} in all"
        return f"{seen.name} after {done} rows: {clock(seen.rest)} to go{bound}{in_all}"
