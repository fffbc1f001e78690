"""`tidegate experiment init`: what it writes runs as it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.experiment.commands import Place
from tidegate.experiments.commands.init import CAPITALS
from tidegate.testing import Scenario, Simulator

ANSWERS = {f"What is the capital of {country}?": capital for country, capital in CAPITALS.items()}
JUDGED = {f"what is the capital of {country}? Expected: {capital}. Given: {capital}.": "Right."
          for country, capital in CAPITALS.items()}  # fmt: skip


@pytest.mark.parametrize("file", ["experiment.yaml", "deep/my_eval.py"])
def test_first_experiment_runs_at_once(place: Place, file: str) -> None:
    written = place.run("init", file)
    assert written.code == 0, written.err
    rows = Path(file).with_name("countries.jsonl")
    assert written.out == (
        f"{file} and {rows} written; with OPENAI_API_KEY set, "
        f"`tidegate experiment run {file} --limit 2` tries 2 of 5 rows\n"
    )
    with Simulator(Scenario(answers={**ANSWERS, **JUDGED})) as provider:
        given = {"OPENAI_BASE_URL": provider.openai_url, "OPENAI_API_KEY": "any"}
        first = place.process("run", file, "--limit", "2", **given)
        assert first.code == 0, first.err
        assert "capitals: STOPPED (limit of 2 rows reached): 2 rows, 2 answered\n" in first.out
        whole = place.process("run", file, **given)
    assert whole.code == 0, whole.err
    assert "capitals: COMPLETED: 5 rows, 5 answered\n" in whole.out
    scores = [each for each in place.shown("capitals")["scores"] if each["mean"] is not None]
    assert [(each["n"], each["mean"]) for each in scores] == [(5, 1.0)]


def test_default_is_a_declaration(place: Place) -> None:
    assert place.run("init").code == 0
    assert "#     tidegate experiment run experiment.yaml --limit 2\n" in (place.path / "experiment.yaml").read_text()


def test_declaration_says_how_it_succeeds_against_the_simulator(place: Place) -> None:
    assert place.run("init").code == 0
    lines = (place.path / "experiment.yaml").read_text().splitlines()
    (scenario,) = [line.removeprefix("#").strip() for line in lines if '{"answers"' in line]
    with Simulator(Scenario.from_json(scenario)) as provider:
        done = place.process("run", "experiment.yaml", OPENAI_BASE_URL=provider.openai_url, OPENAI_API_KEY="any")
    assert (done.code, "capitals: COMPLETED: 5 rows, 5 answered\n" in done.out) == (0, True), done.err


@pytest.mark.parametrize("there", ["experiment.yaml", "countries.jsonl"])
def test_nothing_is_overwritten(place: Place, there: str) -> None:
    place.write(there, "mine")
    refused = place.run("init")
    assert refused.code == 1
    assert refused.complaint.startswith(f"tidegate: experiment.yaml not written: {there} exists already")
    assert [path.name for path in place.path.iterdir()] == [there]
    assert (place.path / there).read_text() == "mine"


def test_unknown_suffix_is_refused(place: Place) -> None:
    assert place.run("init", "experiment.json").code == 2
    assert list(place.path.iterdir()) == []
