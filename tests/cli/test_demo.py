"""`tidegate demo`: the same rows plain and wrapped, and an exit code that tells whether all were answered."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from tidegate.cli import demo as command
from tidegate.cli.commands import app
from tidegate.testing import Counts, Distribution, Fault, Limit, Scenario
from tidegate.testing import demo as providers
from tidegate.testing.demo import DemoRun, run

QUICK = Distribution.constant(0.02)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demonstration's providers with an OpenAI limit that 20 rows outrun by far, and little latency."""
    tight = providers.OPENAI.replace(limiters=(Limit(limit=8, window=4.0),), latency=QUICK)
    monkeypatch.setattr(providers, "OPENAI", tight)
    monkeypatch.setattr(providers, "ANTHROPIC", providers.ANTHROPIC.replace(latency=QUICK))


def demo(*flags: str) -> Result:
    return CliRunner().invoke(app, ["demo", *flags])


def table_row(said: str, name: str) -> list[str]:
    line = next(line for line in said.splitlines() if line.strip().startswith(name))
    return line.replace(name, "").split()


@pytest.mark.usefixtures("quick")
def test_the_plain_script_loses_rows_where_the_wrapped_one_answers_all() -> None:
    result = demo("--rows", "40")
    assert result.exit_code == 0, result.output
    answered, lost, *_ = table_row(result.output, "OpenAI plain")
    assert int(answered) + int(lost) == 20
    assert int(lost) > 0
    assert f"rows lost to {lost} x RateLimitError" in result.output
    wrapped = table_row(result.output, "OpenAI wrapped")
    assert (wrapped[:2], wrapped[-1]) == (["20", "0"], "100.0%")
    assert table_row(result.output, "Anthropic wrapped")[:2] == ["20", "0"]
    assert "Score wrapped: 100.0%; no row lost" in result.output


@pytest.mark.usefixtures("quick")
def test_rows_that_fit_below_the_limits_are_said_to_show_no_difference() -> None:
    result = demo("--rows", "4")
    assert (result.exit_code, "No difference: so few rows fit below the limits; " in result.output) == (0, True)


@pytest.mark.usefixtures("quick")
def test_without_the_plain_phase_there_is_only_the_wrapped_one() -> None:
    result = demo("--rows", "4", "--no-plain")
    assert result.exit_code == 0, result.output
    assert "plain" not in result.output.lower()


@pytest.mark.usefixtures("quick")
def test_a_row_that_the_wrapped_phase_loses_makes_the_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        providers, "OPENAI", providers.OPENAI.replace(faults=(Fault(kind="status", nth=(2,), status=400),))
    )
    result = demo("--rows", "6", "--no-plain")
    assert result.exit_code == 1
    assert "rows lost to 1 x BadRequestError" in result.output
    assert "tidegate: demo failed: the wrapped phase lost rows" in result.output


def test_a_missing_sdk_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None if name == "anthropic" else object())
    result = demo()
    assert result.exit_code == 1
    assert result.output == "tidegate: demo not started: anthropic not installed; run pip install 'tidegate[demo]'\n"


def test_the_same_seed_chooses_the_same_rows_and_another_seed_others() -> None:
    def chosen(seed: int) -> list[tuple[providers.Row, ...]]:
        return [track.rows for track in providers.tracks(60, seed)]

    assert chosen(1) == chosen(1)
    assert chosen(1) != chosen(2)


def test_the_whole_data_set_is_asked_once_over_both_providers() -> None:
    rows = [row for track in providers.tracks() for row in track.rows]
    assert len(rows) >= 400
    assert sorted(row.id for row in rows) == sorted(row.id for row in providers.load_rows())
    assert len({row.question for row in rows}) == len(rows)


def test_every_limit_of_the_demonstration_is_one_that_its_rows_outrun() -> None:
    for track in providers.tracks():
        needs = {
            "requests": len(track.rows),
            "tokens": sum(len(row.question) for row in track.rows) / 4,
            "input_tokens": sum(len(row.question) for row in track.rows) / 4,
        }
        for limit in track.scenario.limiters:
            assert needs.get(limit.unit, limit.limit + 1) > limit.limit, (track.sdk, limit.unit)
        assert track.ideal < 30


def test_a_wrong_answer_is_answered_but_not_right() -> None:
    track = providers.tracks(2)[0]
    wrong = dataclasses.replace(track, scenario=Scenario(answers={track.rows[0].question: "certainly not"}))
    looks: list[int] = []
    (ended,) = run([wrong], ["wrapped"], lambda runs: looks.append(runs[0].done))
    assert (ended.answered, ended.right, ended.is_complete) == (1, 0, True)
    assert looks[-1] == 1
    assert ended.key is not None
    assert ended.key.answered == ended.counts.answered == 1


def test_a_run_that_lost_rows_has_no_ratio_and_one_without_progress_no_eta() -> None:
    track = providers.tracks(4)[0]
    going = DemoRun(track, "plain", answered=1)
    before = going.eta
    going.update(Counts(received=3), None, 10.0)
    going.update(Counts(received=3), None, 11.0)
    assert (before, going.eta) == (None, None)
    going.lost["RateLimitError"] += 1
    going.update(Counts(received=3), None, 12.0)
    assert (going.eta, going.ratio, going.sent_per_answer) == (0.0, None, 3.0)
    assert DemoRun(track, "plain").sent_per_answer is None


def test_the_eta_is_what_is_left_at_the_speed_of_the_last_looks() -> None:
    going = DemoRun(providers.tracks(20)[0], "wrapped")
    going.update(Counts(), None, 0.0)
    going.answered = 4
    going.update(Counts(), None, 2.0)
    assert going.eta == pytest.approx(3.0)


def test_the_board_shows_true_limits_beside_unknown_ones_before_the_first_answer() -> None:
    console = Console(width=120, force_terminal=True, color_system=None, record=True, quiet=False)
    with console.capture() as captured:
        console.print(command.board([DemoRun(track, "wrapped") for track in providers.tracks(8)]))
    said = captured.get()
    assert said.count("unknown") == 5
    assert "60 / 6 s" in said
    assert "6,000 / 60 s" in said


def test_the_verdict_counts_rows_without_an_answer_as_wrong() -> None:
    track = providers.tracks(8)[0]
    lossy = DemoRun(track, "plain", answered=2, right=1, lost=Counter({"RateLimitError": 2}))
    whole = DemoRun(track, "wrapped", answered=4, right=4)
    assert command.verdict([lossy, whole]).splitlines() == [
        "Score plain: 25.0%; rows lost to 2 x RateLimitError",
        "Score wrapped: 100.0%; no row lost",
    ]
