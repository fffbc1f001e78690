"""A ceiling of the user's own: no window of its length has more attempts, and it is used up where calls wait."""

from __future__ import annotations

from bisect import bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.laws.sharing import SharedWorld
from tests.laws.world import KEY, World
from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.ceiling import CeilingRule, rule_for
from tidegate.core.limiter_state import Permit
from tidegate.core.values import Key
from tidegate.errors import ConfigurationError
from tidegate.settings import Settings
from tidegate.testing import Limit, Scenario


def played(ceiling: str, calls: int, scenario: Scenario, gap: float = 0.0) -> World:
    world = World(scenario, Settings(ceiling=ceiling), latency=lambda draw: 0.3)
    for row in range(calls):
        world.call(row, at=gap * row)
    world.run()
    return world


def most_in(world: World, seconds: float) -> int:
    """Return the most attempts that the provider got in any window."""
    sent = sorted(attempt.sent_at for attempt in world.attempts)
    return max(bisect_right(sent, at + seconds) - place for place, at in enumerate(sent))


@given(st.integers(2, 40), st.sampled_from([0.0, 0.4, 2.0]), st.booleans())
def test_no_window_has_more_attempts_than_the_ceiling(calls: int, gap: float, refuses: bool) -> None:
    limiters = (Limit(kind="bucket", limit=30.0, window=60.0, burst=2.0, announced=False),) if refuses else ()
    world = played(f"{calls}/min", 3 * calls, Scenario(limiters=limiters), gap)
    assert most_in(world, 60.0) <= calls
    assert {attempt.row for attempt in world.attempts if attempt.admitted} == set(range(3 * calls))


def test_ceiling_is_used_up() -> None:
    world = played("20/min", 100, Scenario(limiters=()))
    assert world.now < 4 * 60.0 + 2.0


def test_share_of_an_announced_quota_bounds_each_of_its_windows() -> None:
    scenario = Scenario(limiters=(Limit(kind="bucket", limit=60.0, window=60.0),))
    world = played("50%", 200, scenario)
    late = [attempt.sent_at for attempt in world.attempts if attempt.sent_at > 10.0]
    assert max(bisect_right(late, at + 60.0) - place for place, at in enumerate(late)) <= 30
    assert len(late) > 60


@pytest.mark.parametrize("delay", [0.0, 0.02])
def test_processes_that_share_a_key_share_its_ceiling(delay: float) -> None:
    world = SharedWorld(Scenario(limiters=()), 3, delay, settings=Settings(ceiling="20/min"))
    for row in range(90):
        # The third process joins later than the others.
        world.call(row, at=30.0 if row % 3 == 2 else 0.0)
    world.run()
    assert most_in(world, 60.0) <= 20
    assert {attempt.row for attempt in world.attempts} == set(range(90))


def test_process_without_a_ceiling_takes_none_over() -> None:
    world = SharedWorld(Scenario(limiters=()), 2)
    world.registries = [
        RateLimitRegistry(settings, clock=lambda: world.timeline.now, draw=world.random.random, carrier=carrier)
        for settings, carrier in zip((Settings(ceiling="5/min"), Settings()), world.carriers, strict=True)
    ]
    for row in range(0, 40, 2):
        world.call(row, at=0.2 * row)
    # The second process joins when the first has a state to give.
    for row in range(1, 200, 2):
        world.call(row, at=20.0 + row)
    world.run()
    last = max(attempt.sent_at for attempt in world.attempts if attempt.row % 2)
    assert last < 20.0 + 200.0 + 1.0


def test_permit_that_is_given_back_leaves_its_place_under_the_ceiling() -> None:
    registry = RateLimitRegistry(Settings(ceiling="3/min"), clock=lambda: 1000.0)
    for _ in range(20):
        permit = registry.try_admit(KEY)
        assert isinstance(permit, Permit)
        registry.withdraw(permit)
    permits = [registry.try_admit(KEY) for _ in range(4)]
    assert [isinstance(each, Permit) for each in permits] == [True] * 3 + [False]


def test_refusal_is_not_explained_by_the_ceiling() -> None:
    scenario = Scenario(limiters=(Limit(kind="bucket", limit=30.0, window=60.0, burst=5.0, announced=False),))
    without, with_ceiling = (
        World(scenario, settings, latency=lambda draw: 0.3) for settings in (Settings(), Settings(ceiling="600/min"))
    )
    for world in (without, with_ceiling):
        for row in range(60):
            world.call(row)
        world.run()
    assert [each.sent_at for each in with_ceiling.attempts] == [each.sent_at for each in without.attempts]


def test_gate_of_the_ceiling_is_named() -> None:
    world = World(Scenario(limiters=()), Settings(ceiling="5/min"), latency=lambda draw: 0.3)
    for row in range(20):
        world.call(row)
    world.run()
    state = world.registry.snapshot().keys[KEY]
    assert state.binding[0].gate == "quota requests (your ceiling)"
    assert [(quota.name, quota.limit, quota.window) for quota in state.quotas] == [
        ("requests (your ceiling)", 5.0, 60.0)
    ]


KEYS = {
    "model": Key("openai", "https://api.openai.com", "aa", "gpt-4o-mini"),
    "host": Key("custom", "https://llm.internal:8443/v1", "aa", "gpt-4o"),
    "provider": Key("anthropic", "https://api.anthropic.com", "aa", "claude"),
    "other": Key("gemini", "https://generativelanguage.googleapis.com", "aa", "gemini-pro"),
}


@pytest.mark.parametrize(("key", "calls"), [("model", 1), ("host", 2), ("provider", 3), ("other", 4)], ids=list(KEYS))
def test_first_pattern_that_fits_holds_and_the_one_for_all_keys_is_last(key: str, calls: int) -> None:
    environ = {"TIDEGATE_CEILING": "4/min, gpt-4o-*=1/min, llm.internal=2/min, anthropic=3/min"}
    assert Settings.from_environment(environ).ceiling_of(KEYS[key]) == CeilingRule(calls, 60.0)


def test_without_a_fitting_pattern_there_is_none() -> None:
    assert rule_for(KEYS["other"], {"gpt*": "1/min"}) is None
    assert Settings().ceiling_of(KEYS["other"]) is None


@pytest.mark.parametrize("text", ["60", "0/min", "-3/min", "60/week", "0%", "101%", "half", "1.5/min", ""])
def test_other_texts_are_refused_with_what_they_should_be(text: str) -> None:
    with pytest.raises(ConfigurationError, match="60/min"):
        Settings(ceiling=text)
