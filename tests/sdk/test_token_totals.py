"""Tokens and cost of a key in the snapshot, of every answer of each SDK, and of none beyond those that state them."""

from __future__ import annotations

from typing import Any

import pytest

import tidegate
from tests.sdk.asking import KINDS, http_of, mocked, request
from tests.sdk.asking import ask as asked
from tidegate.admission.registry import RateLimitRegistry

CALLS = 150
"""More than the first attempts of a key, whose usage trains its estimate."""

MODELS = {"openai": "gpt-4o-mini", "anthropic": "claude-haiku-4-5"}


def body(kind: str, usage: dict[str, Any] | None) -> dict[str, Any]:
    if "openai" in kind:
        choice = {"index": 0, "message": {"role": "assistant", "content": "high"}, "finish_reason": "stop"}
        made = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    else:
        content = [{"type": "text", "text": "high"}]
        made = {"id": "x", "type": "message", "role": "assistant", "model": "m", "content": content,
                "stop_reason": "end_turn", "stop_sequence": None}  # fmt: skip
    return made if usage is None else {**made, "usage": usage}


def usage_of(kind: str) -> dict[str, Any]:
    """Return 100 tokens of input, 40 of them cached, and 7 of output; Anthropic's input excludes its caches."""
    if "openai" in kind:
        return {"prompt_tokens": 100, "completion_tokens": 7, "total_tokens": 107,
                "prompt_tokens_details": {"cached_tokens": 40},
                "completion_tokens_details": {"reasoning_tokens": 5}}  # fmt: skip
    return {"input_tokens": 50, "cache_read_input_tokens": 40, "cache_creation_input_tokens": 10, "output_tokens": 7}


@pytest.mark.parametrize("kind", KINDS)
def test_every_answer_is_counted_with_its_cost(kind: str, registry: RateLimitRegistry) -> None:
    http = http_of(kind)
    url = "https://api.openai.com" if "openai" in kind else "https://api.anthropic.com"
    client = registry.wrap(mocked(kind, lambda request: http.Response(200, json=body(kind, usage_of(kind))), url))
    model = MODELS["openai" if "openai" in kind else "anthropic"]
    assert all(not isinstance(each, Exception) for each in asked(kind, client, CALLS, model=model))
    tokens = registry.snapshot().tokens
    assert (tokens.metered, tokens.input_tokens, tokens.output_tokens) == (CALLS, 100 * CALLS, 7 * CALLS)
    assert tokens.cached_tokens == 40 * CALLS
    if "openai" in kind:
        assert (tokens.cache_write_tokens, tokens.reasoning_tokens) == (0, 5 * CALLS)
        # 60 at .15, 40 at .075 and 7 at .6 for a million.
        assert tokens.cost == pytest.approx(CALLS * (60 * 0.15 + 40 * 0.075 + 7 * 0.6) / 1e6, abs=1e-12)
    else:
        assert (tokens.cache_write_tokens, tokens.reasoning_tokens) == (10 * CALLS, 0)
        # 50 at 1, 40 at .1, 10 at 1.25 and 7 at 5 for a million.
        assert tokens.cost == pytest.approx(CALLS * (50 + 40 * 0.1 + 10 * 1.25 + 7 * 5) / 1e6, abs=1e-12)


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_an_answer_without_usage_or_price_has_no_cost(kind: str, registry: RateLimitRegistry) -> None:
    http = http_of(kind)
    usages = iter([None, usage_of(kind)])
    client = registry.wrap(mocked(kind, lambda request: http.Response(200, json=body(kind, next(usages)))))
    with client:
        request(kind, client, model="a-model-without-a-price")
        assert registry.snapshot().tokens == (0, 0, 0, 0, 0, 0, 0, 0)
        assert registry.snapshot().tokens.cost is None
        request(kind, client, model="a-model-without-a-price")
    tokens = registry.snapshot().tokens
    assert (tokens.metered, tokens.priced, tokens.cost) == (1, 0, None)


def test_a_refused_attempt_and_its_answer_are_one_answer(registry: RateLimitRegistry) -> None:
    http = http_of("openai")
    answers = iter([http.Response(429, json={"error": {"message": "slow down"}}, headers={"retry-after": "0"}),
                    http.Response(200, json=body("openai", usage_of("openai")))])  # fmt: skip
    client = registry.wrap(mocked("openai", lambda request: next(answers)))
    with client:
        request("openai", client, model="gpt-4o-mini")
    assert registry.snapshot().tokens.metered == 1


@pytest.mark.parametrize("kind", KINDS)
def test_an_audit_has_tokens_cost_reason_and_request_id(kind: str, registry: RateLimitRegistry) -> None:
    http = http_of(kind)
    url = "https://api.openai.com" if "openai" in kind else "https://api.anthropic.com"
    answer = body(kind, usage_of(kind))
    headers = {"x-request-id" if "openai" in kind else "request-id": "req_7"}
    client = registry.wrap(mocked(kind, lambda request: http.Response(200, json=answer, headers=headers), url))
    with tidegate.audit() as trail:
        asked(kind, client, 1, model=MODELS["openai" if "openai" in kind else "anthropic"])
    # Threads of `asked` have contexts of their own, so a synchronous client is asked here.
    if not kind.startswith("async"):
        client = registry.wrap(mocked(kind, lambda request: http.Response(200, json=answer, headers=headers), url))
        with client, tidegate.audit() as trail:
            request(kind, client, model=MODELS["openai" if "openai" in kind else "anthropic"])
    (attempt,) = trail.attempts
    assert (attempt.input_tokens, attempt.output_tokens, attempt.cached_tokens) == (100, 7, 40)
    assert attempt.request_id == "req_7"
    assert attempt.finish_reason == ("stop" if "openai" in kind else "end_turn")
    assert attempt.model == MODELS["openai" if "openai" in kind else "anthropic"]
    assert attempt.cost is not None
    assert attempt.cost > 0.0
