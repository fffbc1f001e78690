"""The project's own recorded facts: each is judged as recorded, and each table row is hit by one."""

import json
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import pytest

from tidegate.providers import TABLES, dimensions, judge, judge_event, named

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FILES = sorted((Path(__file__).parent / "recorded").glob("*.json"))


def facts():
    for file in FILES:
        record = json.loads(file.read_text())
        for fact in record["facts"]:
            yield pytest.param(named(record["table"]), fact, id=f"{file.stem}-{fact['id']}")


FACTS = list(facts())


def outcome_of(provider, fact):
    if "stream" in fact:
        return judge_event(provider, fact["stream"].encode())
    body = fact["body"]
    raw = None if body is None else body.encode() if isinstance(body, str) else json.dumps(body).encode()
    headers = [(name.encode(), value.encode()) for name, value in fact["headers"].items()]
    return judge(provider, fact["status"], headers, raw, NOW)


@pytest.mark.parametrize(("provider", "fact"), FACTS)
def test_a_recorded_answer_is_judged_as_recorded(provider, fact):
    assert fact["source"]
    outcome = outcome_of(provider, fact)
    assert outcome is not None
    assert (outcome.kind, outcome.cause, outcome.row) == (fact["kind"], fact["cause"], fact["row"])
    assert outcome.retry_after == pytest.approx(fact["retry_after"]) if fact["retry_after"] else not outcome.retry_after
    seen = dimensions(outcome, provider)
    for group, values in fact.get("dimensions", {}).items():
        assert seen[group] == pytest.approx(values)


@cache
def hit_errors():
    hit = set()
    for provider, fact in (param.values for param in FACTS):
        label = outcome_of(provider, fact).row
        hit |= {id(row) for name, row in provider.rows if name == label}
    return hit


def sent(provider, fact):
    """The names of the headers of a fact, with those that its body quotes where the provider's bodies do."""
    quoted = fact["body"]["error"]["metadata"].get("headers", {}) if provider.body_headers and fact["body"] else {}
    return {*fact["headers"], *(name.lower() for name in quoted)}


@cache
def hit_headers():
    hit = set()
    for provider, fact in (param.values for param in FACTS):
        names = {reading.name for reading in outcome_of(provider, fact).readings}
        if provider.body_headers:
            names |= {name.rpartition("-")[0] for name in names}  # the refusal named the window
        for row in provider.headers:
            if row.name in names or row.dialect == "ietf":
                hit |= {(id(row), header) for header, _ in row.headers() if header in sent(provider, fact)}
    return hit


@pytest.mark.parametrize("provider", TABLES, ids=lambda table: table.name)
def test_every_error_row_is_hit_by_a_recorded_answer(provider):
    hit = hit_errors()
    assert [label for label, row in provider.rows if id(row) not in hit] == []


@pytest.mark.parametrize("provider", TABLES, ids=lambda table: table.name)
def test_every_header_of_every_row_is_hit_by_a_recorded_answer(provider):
    hit = hit_headers()
    missed = [h for row in provider.headers for h, _ in row.headers() if (id(row), h) not in hit]
    assert missed == []


CODED = {
    "anthropic:enforced_spend_limit_reached",
    "anthropic:overloaded_error",
    "bedrock:model_timeout",
    "cerebras:queue",
    "cerebras:quota",
    "github-copilot:overloaded",
    "mistral:rate_limited",
    "moonshot:engine_overloaded",
    "together:dynamic",
    "volcengine:overloaded",
}


@pytest.mark.parametrize("status", [None, 400, 413, 500], ids=["stream", "400", "413", "500"])
@pytest.mark.parametrize(
    ("provider", "fact"), [each for each in FACTS if each.values[1]["row"] in CODED and "stream" not in each.values[1]]
)
def test_a_code_that_decides_does_so_at_any_status_and_in_a_stream(provider, fact, status):
    if status is None:
        other = {**fact, "stream": f"event: error\ndata: {json.dumps(fact['body'])}\n\n"}
    else:
        other = {**fact, "status": status}
    outcome = outcome_of(provider, other)
    assert outcome is not None
    assert (outcome.kind, outcome.cause) == (fact["kind"], fact["cause"])


def test_a_too_large_request_never_fits_where_a_stream_says_so():
    chunk = b'event: error\ndata: {"type":"error","error":{"type":"request_too_large","message":"Too large"}}\n\n'
    assert judge_event(named("anthropic"), chunk).cause == "never_fits"
