"""Refusals of families that were misread once, each another member of its family: kind, cause and wait.

`families.jsonl` has one a line. They are made up after answers of services, and are no recordings.
"""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tidegate.providers import judge, judge_event, named

NOW = datetime(2026, 11, 27, tzinfo=UTC)
LINES = Path(__file__).with_name("families.jsonl").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("fact", [pytest.param(fact, id=fact["id"]) for fact in map(json.loads, LINES)])
def test_a_member_of_the_family_is_read_by_its_rule(fact):
    provider, body = named(fact["table"]), fact["body"]
    raw = (body if isinstance(body, str) else json.dumps(body)).encode()
    outcome = judge_event(provider, raw) if fact["status"] == 200 else None
    headers = [(name.encode(), value.encode()) for name, value in fact["headers"].items()]
    outcome = outcome or judge(provider, fact["status"], headers, raw, NOW)
    assert [outcome.kind.value, outcome.cause.value, outcome.retry_after or None] == fact["expect"]
