"""`tidegate experiment plan`: what a run would ask, how long it takes and what it costs, before it is sent."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import tidegate
from tests.cli.experiment.commands import Place
from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.token_totals import TokenTotals
from tidegate.experiments import Progress, StageProgress
from tidegate.experiments.commands.common import existing
from tidegate.experiments.commands.plan import Correction, Plan, planned
from tidegate.experiments.declared import from_file
from tidegate.experiments.storage import ResultStatus
from tidegate.testing import Call, Limit, Scenario, Simulator, ideal_makespan

SCENARIO = Scenario(limiters=(Limit(limit=60.0),), dialect="openai", answers={"": "right"})

ASKED = """
name: asked
dataset: rows.jsonl
task:
  provider: {provider}
  model: some-model
  base_url: {url}
  api_key_env: SOME_KEY
  prompt: What is twice {{n}}?
  parameters: {{{bound}: 16}}
"""

JUDGE = """evaluators:
  - name: judge
    provider: compatible
    model: other-model
    base_url: {url}
    api_key_env: SOME_KEY
    prompt: Is {{output}} twice {{n}}?
    parse: label
    labels: [right, wrong]
"""


@pytest.fixture
def provider() -> Iterator[Simulator]:
    with Simulator(SCENARIO) as simulator:
        yield simulator


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> RateLimitRegistry:
    """Nothing is known of any key but what the database has."""
    registry = RateLimitRegistry(tidegate.Settings())
    monkeypatch.setenv("SOME_KEY", "k-a-secret")
    monkeypatch.setattr("tidegate.registry", lambda: registry)
    monkeypatch.setattr("tidegate.experiments.declared.clients.registry", lambda: registry)
    return registry


def declare(place: Place, simulator: Simulator, *, rows: int, judge: bool = False, name: str = "openai") -> None:
    place.rows(rows)
    url = simulator.openai_url if name in ("openai", "compatible", "azure") else simulator.url
    bound = "max_output_tokens" if name == "google" else "max_tokens"
    text = ASKED.format(provider=name, url=url, bound=bound)
    place.write("experiment.yaml", text + (JUDGE.format(url=simulator.openai_url) if judge else ""))


def plan_of(place: Place, limit: int | None = None) -> Plan:
    """The plan of the experiment in its file, by what the database has."""

    async def read() -> Plan:
        async with existing("tidegate.db", to_read=True) as store:
            return await planned(from_file(place.path / "experiment.yaml"), store, None, limit)

    return asyncio.run(read())


def test_before_the_first_answer_a_plan_says_what_is_unknown_and_sends_nothing(
    place: Place, provider: Simulator
) -> None:
    declare(place, provider, rows=30, judge=True)
    done = place.run("plan", "experiment.yaml")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0] == "asked: 30 rows, 30 to answer, 30 to judge"
    assert re.fullmatch(
        r"task: 30 calls of about 5 input \+ 16 output tokens \(assumed\), \d+ in all",
        lines[1],
    )
    assert lines[2].startswith("judge: 30 calls of about ")
    assert lines[3:] == [
        "time: unknown until the first answers",
        "cost: unknown: no price of compatible/other-model and compatible/some-model",
    ]
    assert provider.truth().total.received == 0
    assert sorted(path.name for path in place.path.iterdir()) == ["experiment.yaml", "rows.jsonl"]


def test_a_plan_knows_what_an_earlier_run_has_learned_and_is_right_within_15_percent(
    place: Place, provider: Simulator
) -> None:
    declare(place, provider, rows=620)
    assert place.process("run", "experiment.yaml", "--limit", "20").code == 0
    plan = plan_of(place)
    (task,), time = plan.stages, plan.time
    assert time is not None
    assert (task.items, task.limits.texts, time.bound_by) == (600, ["60 requests/min"], "60 requests/min")
    truth = ideal_makespan(SCENARIO, [Call(10)] * 600)
    assert time.seconds.low <= time.seconds.middle <= time.seconds.high
    assert time.seconds.middle == pytest.approx(truth, rel=0.15)
    done = place.run("plan", "asked")
    assert done.out.splitlines()[0] == "asked: 620 rows, 600 to answer"
    assert "limits of compatible · 127.0.0.1:" in done.out
    assert ", bound by 60 requests/min\n" in done.out


def test_another_experiment_of_the_database_tells_the_limits_too(place: Place, provider: Simulator) -> None:
    declare(place, provider, rows=100)
    assert place.process("run", "experiment.yaml", "--limit", "5").code == 0
    renamed = (place.path / "experiment.yaml").read_text().replace("name: asked", "name: other")
    place.write("experiment.yaml", renamed)
    lines = place.run("plan", "experiment.yaml", "--limit", "90").out.splitlines()
    assert lines[0] == "other: 90 rows, 90 to answer"
    assert lines[3].startswith("time: about ")
    assert lines[3].endswith(", bound by 60 requests/min")
    stored = (place.path / "tidegate.db").read_bytes()
    assert b"k-a-secret" not in stored


def test_the_cost_is_that_of_the_rows_that_are_left(place: Place, provider: Simulator) -> None:
    declare(place, provider, rows=40, judge=True)
    prices = {f"compatible/{name}": {"input": 1.0, "output": 10.0} for name in ("some-model", "other-model")}
    place.write("prices.json", json.dumps(prices))
    assert place.process("run", "experiment.yaml", "--limit", "10", TIDEGATE_PRICES="prices.json").code == 0
    paid = place.shown("asked")["stats"]["cost"]
    assert paid > 0.0

    lines = place.process("plan", "experiment.yaml", TIDEGATE_PRICES="prices.json").out.splitlines()
    assert lines[0] == "asked: 40 rows, 30 to answer, 30 to judge"
    found = re.fullmatch(r"cost: about \$([\d.]+).*", lines[-1])
    assert found is not None
    # Texts have two digits.
    assert float(found[1]) == pytest.approx(3.0 * paid, rel=0.1)


def test_a_run_begins_with_its_plan(place: Place, provider: Simulator) -> None:
    declare(place, provider, rows=3)
    done = place.process("run", "experiment.yaml")
    assert done.code == 0
    assert done.err.splitlines()[0] == "asked: 3 rows, 3 to answer"
    assert place.run("plan", "asked").out == "asked: every row is answered and judged\n"


def test_the_plan_of_a_run_is_corrected_once_its_limits_are_known(place: Place, provider: Simulator) -> None:
    declare(place, provider, rows=100)
    with place.started("run", "experiment.yaml") as process:
        assert process.stderr is not None
        watchdog = threading.Timer(100.0, process.kill)
        watchdog.start()
        corrected = next((line for line in process.stderr if " to go" in line), "")
        watchdog.cancel()
    assert re.fullmatch(r"asked after \d+ rows: 0:\d\d to go, bound by 60 requests/min\n", corrected)


def test_a_task_in_code_is_planned_by_its_stored_results_alone(place: Place) -> None:
    place.doubles(20)
    done = place.run("plan", "my_eval.py")
    assert done.out.splitlines() == [
        "doubles: 20 rows × 2, 40 to answer, 40 to judge",
        "task: its calls are in your code: unknown until the first answers",
        "judge: its calls are in your code: unknown until the first answers",
        "time: unknown until the first answers",
        "cost: unknown until the first answers",
    ]
    assert not (place.path / "tidegate.db").exists()


IN_CODE = """
import openai
from tidegate.experiments import Experiment

client = openai.AsyncOpenAI(base_url="{url}", api_key="k-a-secret")


async def answer(row):
    for _ in range(2):
        asked = [{{"role": "user", "content": "What is twice 1?"}}]
        await client.chat.completions.create(model="some-model", messages=asked)


experiment = Experiment("in-code", "rows.jsonl", answer)
"""


def test_stored_results_of_a_task_in_code_tell_the_tokens_of_an_item_and_not_the_time(
    place: Place, provider: Simulator
) -> None:
    place.rows(20)
    place.write("my_eval.py", IN_CODE.format(url=provider.openai_url))
    assert place.process("run", "my_eval.py", "--limit", "5").code == 0
    spent = place.shown("in-code")["stats"]
    lines = place.run("plan", "my_eval.py").out.splitlines()
    assert lines[0] == "in-code: 20 rows, 15 to answer"
    into, out = spent["input_tokens"] / 5, spent["output_tokens"] / 5
    assert lines[1].startswith(f"task: 15 items of about {into:.0f} input + {out:.0f} output tokens, ")
    assert lines[2] == "time: unknown until the first answers"


def test_what_cannot_be_planned_is_one_clear_line(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.doubles(2)
    assert (
        place.run("plan", "nothing.py").complaint == "tidegate: experiment nothing.py not loaded: there is no such file"
    )
    (place.path / "rows.jsonl").unlink()
    done = place.run("plan", "my_eval.py")
    assert (done.code, done.complaint) == (1, "tidegate: dataset rows.jsonl not readable: there is no such file")
    with Simulator(SCENARIO) as simulator:
        declare(place, simulator, rows=2)
    monkeypatch.delenv("SOME_KEY")
    done = place.run("plan", "experiment.yaml")
    assert done.code == 6
    assert "SOME_KEY" in done.complaint
    assert not (place.path / "tidegate.db").exists()


# google-genai's own, over aiohttp.
@pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")
@pytest.mark.parametrize("name", ["openai", "compatible", "azure", "anthropic", "google"])
def test_a_plan_names_the_key_that_the_calls_will_have(
    place: Place, provider: Simulator, fresh: RateLimitRegistry, name: str
) -> None:
    declare(place, provider, rows=2, name=name)
    experiment = from_file(place.path / "experiment.yaml")

    async def plan_and_ask() -> Any:
        plan = await planned(experiment, None, None, None)
        await experiment.task({"n": 1})
        await experiment.aclose()  # type: ignore[attr-defined]
        return plan

    plan = asyncio.run(plan_and_ask())
    (asked,) = fresh.snapshot().keys
    assert plan.stages[0].key == asked._replace(credential="")
    assert plan.stages[0].costs.middle.input_estimate > 3.0


def seen(finished: int, rest: float | None) -> Progress:
    stage = StageProgress("task", 200, {ResultStatus.OK: finished}, 0, 0, None)
    tokens = TokenTotals(finished, 10, 10, 0, 0, 0, finished, finished * 10**7)
    return Progress("e", "live", 200, True, 0, (stage,), rest, tokens, "", "60 requests/min")


def test_a_correction_is_told_once_after_fifty_rows_of_this_run() -> None:
    correction = Correction()
    assert [correction.line(seen(count, 90.0)) for count in (80, 100, 129)] == ["", "", ""]
    assert correction.line(seen(130, None)) == ""
    assert (
        correction.line(seen(140, 60.0)) == "e after 60 rows: 1:00 to go, bound by 60 requests/min; about $2.00 in all"
    )
    assert correction.line(seen(141, 59.0)) == ""


def test_a_rest_that_is_nearly_over_is_not_corrected() -> None:
    correction = Correction()
    assert [correction.line(seen(count, 2.0)) for count in (0, 60)] == ["", ""]
