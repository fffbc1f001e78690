"""State files of version 0.1, and of later versions that write more: what is known of them acts, the rest is ignored.

The fixture was written by the code of version 0.1 after five keys had learned: a bucket, a fixed window, a ceiling of
slots, a pace and the sizes of answers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tidegate.admission.registry import RateLimitRegistry
from tidegate.admission.saved_state import LearnedState
from tidegate.core.values import Cost, Key
from tidegate.settings import Settings

pytestmark = pytest.mark.constants(START_CONCURRENCY=20)

TEXT = (Path(__file__).parent / "fixtures" / "learned_state_0_1_all_gates.json").read_text()
TAKEN_ON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
BUCKET = Key("openai", "https://api.openai.com", "", "gpt-4o-mini")
WINDOW = Key("groq", "https://api.groq.com/openai", "", "llama-3.3-70b-versatile")
SLOTS = Key("cohere", "https://api.cohere.com", "", "command-a")
PACE = Key("gemini", "https://generativelanguage.googleapis.com", "", "gemini-2.5-flash")
ESTIMATE = Key("anthropic", "https://api.anthropic.com", "", "claude-sonnet-4-5")


def begin(text: str, age: float = 2.0) -> RateLimitRegistry:
    """A registry that starts `age` seconds after the state was written."""
    settings = Settings(initial_state=LearnedState.from_json(text))
    return RateLimitRegistry(settings, clock=lambda: 7.0, calendar=lambda: TAKEN_ON + timedelta(seconds=age))


def admitted(one: RateLimitRegistry, key: Key) -> tuple[int, str, float]:
    """The calls that go at once, the gate that then holds the next one, and its seconds."""
    count = 0
    while one.try_admit(key, Cost()):
        count += 1
        assert count < 100
    seen = one.snapshot().keys[key]
    return count, seen.gate, seen.ready_in


def acts(one: RateLimitRegistry) -> None:
    """Assert that each learned value of the fixture decides."""
    # The bucket had 6.05 of 60 a minute, and got 2 more since, but for the part of a call that a mirror keeps.
    assert admitted(one, BUCKET) == (7, "quota requests", pytest.approx(0.2))
    # The window was spent and opens 15.97 s after it was saved: until then one call tests it.
    assert admitted(one, WINDOW) == (1, "quota requests", pytest.approx(13.97, abs=0.05))
    assert admitted(one, SLOTS)[:2] == (3, "concurrency")
    assert admitted(one, PACE) == (1, "pace", pytest.approx(1 / 4.04, rel=0.01))
    one.try_admit(ESTIMATE)
    seen = one.snapshot().keys[ESTIMATE]
    assert (seen.chars_per_token, seen.mean_output) == (2.0, pytest.approx(508.87, abs=0.01))


def test_values_of_a_state_of_version_0_1_act(caplog: pytest.LogCaptureFixture) -> None:
    acts(begin(TEXT))
    assert not caplog.records


def test_state_before_the_first_release_lacks_a_field_and_acts() -> None:
    plain = json.loads(TEXT)
    for key in plain["keys"]:
        for quota in key["quotas"]:
            del quota["said"]
    assert admitted(begin(json.dumps(plain)), BUCKET)[0] == 7


def test_written_again_it_is_the_same() -> None:
    state = LearnedState.from_json(TEXT)
    assert LearnedState.from_json(state.to_json()) == state


def _keys(change: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], object]:
    return lambda plain: [change(key) for key in plain["keys"]]


UNKNOWN: dict[str, Callable[[dict[str, Any]], object]] = {
    "of the state": lambda plain: plain.update(written_by="tidegate 9"),
    "of a key": _keys(lambda key: key.update(colour={"deep": [1]})),
    "of a quota": _keys(lambda key: [quota.update(shape=None) for quota in key["quotas"]]),
    "limiter": _keys(lambda key: key["gates"].update(slope={"rise": 2.0})),
    "number of a limiter": _keys(lambda key: key["gates"].setdefault("concurrency", {}).update(knee=3.5)),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_value_is_left_out_and_the_rest_acts(name: str) -> None:
    plain = json.loads(TEXT)
    UNKNOWN[name](plain)
    before = json.dumps(plain)
    acts(begin(before))
    Settings(initial_state=plain)
    assert json.dumps(plain) == before


def test_state_of_a_newer_version_is_ignored_whole_with_one_line(caplog: pytest.LogCaptureFixture) -> None:
    plain = {**json.loads(TEXT), "version": 2, "keys": {"shape": "unknown"}}
    one = begin(json.dumps(plain))
    assert admitted(one, SLOTS)[0] == 20
    (record,) = caplog.records
    assert record.getMessage() == (
        "initial state ignored: it has version 2, and this tidegate reads version 1; every key starts anew"
    )
