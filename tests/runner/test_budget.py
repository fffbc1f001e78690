"""Budgets: a run stops at a row boundary near its budget, goes on with a larger one, and sends nothing unpriced."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import tidegate
from tests import constants
from tests.cli.experiment.commands import Place
from tests.cli.running import TIDEGATE, environ
from tests.postgres import served
from tests.runner.scene import in_loop, runner_at, settings
from tests.storage.places import Place as AnyPlace
from tests.storage.places import PostgreSQL, SQLite
from tests.warm import WarmProcess
from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.token_totals import TokenTotals
from tidegate.errors import ConfigurationError
from tidegate.experiments import Budget, Experiment, ExperimentRunner, RunnerSettings
from tidegate.experiments.engine.budget import BudgetLedger, EarlierSpend, budget_options
from tidegate.experiments.engine.spending import RunSpending
from tidegate.experiments.storage import Status, claims
from tidegate.providers import ModelPrice, register_price
from tidegate.testing import Distribution, Scenario, Simulator


def spent(nanodollars: int) -> TokenTotals:
    """Return one answer of that cost, with as many tokens."""
    return TokenTotals(1, nanodollars, 0, 0, 0, 0, 1, nanodollars)


def ledger_of(budget: Budget, stages: int = 1) -> BudgetLedger:
    """Return the ledger of a first claim."""
    return BudgetLedger(budget, [EarlierSpend()] * stages, [0] * (stages - 1), TokenTotals())


def start_all(ledger: BudgetLedger) -> int:
    """Start rows until no further one may start; return their number."""
    count = 0
    while ledger.may_start:
        ledger.start_row()
        count += 1
    return count


def played(
    budget: float, cost: Callable[[random.Random], float], slots: int, seed: int, judge: float = 0.0, rows: int = 1_000
) -> tuple[float, int, int, float]:
    """Run rows against a ledger: each takes one round. Return what was spent, rows, rounds, and the dearest row."""
    draw = random.Random(seed)
    ledger = ledger_of(Budget(usd=budget * 1e-9), 2 if judge else 1)
    total, done, rounds, dearest = 0.0, 0, 0, 0.0
    while not ledger.reached and done < rows:
        started = 0
        while started < min(slots, rows - done) and ledger.may_start:
            ledger.start_row()
            started += 1
        assert started, "neither reached nor able to start"
        for _ in range(started):
            price = round(cost(draw))
            ledger.end_task(spent(price), answered=True)
            total += price
            if judge:
                ledger.end_judgement(1, spent(round(judge)))
                ledger.close_judgement(1)
                total += judge
            dearest = max(dearest, price + judge)
        done += started
        rounds += 1
    return total, done, rounds, dearest


COSTS: dict[str, Callable[[random.Random], float]] = {
    "equal": lambda draw: 1_000.0,
    "even": lambda draw: draw.uniform(200.0, 1_800.0),
    "heavy tail": lambda draw: draw.lognormvariate(6.5, 0.9),
    "two kinds": lambda draw: 4_000.0 if draw.random() < 0.2 else 250.0,
}


@pytest.mark.parametrize("slots", [4, 100, 1_000])
@pytest.mark.parametrize("kind", COSTS)
def test_spend_is_near_the_budget_however_many_are_in_flight(kind: str, slots: int) -> None:
    for seed in range(12):
        budget = 500_000.0
        total, done, _, dearest = played(budget, COSTS[kind], slots, seed)
        assert done < 1_000
        assert total <= budget + max(0.05 * budget, dearest), (kind, slots, seed)
        assert total >= budget - max(0.05 * budget, 3 * dearest), (kind, slots, seed)


@pytest.mark.parametrize("slots", [4, 100, 1_000])
def test_rows_that_cost_ever_more_exceed_a_budget_by_what_is_in_flight_at_most(slots: int) -> None:
    budget, draw = 50_000.0, random.Random(1)
    ledger = ledger_of(Budget(usd=budget * 1e-9))
    total = done = last = 0
    while not ledger.reached:
        started = 0
        while started < slots and ledger.may_start:
            ledger.start_row()
            started += 1
        last = 0
        for row in range(done, done + started):
            price = draw.randint(1, 2 + row // 2)
            ledger.end_task(spent(price), answered=True)
            last += price
        done, total = done + started, total + last
    assert 0.9 * budget <= total <= budget + last


def test_dear_rows_after_cheap_ones_reserve_what_the_last_64_have_cost() -> None:
    ledger = ledger_of(Budget(tokens=20_000))
    for cost in [10] * 100 + [100] * 64:
        assert ledger.may_start
        ledger.start_row()
        ledger.end_task(spent(cost), answered=True)
    assert start_all(ledger) == (20_000 - 1_000 - 6_400) // 100


def test_a_spread_of_costs_is_reserved_by_two_deviations() -> None:
    ledger = ledger_of(Budget(tokens=100_000))
    for cost in [800, 1_200] * 32:
        ledger.start_row()
        ledger.end_task(spent(cost), answered=True)
    # A mean of 1,000, and twice the deviation of 200.
    assert start_all(ledger) == 36_000 // 1_404


def test_judgements_are_reserved_with_their_rows() -> None:
    total, done, _, dearest = played(500_000.0, COSTS["even"], 100, 3, judge=500.0)
    assert total <= 500_000.0 + max(25_000.0, dearest)
    assert 300 < done < 350


def test_many_rows_run_at_once_after_few_rounds() -> None:
    _, done, rounds, _ = played(1e12, COSTS["even"], 1_000, 1)
    assert done == 1_000
    assert rounds <= 12


def test_rows_without_cost_are_no_reason_to_stop() -> None:
    ledger = ledger_of(Budget(tokens=10))
    for _ in range(100):
        assert ledger.may_start
        ledger.start_row()
        ledger.end_task(TokenTotals(), answered=True)
    assert not ledger.reached


def test_what_earlier_claims_spent_counts() -> None:
    ledger = BudgetLedger(
        Budget(usd=0.006, tokens=10**9),
        [
            EarlierSpend(spent(3_000_000), [spent(1_000_000)] * 3),
            EarlierSpend(spent(1_000_000), [spent(500_000)] * 2),
        ],
        [0],
        spent(1_000_000),
    )
    # A row has cost $0.001 and its judgement $0.0005: $0.005 are spent, and one more row does not fit.
    assert ledger.reached
    assert ledger.reason == (
        "budget of $0.0060 reached: $0.0050 and 5000000 tokens spent; a larger budget continues it"
    )
    assert budget_options(ledger.reason) == ["--budget-usd", "USD"]
    ledger = BudgetLedger(Budget(usd=100.0, tokens=6_000_000), [EarlierSpend(spent(3_000_000))], [], spent(2_500_000))
    assert ledger.reason.startswith("budget of 6000000 tokens reached: ")
    assert budget_options(ledger.reason) == ["--budget-tokens", "N"]


@pytest.mark.parametrize(
    "given",
    [{}, {"usd": 0}, {"usd": -1}, {"usd": float("nan")}, {"usd": float("inf")}, {"usd": True}, {"usd": "5"},
     {"tokens": 0}, {"tokens": 1.5}, {"tokens": True}],
)  # fmt: skip
def test_a_budget_without_an_amount_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="budget"):
        Budget(**given)


def test_settings_refuse_a_budget_of_nothing() -> None:
    with pytest.raises(ConfigurationError, match="TIDEGATE_EXPERIMENTS_BUDGET_USD"):
        RunnerSettings.from_environment({"TIDEGATE_EXPERIMENTS_BUDGET_USD": "0"})
    assert RunnerSettings.from_environment({"TIDEGATE_EXPERIMENTS_BUDGET_USD": "2.5"}).budget_usd == 2.5


class Provider:
    """A provider of one model, whose answers cost what their row says: `tokens` of output at 1 dollar a million.

    The answer to a row that is `silent` states no usage, and that to one with a `tier` this service tier.
    """

    def __init__(self, registry: RateLimitRegistry) -> None:
        self.asked: list[int] = []
        self.spent = 0.0
        transport = httpx.MockTransport(self._answer)
        self.client = registry.wrap(httpx.AsyncClient(transport=transport, base_url="https://api.openai.com"))

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        row = json.loads(json.loads(request.content)["messages"][0]["content"])
        self.asked.append(row["n"])
        await asyncio.sleep(0.001)
        self.spent += row["tokens"] * 1e-6
        usage = {"prompt_tokens": 0, "completion_tokens": row["tokens"]}
        choice = {"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}
        told = {} if row.get("silent") else {"usage": usage, "service_tier": row.get("tier", "default")}
        return httpx.Response(200, json={"choices": [choice], **told})

    async def ask(self, row: Any, model: str = "priced") -> str:
        body = {"model": model, "messages": [{"role": "user", "content": json.dumps(row)}]}
        response = await self.client.post("/v1/chat/completions", json=body)
        response.raise_for_status()
        return str(response.json()["choices"][0]["message"]["content"])


@pytest.fixture(autouse=True)
def _priced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.providers._prices._added", {(None, "priced"): ModelPrice(1.0, 1.0)})
    monkeypatch.setattr(claims, "COOLDOWN_SECONDS", 0.0)


def rows_of(count: int, seed: int = 1) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    return [{"n": n, "tokens": draw.randint(200, 1_800)} for n in range(count)]


@in_loop
async def test_a_run_stops_at_a_row_boundary_and_goes_on_with_a_larger_budget(tmp_path: Path) -> None:
    registry = RateLimitRegistry(tidegate.Settings())
    provider = Provider(registry)

    async def judge(row: Any, output: str) -> float:
        await provider.ask({"n": -1, "tokens": 100})
        return 1.0

    rows = rows_of(300)
    usd = 0.5 * sum(row["tokens"] + 100 for row in rows) * 1e-6
    async with provider.client:
        async with runner_at(tmp_path, registry=registry) as runner:
            summary = await runner.run(Experiment("e", rows, provider.ask, [judge], budget=Budget(usd=usd)))
            assert summary.status is Status.STOPPED
            assert summary.last_error is not None
            assert summary.last_error.startswith("budget of $")
            # Every answered row is judged: the run ended between two rows.
            assert summary.answered == summary.scores[0].scored
            assert 0 < summary.untried < 300
            assert summary.tokens.cost == pytest.approx(provider.spent)
            assert usd - 3 * 1_900e-6 <= provider.spent <= usd + max(0.05 * usd, 1_900e-6)
            before = summary.answered
        async with runner_at(tmp_path, registry=registry, budget_usd=10.0) as runner:
            summary = await runner.run(Experiment("e", rows, provider.ask, [judge], budget=Budget(usd=usd)))
            assert summary.status is Status.COMPLETED
            # Displays read the budget of the last run there.
            stored = await runner.store.experiments.find("e")
            assert stored is not None
            assert stored.spec["budget"] == {"usd": 10.0}
            assert (summary.answered, summary.scores[0].scored) == (300, 300)
            assert before < 300
            assert sorted(n for n in provider.asked if n >= 0) == list(range(300))


@in_loop
async def test_a_budget_in_tokens_needs_no_price(tmp_path: Path) -> None:
    registry = RateLimitRegistry(tidegate.Settings())
    provider = Provider(registry)

    async def ask(row: Any) -> str:
        return await provider.ask(row, "a-model-without-a-price")

    async with provider.client, runner_at(tmp_path, registry=registry) as runner:
        summary = await runner.run(Experiment("e", rows_of(100), ask, budget=Budget(tokens=20_000)))
    assert summary.status is Status.STOPPED
    assert 20_000 - 2 * 1_800 <= summary.tokens.output_tokens <= 20_000 + 1_800


@in_loop
async def test_a_model_without_a_price_ends_the_run_before_its_first_call(tmp_path: Path) -> None:
    registry = RateLimitRegistry(tidegate.Settings())
    provider = Provider(registry)

    async def ask(row: Any) -> str:
        return await provider.ask(row, "a-model-without-a-price")

    async with provider.client, runner_at(tmp_path, registry=registry) as runner:
        summary = await runner.run(Experiment("e", rows_of(20), ask, budget=Budget(usd=5.0)))
    assert provider.asked == []
    assert summary.status is Status.ERROR
    assert summary.last_error is not None
    assert "openai/a-model-without-a-price" in summary.last_error
    assert "register_price" in summary.last_error


@in_loop
async def test_a_service_tier_without_a_price_ends_the_run_at_its_first_answer(tmp_path: Path) -> None:
    registry = RateLimitRegistry(tidegate.Settings())
    provider = Provider(registry)
    rows = [{"n": n, "tokens": 100, "tier": "flex"} for n in range(20)]
    async with provider.client, runner_at(tmp_path, registry=registry) as runner:
        summary = await runner.run(Experiment("e", rows, provider.ask, budget=Budget(usd=5.0)))
        assert (summary.status, provider.asked) == (Status.ERROR, [0])
        assert "openai/priced@flex has no price" in str(summary.last_error)
        assert summary.tokens.cost is None
        register_price("priced@flex", ModelPrice(0.5, 0.5))
        summary = await runner.run(Experiment("e", rows, provider.ask, budget=Budget(usd=5.0)))
    assert (summary.status, summary.answered) == (Status.COMPLETED, 20)
    # The first answer was paid, and its price was not known.
    assert (summary.tokens.metered, summary.tokens.priced) == (20, 19)
    assert summary.tokens.nanodollars == 19 * 100 * 500


@pytest.mark.parametrize("budget", [Budget(usd=5.0), Budget(tokens=10_000)])
@in_loop
async def test_answers_that_state_no_usage_end_a_run_with_a_budget_at_the_first(budget: Budget, tmp_path: Path) -> None:
    registry = RateLimitRegistry(tidegate.Settings())
    provider = Provider(registry)
    rows = [{"n": n, "tokens": 100, "silent": True} for n in range(20)]
    async with provider.client, runner_at(tmp_path, registry=registry) as runner:
        summary = await runner.run(Experiment("e", rows, provider.ask, budget=budget))
    assert (summary.status, provider.asked) == (Status.ERROR, [0])
    assert "an answer of openai states no usage" in str(summary.last_error)


@in_loop
async def test_one_answer_without_usage_among_others_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    registry = RateLimitRegistry(tidegate.Settings())
    provider = Provider(registry)
    rows = [{"n": n, "tokens": 100, "silent": n % 10 == 9} for n in range(40)]
    async with provider.client, runner_at(tmp_path, registry=registry) as runner:
        summary = await runner.run(Experiment("e", rows, provider.ask, budget=Budget(usd=5.0)))
    assert (summary.status, summary.answered) == (Status.COMPLETED, 40)
    assert [each.message for each in caplog.records if "no usage" in each.message] == [
        "experiment e: an answer of openai has no usage: the budget does not count it, nor others like it"
    ]


@in_loop
async def test_a_spent_budget_starts_nothing(tmp_path: Path) -> None:
    registry = RateLimitRegistry(tidegate.Settings())
    provider = Provider(registry)
    experiment = Experiment("e", rows_of(50), provider.ask, budget=Budget(tokens=5_000))
    async with provider.client:
        async with runner_at(tmp_path, registry=registry) as runner:
            await runner.run(experiment)
        asked = len(provider.asked)
        async with runner_at(tmp_path, registry=registry) as runner:
            summary = await runner.run(experiment)
    assert summary.status is Status.STOPPED
    assert len(provider.asked) == asked


BUDGETED = """
import httpx, json
import tidegate
from tidegate.experiments import Experiment
from tidegate.providers import ModelPrice, register_price

register_price("priced", ModelPrice(1.0, 1.0))

def answer(request):
    usage = {"prompt_tokens": 0, "completion_tokens": 1000}
    choice = {"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}
    return httpx.Response(200, json={"choices": [choice], "usage": usage})

client = tidegate.wrap(httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="https://api.openai.com"))

async def task(row):
    body = {"model": "priced", "messages": [{"role": "user", "content": "x"}]}
    return (await client.post("/v1/chat/completions", json=body)).json()["choices"][0]["message"]["content"]

experiment = Experiment("budgeted", [{"id": str(n)} for n in range(50)], task)
"""


def test_commands_take_a_budget_and_say_why_they_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place = Place(tmp_path)
    place.write("my_eval.py", BUDGETED)
    done = place.process("run", "my_eval.py", "--budget-usd", "0.0101")
    assert done.code == 5, done.err
    assert "budget of $0.010 reached: $0.010 spent; a larger budget continues it" in done.out + done.err
    assert "run budgeted --budget-usd USD` continues it" in " ".join((done.out + done.err).split())
    shown = place.shown("budgeted")
    assert (shown["status"], shown["runs"]["ok"]) == ("STOPPED", 10)
    done = place.process("run", "budgeted", "--budget-usd", "1")
    assert done.code == 0, done.err
    assert place.shown("budgeted")["runs"]["ok"] == 50
    assert place.process("run", "my_eval.py", "--budget-usd", "0").code == 2


@pytest.fixture(scope="module")
def place() -> Iterator[PostgreSQL]:
    with served() as server:
        made = PostgreSQL.made(server)
        yield made
        made.drop()


def place_of(kind: str, path: Path, request: pytest.FixtureRequest) -> AnyPlace:
    return SQLite(path / "runs.db") if kind == "sqlite" else request.getfixturevalue("place")


def dollars_in(place: AnyPlace, name: str) -> float:
    """What the database counts as spent by an experiment."""
    ((found,),) = place.sql(
        "SELECT COALESCE(SUM(nanodollars), 0) FROM tidegate_spend WHERE experiment_id ="
        f" (SELECT id FROM tidegate_experiments WHERE name = '{name}')"
    )
    return float(found) * 1e-9


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
@in_loop
async def test_a_call_is_counted_before_it_is_sent(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """A process can be killed at any instant: then the database is all that the next one knows."""
    place, missing = place_of(kind, tmp_path, request), []

    class Observed(Provider):
        async def _answer(self, request: httpx.Request) -> httpx.Response:
            sent = (len(self.asked) + 1) * 1_000e-6
            missing.append(round((sent - dollars_in(place, "observed")) / 1_000e-6))
            return await super()._answer(request)

    registry = RateLimitRegistry(tidegate.Settings())
    provider = Observed(registry)
    rows = [{"n": n, "tokens": 1_000} for n in range(60)]

    async def judge(row: Any, output: str) -> float:
        await provider.ask({"n": -1, "tokens": 1_000})
        return 1.0

    experiment = Experiment("observed", rows, provider.ask, [judge], budget=Budget(usd=0.080))
    runner = ExperimentRunner(place.url, registry=registry, settings=settings(WRITE_SECONDS=0.5), recover=False)
    async with provider.client, runner:
        summary = await runner.run(experiment)
    assert summary.status is Status.STOPPED
    assert len(provider.asked) >= 70
    assert max(missing) <= 1
    # At the end, each call counts as what it has cost.
    assert dollars_in(place, "observed") == pytest.approx(provider.spent)


KILLED = """
import os
import openai
from tidegate.experiments import Budget, Experiment
from tidegate.providers import ModelPrice, register_price

register_price("gpt-4o-mini", ModelPrice(10.0, 10.0), provider="compatible")
client = openai.AsyncOpenAI(base_url=os.environ["PROVIDER"], api_key="sk-any-key-1234")

async def task(row):
    messages = [{"role": "user", "content": "x" * 40}]
    answer = await client.chat.completions.create(model="gpt-4o-mini", messages=messages, max_tokens=20)
    return answer.choices[0].message.content

rows = [{"id": str(n)} for n in range(1000)]
experiment = Experiment("killed", rows, task, budget=Budget(usd=1.0), max_concurrency=8)
"""


def run_and_kill(database: str, env: dict[str, str], folder: Path, sent: list[Any], count: int) -> None:
    """Run the experiment of a folder, and kill its process after `count` more requests than were `sent`."""
    command = [*TIDEGATE[1:], "experiment", "run", "my_eval.py", "--db", database]
    process = WarmProcess(command, env=env, cwd=folder, stdout=subprocess.DEVNULL)
    try:
        wanted = len(sent) + count
        while len(sent) < wanted:
            assert process.poll() is None
            time.sleep(0.001)
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_what_killed_processes_have_spent_counts(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    place, draw, kills = place_of(kind, tmp_path, request), random.Random(7), 3
    (tmp_path / "my_eval.py").write_text(KILLED)
    sent: list[Any] = []
    with Simulator(Scenario(latency=Distribution.constant(0.05)), log=sent.append) as provider:
        env = environ(PROVIDER=provider.openai_url, **constants.environ(STALE_SECONDS=2.0, HEARTBEAT_SECONDS=0.5))
        for _ in range(kills):
            run_and_kill(place.url, env, tmp_path, sent, draw.randrange(1, 40))
        calls = len(sent)
    ((per_call,),) = place.sql(
        "SELECT MIN(nanodollars) FROM tidegate_usages WHERE metered = 1 AND nanodollars > 0 AND experiment_id ="
        " (SELECT id FROM tidegate_experiments WHERE name = 'killed')"
    )
    counted = dollars_in(place, "killed") / (per_call * 1e-9)
    # The first row before any cost is known is not counted; functions that were about to send are.
    assert calls - kills <= counted <= calls + 8 * kills


LONG = """
import os
import openai
from tidegate.experiments import Budget, Experiment

client = openai.AsyncOpenAI(base_url=os.environ["PROVIDER"], api_key="sk-any-key-1234")
sync_client = openai.OpenAI(base_url=os.environ["PROVIDER"], api_key="sk-any-key-1234")
ask = dict(model="gpt-4o-mini", messages=[{"role": "user", "content": "x" * 40}], max_tokens=20)

async def task(row):
    for _ in range(100):
        await client.chat.completions.create(**ask)

def sync_task(row):
    for _ in range(100):
        sync_client.chat.completions.create(**ask)

function = sync_task if os.environ["FORM"] == "sync" else task
experiment = Experiment("long", [{"id": "1"}], function, max_concurrency=1, budget=Budget(tokens=10**9))
"""


@pytest.mark.parametrize(("kind", "form"), [("sqlite", "async"), ("sqlite", "sync"), ("postgresql", "async")])
def test_calls_of_a_row_that_a_kill_cuts_short_count(
    kind: str, form: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    place, kills = place_of(kind, tmp_path, request), (8, 12, 16)
    (tmp_path / "my_eval.py").write_text(LONG)
    sent: list[Any] = []
    with Simulator(Scenario(latency=Distribution.constant(0.05)), log=sent.append) as provider:
        env = environ(
            PROVIDER=provider.openai_url, FORM=form, **constants.environ(STALE_SECONDS=2.0, HEARTBEAT_SECONDS=0.5)
        )
        for count in kills:
            run_and_kill(place.url, env, tmp_path, sent, count)
        calls = len(sent)
    ((counted,),) = place.sql(
        "SELECT COALESCE(SUM(metered), 0) FROM tidegate_spend WHERE experiment_id ="
        " (SELECT id FROM tidegate_experiments WHERE name = 'long')"
    )
    # What was in flight is counted as the calls before it, which on a busy machine are more; none is counted twice.
    assert calls - len(kills) <= counted <= 2 * calls


@pytest.mark.parametrize("budget", [None, Budget(usd=5.0)])
@pytest.mark.parametrize("spread", [False, True])
@in_loop
async def test_ended_calls_of_a_row_are_stored_while_it_runs(
    place: PostgreSQL, budget: Budget | None, spread: bool
) -> None:
    registry = RateLimitRegistry(tidegate.Settings())
    provider, name = Provider(registry), f"in a row {spread} {budget}"

    async def task(row: Any) -> None:
        for number in range(20):
            await provider.ask({"n": row["n"], "tokens": 1_000})
            if number % 5 == 4:
                # A row goes on after all that its ended calls cost is in the database. Under a budget two more are: one
                # that ends until the next write is durable, and the one that is then in flight.
                stored = number + (1 if budget is None else 3)
                while dollars_in(place, name) < stored * 1_000e-6 * 0.999:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

    experiment = Experiment(name, [{"n": 0}], task, budget=budget, spread=spread)
    changes = settings(SPEND_SECONDS=0.001, task_timeout=60.0, attempts=1)
    runner = ExperimentRunner(place.url, registry=registry, settings=changes, recover=False)
    async with provider.client, runner:
        summary = await runner.run(experiment)
    assert (summary.status, summary.answered) == (Status.COMPLETED, 1)
    # At its end the row counts as what it has cost.
    assert dollars_in(place, name) == pytest.approx(20_000e-6)
    assert summary.tokens.metered == 20


@in_loop
async def test_short_rows_without_a_budget_store_nothing_while_they_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten rows of 20 calls made 200 writes."""
    registry, stored = RateLimitRegistry(tidegate.Settings()), []
    provider, store = Provider(registry), RunSpending._store
    monkeypatch.setattr(RunSpending, "_store", lambda *args, **rest: (stored.append(args), store(*args, **rest)))

    async def task(row: Any) -> None:
        for _ in range(20):
            await provider.ask({"n": row["n"], "tokens": 1_000})

    for budget, most in ((None, 0), (Budget(usd=5.0), 220)):
        experiment = Experiment(f"short {budget}", [{"n": n} for n in range(10)], task, budget=budget)
        async with runner_at(tmp_path, registry=registry, SPEND_SECONDS=3600.0) as runner:
            summary = await runner.run(experiment)
        assert (summary.answered, summary.tokens.metered) == (10, 200)
        assert summary.tokens.cost == pytest.approx(0.2)
        assert (len(stored) > 10) == (budget is not None)
        assert len(stored) <= most
    await provider.client.aclose()


@pytest.mark.parametrize("slots", [4, 1_000])
@in_loop
async def test_two_replicas_keep_one_budget(place: PostgreSQL, slots: int) -> None:
    registry = RateLimitRegistry(tidegate.Settings())
    provider = Provider(registry)
    rows = rows_of(1_000)
    usd = 0.5 * sum(row["tokens"] + 100 for row in rows) * 1e-6

    async def judge(row: Any, output: str) -> float:
        await provider.ask({"n": -1, "tokens": 100})
        return 1.0

    def experiment(budget: float) -> Experiment:
        return Experiment(f"spread {slots}", rows, provider.ask, [judge], spread=True, max_concurrency=slots,
                          budget=Budget(usd=budget))  # fmt: skip

    def replica() -> ExperimentRunner:
        changes = settings(HEARTBEAT_SECONDS=0.2, STALE_SECONDS=30.0)
        return ExperimentRunner(place.url, registry=registry, settings=changes, recover=False,
                                restore=lambda spec: experiment(99.0))  # fmt: skip

    async with provider.client, replica() as owner, replica() as other:
        number = await owner.start(experiment(usd))
        while not provider.asked:  # noqa: ASYNC110
            await asyncio.sleep(0)
        joined = await other.join(number)
        summary = await owner.wait(number)
        if joined:
            await other.wait(number)
        assert summary.status is Status.STOPPED
        assert (summary.last_error or "").startswith("budget of $")
        assert summary.answered == summary.scores[0].scored
        assert summary.tokens.cost == pytest.approx(provider.spent)
        assert provider.spent <= usd + max(0.05 * usd, 1_900e-6)
        assert provider.spent >= 0.9 * usd
        # A larger budget continues it, and every row is asked once.
        await owner.start(experiment(10.0))
        summary = await owner.wait(number)
        assert (summary.status, summary.answered) == (Status.COMPLETED, 1_000)
        assert sorted(n for n in provider.asked if n >= 0) == list(range(1_000))


@pytest.mark.parametrize("slots", [4, 100])
def test_answers_of_an_earlier_run_are_judged_within_the_budget(slots: int) -> None:
    # 1,000 rows have cost $0.001 each, and 400 of their judgements 0.0005; $0.15 are left for 600 more.
    tasks = EarlierSpend(spent(10**9), [spent(10**6)] * 64)
    judgements = EarlierSpend(spent(2 * 10**8), [spent(500_000)] * 64)
    ledger = BudgetLedger(Budget(usd=1.35), [tasks, judgements], [600], TokenTotals())
    judged = 0
    while not ledger.stuck:
        started = 0
        while started < min(slots, 600 - judged) and ledger.may_judge(1, started):
            started += 1
        assert started, "neither stuck nor able to judge"
        for _ in range(started):
            ledger.end_judgement(1, spent(500_000))
            ledger.close_judgement(1)
        judged += started
    assert 270 <= judged <= 300 + 0.05 * 1_350 / 0.5
    assert not ledger.may_start


@in_loop
async def test_a_judge_that_is_added_later_judges_what_the_budget_has_room_for(tmp_path: Path) -> None:
    registry = RateLimitRegistry(tidegate.Settings())
    provider = Provider(registry)

    async def answer(row: Any) -> str:
        return "a"

    async def judge(row: Any, output: str) -> float:
        await provider.ask({"n": row["n"], "tokens": 1_000})
        return 1.0

    rows = rows_of(200)
    async with provider.client:
        async with runner_at(tmp_path, registry=registry) as runner:
            assert (await runner.run(Experiment("e", rows, answer, budget=Budget(usd=0.05)))).answered == 200
        async with runner_at(tmp_path, registry=registry) as runner:
            summary = await runner.run(Experiment("e", rows, answer, [judge], budget=Budget(usd=0.05)))
            assert summary.status is Status.STOPPED
            assert 0.045 <= provider.spent <= 0.0511
        async with runner_at(tmp_path, registry=registry, budget_usd=1.0) as runner:
            summary = await runner.run(Experiment("e", rows, answer, [judge], budget=Budget(usd=0.05)))
            assert (summary.status, summary.scores[0].scored) == (Status.COMPLETED, 200)
    assert sorted(provider.asked) == list(range(200))
