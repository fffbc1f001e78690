"""Declared questions reach each provider through its own SDK, governed, and their answers come back as texts."""

from __future__ import annotations

import asyncio
import re
import subprocess
from contextlib import suppress
from typing import Any

import pytest

import tidegate
from tests.cli.experiment.commands import Place
from tidegate.admission.registry import RateLimitRegistry
from tidegate.errors import CannotLoad
from tidegate.experiments.declared import clients
from tidegate.experiments.declared.clients import LazyClient, NoText
from tidegate.experiments.declared.schema import QuestionSpec
from tidegate.testing import Fault, Limit, Scenario, Simulator

# google-genai's own, over aiohttp.
pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")

ANSWERS = {
    "capital of France": "Paris",
    "capital of Chad": "N'Djamena",
    "Is Paris right": "I give it\n1",
    "nothing": " ",
}


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> RateLimitRegistry:
    """The process's registry, of this test alone, without a key in the environment."""
    registry = RateLimitRegistry(tidegate.Settings())
    monkeypatch.setattr("tidegate.experiments.declared.clients.registry", lambda: registry)
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SOME_KEY", "k-a-secret")
    return registry


def url_of(provider: str, simulator: Simulator) -> str:
    return simulator.openai_url if provider in ("openai", "compatible", "azure") else simulator.url


def asked(provider: str, simulator: Simulator, values: dict[str, Any], **fields: Any) -> str:
    given = {"prompt": "What is the capital of {country}?", "api_key_env": "SOME_KEY", **fields}
    question = QuestionSpec(provider=provider, model="gemini-x", base_url=url_of(provider, simulator), **given)

    async def ask() -> str:
        one = LazyClient(question, "experiment.yaml")
        try:
            return await one(values)
        finally:
            await one.close()

    return asyncio.run(ask())


PROVIDERS = ["openai", "compatible", "azure", "anthropic", "google"]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_an_answer_is_its_text_and_its_call_was_governed(provider: str, fresh: RateLimitRegistry) -> None:
    with Simulator(Scenario(answers=ANSWERS)) as simulator:
        answer = asked(provider, simulator, {"country": "Chad"}, system="In one word.")
    assert answer == "N'Djamena"
    snapshot = fresh.snapshot()
    assert (snapshot.answered, snapshot.refused) == (1, 0)
    (key,) = snapshot.keys
    assert key.credential


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_conversation_has_every_message_and_the_parameters_are_taken(provider: str, fresh: RateLimitRegistry) -> None:
    messages = [
        {"role": "user", "content": "Name a capital"},
        {"role": "assistant", "content": "Paris"},
        {"role": "user", "content": "And of {country}, the capital of France?"},
    ]
    parameters = {"temperature": 0, "max_output_tokens" if provider == "google" else "max_tokens": 20}
    with Simulator(Scenario(answers=ANSWERS)) as simulator:
        fields = {"prompt": None, "messages": messages, "parameters": parameters}
        assert asked(provider, simulator, {"country": "Y"}, **fields) == "Paris"


@pytest.mark.parametrize("provider", PROVIDERS)
def test_an_answer_without_text_is_an_error_and_no_empty_answer(
    provider: str, fresh: RateLimitRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        Simulator(Scenario(), answer=lambda *_: "") as simulator,
        pytest.raises(NoText, match="answer of gemini-x unusable: it has no text; its finish reason is"),
    ):
        asked(provider, simulator, {"country": "Chad"})


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_failure_is_not_repeated_by_the_sdk_for_the_runner_does_so(provider: str, fresh: RateLimitRegistry) -> None:
    with Simulator(Scenario(faults=(Fault(kind="status", nth=(1,), status=500),))) as simulator:
        with pytest.raises(Exception, match="500"):
            asked(provider, simulator, {"country": "Chad"})
        assert simulator.truth().total.received == 1


def test_a_provider_whose_sdk_is_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(clients.SDKS, "openai", ("no_such_sdk.part", "no-such-sdk", clients.SDKS["openai"][2]))
    with pytest.raises(
        CannotLoad, match=r"experiment\.yaml not loaded: the SDK of provider openai is missing; pip install no-such-sdk"
    ):
        LazyClient(QuestionSpec(provider="openai", model="m", prompt="{a}"), "experiment.yaml")


DECLARED = """\
name: capitals
dataset: data/questions.jsonl
repetitions: 2
task:
  provider: openai
  base_url: {openai}
  model: gpt-5-mini
  api_key_env: TASK_KEY
  system: Answer in one word.
  prompt: What is the capital of {{country}}?
  parameters: {{temperature: 0}}
evaluators:
  - name: judge
    provider: anthropic
    base_url: {anthropic}
    model: claude-haiku-4-5
    api_key_env: JUDGE_KEY
    prompt: "Is {{output}} right for {{capital}}? Answer with a number from 0 to 1, or as {{\\"score\\": 1}}."
    range: [0, 1]
  - name: verdict
    provider: anthropic
    base_url: {anthropic}
    model: claude-haiku-4-5
    api_key_env: JUDGE_KEY
    prompt: "Verdict on {{output}}?"
    parse: label
    labels: {{right: 1, wrong: 0}}
"""
KEYS = {"TASK_KEY": "k-of-the-task-0123456789", "JUDGE_KEY": "k-of-the-judge-0123456789"}


@pytest.fixture
def declared(place: Place) -> Place:
    """An experiment of two countries, one of which the model gets wrong."""
    (place.path / "data").mkdir()
    rows = '{"country": "France", "capital": "Paris"}\n{"country": "Chad", "capital": "N\'Djamena"}\n'
    place.write("data/questions.jsonl", rows)
    return place


def judging() -> Simulator:
    answers = {"Is Paris right": "1", "Is Lima right": '{"score": 0}', "Verdict on Paris": "Right.",
               "Verdict on Lima": "It is wrong"}  # fmt: skip
    return Simulator(Scenario(dialect="anthropic", answers=answers))


def answering(**fields: Any) -> Simulator:
    answers = {"capital of France": "Paris", "capital of Chad": "Lima"}
    return Simulator(Scenario(dialect="openai", answers=answers, **fields))


def test_a_yaml_file_is_a_whole_experiment_with_judges_on_another_provider(declared: Place) -> None:
    with answering(limiters=(Limit(limit=3, window=0.5),)) as task, judging() as judge:
        declared.write("experiment.yaml", DECLARED.format(openai=task.openai_url, anthropic=judge.url))
        done = declared.run("run", "experiment.yaml", **KEYS)
        assert done.code == 0, done.err
        lines = [line.split() for line in done.out.splitlines()]
        assert lines[0] == ["capitals:", "COMPLETED:", "2", "rows", "×", "2,", "4", "answered"]
        assert ["judge", "0.500", "4", "0"] in lines
        assert ["verdict.label", "–", "4", "0", "right", "2,", "wrong", "2"] in lines
        assert ["verdict.score", "0.500", "4", "0"] in lines
        assert task.truth().total.answered == 4
        assert judge.truth().total.answered == 8
        # Once stored, it needs neither file nor dataset any more.
        (declared.path / "experiment.yaml").unlink()
        (declared.path / "data/questions.jsonl").unlink()
        assert declared.run("run", "capitals", **KEYS).code == 0
        assert task.truth().total.answered == 4
    for path in declared.path.glob("tidegate.db*"):
        assert not any(key.encode() in path.read_bytes() for key in KEYS.values())


TYPO = """
name: typo
dataset: data/questions.jsonl
task:
  provider: openai
  model: gpt-5-mini
  base_url: {openai}
  api_key_env: TASK_KEY
  prompt: What is the capital of {{contry}}?
"""


def test_a_resume_reads_the_corrected_file_as_its_own_advice_says(declared: Place) -> None:
    countries = ("France", "Chad", "Peru", "Tonga", "Mongolia")
    declared.write("data/questions.jsonl", "".join(f'{{"country": "{each}"}}\n' for each in countries))
    with answering() as task:
        declared.write("experiment.yaml", TYPO.format(openai=task.openai_url))
        done = declared.run("run", "experiment.yaml", **KEYS)
        assert (done.code, done.out.splitlines()[0].split()[:2]) == (7, ["typo:", "ERROR"])
        advice = "once the cause is corrected, `tidegate experiment run typo` tries the failed ones again"
        assert done.out.splitlines()[-1] == advice
        file = declared.path / "experiment.yaml"
        file.write_text(file.read_text().replace("contry", "country"))
        done = declared.run("run", "typo", **KEYS)
        assert (done.code, done.out.splitlines()[0]) == (0, "typo: COMPLETED: 5 rows, 5 answered")


def test_a_resume_names_what_the_file_has_changed_and_when_it_does_not_read_it(declared: Place) -> None:
    with answering() as task:
        declared.write("experiment.yaml", TYPO.format(openai=task.openai_url).replace("contry", "country"))
        assert declared.run("run", "experiment.yaml", **KEYS).code == 0
        file = declared.path / "experiment.yaml"
        text = file.read_text()
        assert declared.run("run", "typo", **KEYS).err == ""
        file.write_text(text.replace("What is", "Which is"))
        assert "typo changed: the kept answers were made with another task" in declared.run("run", "typo", **KEYS).err
        file.write_text(text.replace("name: typo", "name: other"))
        said = declared.run("run", "typo", **KEYS)
        assert (said.code, said.err) == (0, f"typo: its stored declaration runs: {file} declares 'other' now\n")
        file.write_text(text.replace("prompt:", "promt:"))
        said = declared.run("run", "typo", **KEYS)
        assert (said.code, "task.promt" in said.complaint) == (2, True)
        file.unlink()
        said = declared.run("run", "typo", **KEYS)
        assert (said.code, said.err) == (0, f"typo: its stored declaration runs: {file} is not there\n")


def test_without_a_key_it_is_blocked_and_says_which_variable(declared: Place) -> None:
    declared.write("experiment.yaml", DECLARED.format(openai="http://127.0.0.1:9", anthropic="http://127.0.0.1:9"))
    done = declared.run("run", "experiment.yaml", TASK_KEY="k")
    assert (done.code, "credentials are missing: JUDGE_KEY is not set here" in done.complaint) == (6, True)
    assert declared.shown("capitals")["status"] == "BLOCKED"
    assert declared.run("run", "capitals", TASK_KEY="k").code == 6


def test_a_field_that_a_row_lacks_fails_that_row_with_the_fields_it_has(declared: Place) -> None:
    declared.write(
        "data/questions.jsonl", '{"country": "France", "capital": "Paris"}\n{"land": "Chad", "capital": "x"}\n'
    )
    with answering() as task, judging() as judge:
        declared.write("experiment.yaml", DECLARED.format(openai=task.openai_url, anthropic=judge.url))
        done = declared.run("run", "experiment.yaml", **KEYS)
        assert done.code == 3
        assert task.truth().total.received == 2
    failed = [line for line in declared.run("export", "capitals").out.splitlines() if '"status": "error"' in line]
    assert len(failed) == 2
    assert "template not filled: the row has no field for {country}; it has capital, land" in failed[0]


def test_from_elsewhere_it_is_seen_what_a_run_waits_for(declared: Place) -> None:
    rows = "".join(f'{{"country": "c{number}", "capital": "x"}}\n' for number in range(200))
    declared.write("data/questions.jsonl", rows)
    with answering(limiters=(Limit(limit=3, window=1.0),)) as task:
        text = DECLARED.format(openai=task.openai_url, anthropic="")
        declared.write("experiment.yaml", text.partition("evaluators:")[0])
        with declared.started("run", "experiment.yaml", **KEYS) as process:
            while task.truth().total.answered < 5:
                assert process.poll() is None, process.communicate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.05)
            shown = declared.run("show", "capitals").out
            told = declared.shown("capitals")
    assert re.search(r"^  compatible · .* of at most \d+ in flight, .*next (call|try)\b", shown, re.MULTILINE), shown
    assert "compatible" in told["keys"][0]["key"]
    assert not any(key in shown for key in KEYS.values())
