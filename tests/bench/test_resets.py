"""A reset is not the length of a window: buckets smaller than their limit, and limits that are full again at once."""

from __future__ import annotations

import pytest

from bench.answers import ASKING
from bench.families import HEADERS
from bench.scenarios import Row
from bench.virtual import Laboratory
from tidegate.core.provenance import Confidence
from tidegate.testing import Distribution, Limit, Scenario

AZURE_PATH = "/openai/deployments/gpt-5-mini/chat/completions"


class Play:
    """A row that was played: refusals a call, makespan over the ideal, and what is known of the quota of requests."""

    def __init__(self, limit: Limit, dialect: str, count: int, callers: int, latency: float = 0.3) -> None:
        row = Row(
            name="",
            family=HEADERS,
            scenario=Scenario(dialect=dialect, limiters=(limit,), latency=Distribution.lognormal(latency, 0.3)),
            count=count,
            callers=callers,
            max_tokens=64,
            sdk="anthropic" if dialect == "anthropic" else "openai",
        )
        laboratory = Laboratory(row, 0)
        laboratory.run()
        assert not laboratory.losses
        admission = laboratory.registry._queues[laboratory.key_of(row.asked(0)[0])].admission
        provenance = admission.quotas.provenance["requests"]
        self.refused = len(laboratory.refused_at) / count
        self.ratio = laboratory.makespan / row.ideal(0).makespan
        self.window = provenance.reported_window
        self.confidence = provenance.learnt_window("", laboratory.now, 60.0).confidence


@pytest.fixture
def azure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ASKING, "openai", ASKING["openai"]._replace(path=AZURE_PATH))


def small(limit: int) -> Limit:
    return Limit(limit=limit, window=60.0, burst=10)


@pytest.mark.parametrize("latency", [0.3, 1.5])
@pytest.mark.parametrize("dialect", ["anthropic", "azure", "openai"])
def test_a_bucket_smaller_than_its_limit_is_refused_seldom(dialect: str, latency: float) -> None:
    play = Play(small(60), dialect, 130, 20, latency)
    assert play.refused <= 0.05
    assert play.window == 60.0


@pytest.mark.usefixtures("azure")
@pytest.mark.parametrize("dialect", ["azure", "azure-renewal", "openai"])
def test_a_bucket_behind_the_paths_of_azure_is_refused_seldom(dialect: str) -> None:
    play = Play(small(60), dialect, 130, 20)
    assert play.refused <= 0.05
    assert play.window == 60.0


@pytest.mark.usefixtures("azure")
@pytest.mark.parametrize("callers", [1, 40])
@pytest.mark.parametrize("dialect", ["azure", "azure-renewal", "openai"])
def test_a_short_run_behind_the_paths_of_azure_learns_no_window_of_a_second(dialect: str, callers: int) -> None:
    play = Play(small(120), dialect, 40, callers)
    assert play.refused * 40 <= 6
    assert play.window == 60.0


def test_a_bucket_that_was_empty_from_the_first_answer_on_is_found_by_its_refusals() -> None:
    """Each answer states ten seconds: alone, they are the window."""
    play = Play(Limit(limit=60, window=60.0, burst=10, initial=0), "anthropic", 130, 20)
    assert play.refused <= 0.08
    assert play.window == 60.0


@pytest.mark.parametrize(("limit", "window"), [(5, 0.05), (8, 0.2), (20, 0.5), (8, 0.9), (40, 1.0)])
def test_a_limit_that_is_full_again_within_a_second_is_used(limit: int, window: float) -> None:
    play = Play(Limit(limit=limit, window=window), "openai", 600, 64)
    assert play.ratio <= 1.07
    assert play.refused <= 0.01
    assert play.window == pytest.approx(window, rel=0.05)
    assert play.confidence is Confidence.INFERRED


@pytest.mark.parametrize(
    ("limit", "window"), [(1, 0.01), (2, 0.01), (5, 0.01), (1, 0.02), (2, 0.02), (3, 0.02), (5, 0.02)]
)
def test_a_limit_of_few_requests_that_is_full_again_at_once_is_used(limit: int, window: float) -> None:
    """Two requests that meet on their way empty such a quota, so a little is lost, and a few are refused."""
    play = Play(Limit(limit=limit, window=window), "openai", 600, 64)
    assert play.ratio <= 1.35
    assert play.refused <= 0.02


@pytest.mark.parametrize(
    ("limit", "window", "burst"), [(3, 0.05, None), (3, 0.02, None), (10, 0.1, None), (60, 0.5, 10.0)]
)
def test_a_limit_whose_resets_are_whole_seconds_is_used(limit: int, window: float, burst: float | None) -> None:
    """No reset tells its window: calls that waited, and found it full, do."""
    play = Play(Limit(limit=limit, window=window, burst=burst), "anthropic", 3000, 64)
    assert play.ratio <= 1.3
    assert play.refused <= 0.02


@pytest.mark.parametrize(("limit", "window", "burst"), [(60, 0.5, 10), (120, 1.0, 20), (100, 0.1, 20)])
def test_a_small_content_that_is_full_again_at_once_is_used(limit: int, window: float, burst: int) -> None:
    play = Play(Limit(limit=limit, window=window, burst=burst), "openai", 600, 64)
    assert play.ratio <= 1.3
    assert play.refused <= 0.02


def test_a_stated_window_that_answers_deny_is_inferred() -> None:
    """The table of this provider says a minute; its answers show six seconds."""
    play = Play(Limit(limit=120, window=6.0), "anthropic", 360, 64)
    assert play.window == pytest.approx(6.0, rel=0.05)
    assert play.confidence is Confidence.INFERRED


@pytest.mark.parametrize("limit", [Limit(limit=120, window=6.0, burst=10), Limit(limit=1000, window=6.0, burst=20)])
def test_a_small_bucket_of_a_window_that_is_not_usual_refuses_next_to_nothing(limit: Limit) -> None:
    """Its resets are below a second; while any such reset was believed, two requests a call were refused."""
    assert Play(limit, "openai", 300, 40).refused <= 0.05


@pytest.mark.parametrize(("dialect", "limit", "content"), [("openai", 117, 1.95), ("anthropic", 68, 1.14)])
def test_what_does_not_fit_into_a_small_bucket_is_taken_by_nobody(dialect: str, limit: int, content: float) -> None:
    """What came back beyond the content looked like another client's use, so the calls went ever more rarely."""
    play = Play(Limit(limit=limit, window=60.0, burst=content), dialect, limit, 128, 0.45)
    assert play.ratio < 1.1
    assert play.refused < 0.15
