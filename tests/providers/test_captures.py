"""Real answers of providers mean what was established of them: each line of the project's captures."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tidegate.providers import dimensions, judge, judge_event, named

CAPTURES = Path(__file__).parents[3] / "shared" / "reference" / "captures.jsonl"
TABLES = {
    "anthropic-oauth": "anthropic",
    "pydantic-gateway": "anthropic-compatible",
    "gemini-code-assist": "gemini",
}
UNKEPT = {"gemini-429-shared-capacity"}
"""Captures of which neither status nor body was kept, so that nothing can be judged."""
KINDS = {"bedrock-429-ModelNotReady": "overloaded"}
"""Captures that were described before a model that loads became a kind of overload: it waits, and cuts no limit."""

pytestmark = pytest.mark.skipif(not CAPTURES.exists(), reason="the captures are not in this checkout")


def captures():
    if not CAPTURES.exists():
        return []
    lines = [json.loads(line) for line in CAPTURES.read_text().splitlines()]
    return [pytest.param(line, id=line["id"]) for line in lines if line["id"] not in UNKEPT]


def outcome_of(capture, provider):
    body = capture["body"]
    streamed = capture["status"] == 200 and isinstance(body, str)
    raw = None if body is None else body.encode() if streamed else json.dumps(body).encode()
    headers = [(name.title().encode(), value.encode()) for name, value in capture["headers"].items()]
    outcome = judge(provider, capture["status"], headers, raw, datetime(2026, 1, 1, tzinfo=UTC))
    return (judge_event(provider, raw) if raw and capture["status"] == 200 else None) or outcome


@pytest.mark.parametrize("capture", captures())
def test_a_capture_means_what_was_established(capture):
    provider = named(TABLES.get(capture["provider"], capture["provider"])) or named("compatible")
    expect = capture["expect"]
    outcome = outcome_of(capture, provider)
    seen = dimensions(outcome, provider)
    assert outcome.kind == KINDS.get(capture["id"], expect["kind"]), outcome.row
    assert seen["limits"] == expect["limits"]
    assert seen["remaining"] == expect["remaining"]
    if expect["reset_after_s"] or "reset_at" not in expect:
        assert seen["reset_after_s"] == pytest.approx(expect["reset_after_s"], rel=0.02, abs=1e-9)
    if expect["retry_after_s"] is None:
        assert outcome.retry_after is None
    else:
        assert outcome.retry_after == pytest.approx(expect["retry_after_s"], rel=0.02)
