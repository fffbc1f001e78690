"""What an answer says was used, however large or cut it is."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.values import Usage
from tidegate.providers import COMPATIBLE, usage_of
from tidegate.providers._usage import merged
from tidegate.providers.anthropic import ANTHROPIC
from tidegate.providers.google import GEMINI
from tidegate.providers.model_makers import COHERE
from tidegate.providers.openai import OPENAI


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
@pytest.mark.parametrize(
    ("stated", "tier"),
    [
        ({"usage": {"prompt_tokens": 1, "completion_tokens": 2}, "service_tier": "flex"}, "flex"),
        ({"service_tier": "priority", "usage": {"input_tokens": 1, "output_tokens": 2}}, "priority"),
        ({"service_tier": "priority", "text": "x" * 20_000, "usage": {"input_tokens": 1, "output_tokens": 2}},
         "priority"),
        ({"usage": {"input_tokens": 1, "output_tokens": 2, "service_tier": "priority"}}, "priority"),
        ({"usage": {"input_tokens": 1, "output_tokens": 2, "service_tier": "standard"}}, ""),
        ({"usage": {"input_tokens": 1, "output_tokens": 2, "service_tier": "batch"}}, ""),
        ({"usage": {"input_tokens": 1, "output_tokens": 2, "service_tier": "standard", "speed": "fast"}}, "fast"),
        ({"usage": {"input_tokens": 1, "output_tokens": 2, "speed": "standard"}}, ""),
        ({"usage": {"prompt_tokens": 1, "completion_tokens": 2, "speed": "fast"}}, "fast"),
        ({"content": [{"input": {"speed": "fast"}}], "usage": {"input_tokens": 1, "output_tokens": 2}}, ""),
        ({"candidates": [{"args": {"speed": "slow"}}],
          "usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 2}}, ""),
        ({"usage": {"input_tokens": 1, "output_tokens": 2}, "metadata": {"speed": "slow"}}, ""),
        ({"message": {"arguments": {"speed": "slow"}}, "prompt_eval_count": 1, "eval_count": 2}, ""),
        ({"usage": {"prompt_tokens": 1, "completion_tokens": 2}, "service_tier": "default"}, ""),
        ({"usage": {"prompt_tokens": 1, "completion_tokens": 2}, "service_tier": None}, ""),
        ({"said": '"service_tier": "flex"', "usage": {"prompt_tokens": 1, "completion_tokens": 2}}, ""),
        ({"usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 2, "trafficType": "ON_DEMAND"}}, ""),
        ({"usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 2, "trafficType": "ON_DEMAND_FLEX"}},
         "on_demand_flex"),
    ],
)  # fmt: skip
def test_service_tier_is_read_unless_it_is_the_standard_one(stated, tier, separators):
    usage = usage_of(OPENAI, json.dumps(stated, separators=separators).encode())
    assert usage == Usage(1, 2, tier=tier)
    assert merged(usage, Usage(0, 2)) == usage


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}, Usage(10, 5, 0)),
        ({"prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}}, Usage(10, 5, 4)),
        ({"input_tokens": 10, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 5}, Usage(10, 5, 4)),
        ({"input_tokens": 10, "cache_read_input_tokens": 30, "cache_creation_input_tokens": 2, "output_tokens": 5},
         Usage(42, 5, 30, 2)),
        ({"prompt_tokens": 10, "completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 6}},
         Usage(10, 9, 0, 0, 6)),
        ({"input_tokens": 10, "output_tokens": 9, "output_tokens_details": {"reasoning_tokens": 6}},
         Usage(10, 9, 0, 0, 6)),
        ({"prompt_tokens": 10, "completion_tokens": 5, "completion_tokens_details": {"reasoning_tokens": 50}},
         Usage(10, 5, 0, 0, 5)),
        ({"prompt_tokens": 40, "completion_tokens": 5, "cache_read_input_tokens": 30}, Usage(40, 5, 0)),
        ({"prompt_tokens": 8, "total_tokens": 8}, Usage(8, 0, 0)),
        ({"total_tokens": 12}, Usage(12, 0, 0)),
        ({"output_tokens": 7}, Usage(0, 7, 0)),
        ({"inputTokens": 10, "outputTokens": 5, "totalTokens": 47, "cacheReadInputTokens": 30,
          "cacheWriteInputTokens": 2}, Usage(42, 5, 30, 2)),
        ({"billed_units": {"input_tokens": 5, "output_tokens": 4}, "tokens": {"input_tokens": 71}}, Usage(5, 4, 0)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_usage_is_read_in_every_dialect(usage, expected, separators):
    body = json.dumps({"id": "x", "usage": usage, "user": None}, separators=separators).encode()
    assert usage_of(OPENAI, body) == expected
    assert usage_of(OPENAI, json.dumps({"usage": usage}, indent=2).encode()) == expected


def test_googles_usage_counts_its_thoughts_as_output():
    usage = {"promptTokenCount": 10, "candidatesTokenCount": 5, "thoughtsTokenCount": 3, "cachedContentTokenCount": 4}
    assert usage_of(GEMINI, json.dumps({"candidates": [], "usageMetadata": usage}).encode()) == Usage(10, 8, 4, 0, 3)
    totals = {"input": 10, "output": 5, "thought": 3, "cached": 4, "tool_use": 0}
    usage = {f"total_{what}_tokens": count for what, count in totals.items()} | {"total_tokens": 18}
    assert usage_of(GEMINI, json.dumps({"status": "completed", "usage": usage}).encode()) == Usage(10, 8, 4, 0, 3)


def test_coheres_first_version_says_it_below_meta():
    body = {"text": "x", "meta": {"billed_units": {"input_tokens": 5, "output_tokens": 4}}}
    assert usage_of(COHERE, json.dumps(body).encode()) == Usage(5, 4, 0)


def test_the_usage_of_a_megabyte_is_found_at_its_end_or_its_beginning():
    text = "a" * 1_000_000
    usage = {"prompt_tokens": 1, "completion_tokens": 2}
    assert usage_of(OPENAI, json.dumps({"content": text, "usage": usage}).encode()) == Usage(1, 2, 0)
    assert usage_of(OPENAI, json.dumps({"usage": usage, "content": text}).encode()) == Usage(1, 2, 0)


def test_the_word_in_a_models_text_or_metadata_is_not_the_usage():
    said = '"usage": {"prompt_tokens": 999}'
    body = {"content": said, "usage": {"prompt_tokens": 1}, "metadata": {"usage": "much"}}
    assert usage_of(OPENAI, json.dumps(body).encode()) == Usage(1, 0, 0)
    assert usage_of(OPENAI, json.dumps({"content": said}).encode()) is None


def test_a_streams_last_chunk_says_the_usage():
    chunk = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}\n\ndata: [DONE]\n\n'
    assert usage_of(OPENAI, chunk) == Usage(3, 4, 0)
    assert usage_of(OPENAI, b'data: {"choices":[],"usage":null}\n\n') is None


READ = b'"usage":{"input_tokens":25,"cache_read_input_tokens":5,"output_tokens":1}'
START = b'data: {"type":"message_start","message":{' + READ + b"}}"
DELTA = b'data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":15}}'


def test_anthropics_two_events_say_a_part_each_and_are_merged():
    assert usage_of(ANTHROPIC, START) == Usage(30, 1, 5)
    assert usage_of(ANTHROPIC, DELTA) == Usage(0, 15, 0)
    assert merged(usage_of(ANTHROPIC, START), usage_of(ANTHROPIC, DELTA)) == Usage(30, 15, 5)
    assert usage_of(ANTHROPIC, START + b"\n\n" + DELTA) == Usage(30, 15, 5)
    assert usage_of(ANTHROPIC, START + b"\n\n" + b": ping\n\n" * 100_000 + DELTA) == Usage(30, 15, 5)


def test_merging_with_nothing_changes_nothing():
    assert merged(None, Usage(1, 2, 3)) == Usage(1, 2, 3)
    assert merged(Usage(1, 2, 3), None) == Usage(1, 2, 3)
    assert merged(None, None) is None


def test_ollamas_counts_are_usage():
    assert usage_of(COMPATIBLE, b'{"done":true,"prompt_eval_count":26,"eval_count":298}') == Usage(26, 298, 0)


@pytest.mark.parametrize("number", ["-1", "1e9", "1.5", "NaN", '"5"', "9" * 40, "null"])
def test_what_is_no_count_is_not_read(number):
    assert usage_of(OPENAI, f'{{"usage": {{"prompt_tokens": {number}}}}}'.encode()) is None


@pytest.mark.parametrize("body", [b"", b'"usage"', b'"usage":{', b'"usage": {}', b"\xff" * 100, b'"usage":{' * 10_000])
def test_no_body_raises(body):
    assert usage_of(OPENAI, body) is None


@given(st.binary(max_size=100) | st.text(alphabet='"usage:{}_tokens0123456789 inputo,', max_size=80).map(str.encode))
def test_usage_is_never_negative(body):
    usage = usage_of(COMPATIBLE, b'{"usage": {' + body)
    assert usage is None or min(usage.input_tokens, usage.output_tokens, usage.cached_tokens) >= 0


def test_speed_of_a_stream_is_that_of_its_first_event() -> None:
    started = {"type": "message_start", "message": {"usage": {"input_tokens": 10, "output_tokens": 1, "speed": "fast"}}}
    ended = {"type": "message_delta", "usage": {"output_tokens": 20}}
    stream = b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in (started, {"x": "y" * 20_000}, ended))
    usage = usage_of(ANTHROPIC, stream)
    assert usage is not None
    assert (usage.tier, usage.output_tokens) == ("fast", 20)
