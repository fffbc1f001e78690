"""Comparisons of two experiments by the page's API: made one at a time, and kept."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.ui import experiments
from tests.ui.experiments import AGAIN, FAILED, INVALID, PARKED
from tests.ui.test_experiments import CAPITALS, HOSTILES, got, opened
from tests.ui.test_serve import PATIENCE
from tidegate.experiments import comparison
from tidegate.experiments.screens import source
from tidegate.experiments.storage import Annotation, AnnotationResult, Claim, Status, Store

AFTER = 3
"""Number of `capitals-2`."""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "tidegate.db"
    asyncio.run(experiments.made(str(path)))
    asyncio.run(experiments.made_again(str(path)))
    return path


@pytest.fixture
def database(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A database of its own, in the working directory."""
    path = tmp_path / "tidegate.db"
    path.write_bytes(template.read_bytes())
    monkeypatch.chdir(tmp_path)
    return path


@pytest.fixture
def client(database: Path) -> Iterator[TestClient]:
    with opened(database) as client:
        yield client


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let each comparison wait for this event."""
    compare, go = comparison.compare, threading.Event()

    async def late(*sides: Any) -> comparison.Comparison:
        while not go.is_set():  # noqa: ASYNC110  # the event belongs to no loop
            await asyncio.sleep(0.02)
        return await compare(*sides)

    monkeypatch.setattr(comparison, "compare", late)
    return go


def compared(client: TestClient, a: int, b: int) -> Any:
    """Return the answer for a comparison once it is made."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        told = got(client, "/compare", a=a, b=b)
        if told.get("problem") or told["made"] is not None:
            return told
        time.sleep(0.05)
    raise AssertionError("the comparison is not made")


async def judged_once_more(database: Path) -> None:
    """Add a result of a further evaluator to `capitals-2`."""
    store = await Store.open(str(database))
    try:
        claim = await store.claims.resume(AFTER, "elsewhere")
        assert isinstance(claim, Claim)
        await store.write([AnnotationResult(AFTER, claim.epoch, 0, 1, "later", (Annotation("later", score=1.0),))])
        await store.claims.release(claim, Status.COMPLETED)
    finally:
        await store.close()


def test_comparison_has_what_the_command_prints_and_both_costs(client: TestClient) -> None:
    told = compared(client, CAPITALS, AFTER)
    both = [n for n in range(AGAIN) if n not in (*FAILED, *PARKED, *INVALID)]
    (output,) = told["comparison"]["outputs"]
    assert (output["output"], output["rows"]) == ("correct", len(both))
    assert output["wins"] == sum(n % 4 == 0 and n % 5 > 0 for n in both)
    assert output["losses"] == sum(n % 4 > 0 and n % 5 == 0 for n in both)
    low, high = output["interval"]
    assert low <= output["difference"] <= high
    most = output["different"][0]
    assert most["id"] == f"q{most['a_ordinal']}" == f"q{most['b_ordinal']}"
    assert told["comparison"]["only_a"] == ["judge.label", "judge.score"]
    assert (told["a"]["name"], told["b"]["name"]) == ("capitals", "capitals-2")
    assert told["a"]["tokens"]["cost"] == told["comparison"]["a"]["spend"]["cost"] > 0
    assert told["b"]["tokens"]["cost"] is None


def test_no_other_answer_waits_for_a_comparison_and_one_is_made_at_a_time(
    client: TestClient, held: threading.Event
) -> None:
    first = got(client, "/compare", a=CAPITALS, b=AFTER)
    assert (first["comparison"], first["queued"]) == (None, False)
    assert first["computing"] >= 0
    assert len(got(client, "")["experiments"]) == 3
    assert got(client, "/compare", a=AFTER, b=CAPITALS)["queued"] is True
    held.set()
    assert compared(client, CAPITALS, AFTER)["comparison"] is not None
    assert compared(client, AFTER, CAPITALS)["comparison"]["a"]["name"] == "capitals-2"


def test_kept_comparison_says_that_results_were_added_and_is_made_again(database: Path, client: TestClient) -> None:
    first = compared(client, CAPITALS, AFTER)
    assert first["changed"] is False
    assert got(client, "/compare", a=CAPITALS, b=AFTER)["made"] == first["made"]
    asyncio.run(judged_once_more(database))
    assert got(client, "/compare", a=CAPITALS, b=AFTER)["changed"] is True
    again = client.post("/api/experiments/compare", params={"a": CAPITALS, "b": AFTER}).json()
    assert (again["comparison"], again["made"]) == (None, None)
    assert compared(client, CAPITALS, AFTER)["changed"] is False


def test_experiments_without_a_common_row_are_a_sentence(client: TestClient) -> None:
    assert "no row id is in both" in compared(client, CAPITALS, HOSTILES)["failure"]


def test_without_scipy_the_command_that_installs_it_is_named(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "find_spec", lambda name: None if name == "scipy" else find_spec(name))
    assert "pip install 'tidegate[compare]'" in got(client, "/compare", a=CAPITALS, b=AFTER)["problem"]


@pytest.mark.parametrize("query", [{}, {"a": 1}, {"a": 1, "b": 1}, {"a": "x", "b": 1}, {"a": -1, "b": 1}])
def test_unusable_pairs_are_refused(client: TestClient, query: dict[str, Any]) -> None:
    answer = client.get("/api/experiments/compare", params=query)
    assert answer.status_code == 400
    assert "not usable" in answer.json()["problem"]


def test_unknown_experiment_is_a_sentence(client: TestClient) -> None:
    assert "experiment 99 not found" in got(client, "/compare", a=CAPITALS, b=99)["problem"]


def test_error_of_a_comparison_is_a_sentence(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "compare", lambda *sides: 1 / 0)
    assert compared(client, CAPITALS, AFTER)["failure"] == "comparison not made: ZeroDivisionError: division by zero"


def test_end_of_the_server_ends_a_comparison(database: Path, held: threading.Event) -> None:
    with opened(database) as client:
        assert got(client, "/compare", a=CAPITALS, b=AFTER)["computing"] is not None
