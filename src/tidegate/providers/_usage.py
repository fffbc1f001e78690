"""Facts of a good answer, found by byte search rather than by parsing a megabyte of JSON.

They are its usage, whether it has begun, why the model stopped, and the provider's request id.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from tidegate.core.values import Usage, new
from tidegate.providers._schema import Provider

_TAIL = 1 << 14
"""Bytes at the end of an answer in which its usage is searched. Chosen: usage is the last object of a body, and in one
of the last events of a stream."""

_HEAD = 1 << 12
"""Bytes at the beginning of a longer answer in which its usage is searched. Chosen: Anthropic's `message_start`, the
first event, states the input tokens."""

_WINDOW = 2048
"""Bytes that are read from the name of a usage object on. Chosen: longer than a usage object with all its details."""

_BEGINS = b'"message_start"'
"""Name of the event that begins Anthropic's streams, and states the input."""

_OBJECT = re.compile(rb'"usage(?:Metadata)?"[ \t\r\n]{0,64}:[ \t\r\n]{0,64}\{')
_NAMES = (b'"usage"', b'"usageMetadata"')
_ANONYMOUS = (b'"eval_count"', b'"billed_units"')
"""Names near counts without a `usage` object: Ollama's, and those of Cohere's first version."""
_FIELD = re.compile(
    rb'"(prompt_tokens|completion_tokens|input_tokens|output_tokens|cached_tokens|cache_read_input_tokens'
    rb"|cache_creation_input_tokens|reasoning_tokens|total_tokens|prompt_eval_count|eval_count"
    rb"|promptTokenCount|candidatesTokenCount|thoughtsTokenCount|cachedContentTokenCount"
    rb"|inputTokens|outputTokens|cacheReadInputTokens|cacheWriteInputTokens"
    rb"|total_input_tokens|total_output_tokens|total_cached_tokens|total_thought_tokens)"
    rb'"[ \t\r\n]{0,64}:[ \t\r\n]{0,64}([0-9]{1,12})(?![0-9.eE])'
)

_TIER = re.compile(rb'"(?:service_tier|trafficType)"[ \t\r\n]{0,64}:[ \t\r\n]{0,64}"([A-Za-z_]{1,32})"')
_SCANNER = json.JSONDecoder()
_WORD = re.compile(r"[a-z_]{1,32}")
STANDARD_TIERS = frozenset({"auto", "batch", "default", "on_demand", "standard", "traffic_type_unspecified"})
"""Service tiers with the prices of the table; that of `batch` is the standard one times the factor of the Batch API.
Source: the types of openai 3.54, anthropic 2.12 (`service_tier` and `speed` of `usage`) and google-genai 3.4
(`TrafficType`), and console.groq.com/docs/service-tiers, read on 2026-11-25."""

_MAX_TRIES = 4
"""Occurrences of a usage name that are tried, from the last one backwards, which is nearly always right."""


def usage_of(provider: Provider, body: bytes, model: str = "") -> Usage | None:
    """Return the tokens that a body, or a chunk of a stream, reports as used; None if it reports none. Never raise.

    The last `usage` object of the last 16 kB counts, else of the first 4 kB. A chunk may report only a part
    (Anthropic's `message_start` the input, its `message_delta` the output); `merged` combines parts. `input_tokens`
    includes tokens read from or written to a cache, for every provider. `model` is the one that the request names.
    """
    tail = body if len(body) <= _TAIL else body[-_TAIL:]
    # The last object is nearly always the right one. Searches are by `find`: in Python 3.11 `in` raises inside first.
    at = tail.rfind(_NAMES[0])
    if at < 0 or _OBJECT.match(tail, at) is None or body.find(_BEGINS, 0, _HEAD) >= 0:
        return _full(body, tail, model)
    pairs = _FIELD.findall(tail, at, at + _WINDOW)
    pairs.reverse()
    stated: dict[bytes, bytes] = dict(pairs)
    if b"prompt_tokens" not in stated or b"completion_tokens" not in stated:
        return _full(body, tail, model)
    # OpenAI's form, which most others have too, has a short way.
    get, output = stated.get, int(stated[b"completion_tokens"])
    thought = min(int(get(b"reasoning_tokens", 0)), output)
    tiered = tail.find(b'"service_tier"') >= 0 or tail.find(b'"trafficType"') >= 0 or tail.find(b'"speed"') >= 0
    tiered = tiered or tail is not body
    tier = _stated_tier(body, tail, at) if tiered else ""
    return new(Usage, (int(stated[b"prompt_tokens"]), output, int(get(b"cached_tokens", 0)), 0, thought, model, tier))


def _stated_tier(body: bytes, tail: bytes, at: int) -> str:
    """Return the service tier in a body whose usage is at `at` of its tail."""
    head = body[:_HEAD]
    tier = _tier(tail) or (_tier(head) if tail is not body else "") or _speed(tail, at)
    return tier or (_speed(head, head.find(_NAMES[0])) if _BEGINS in head else "")


def _full(body: bytes, tail: bytes, model: str) -> Usage | None:
    """Return the usage of a body in any form, whose last usage object may be one of several."""
    head = body[:_HEAD]
    usage = _last(tail, model) or (_last(head, model) if tail is not body else None)
    if usage is None and any(name in tail[-_WINDOW:] for name in _ANONYMOUS):
        usage = _read(tail, max(0, len(tail) - _WINDOW), model)
    if usage is None:
        return None
    first = head.find(_NAMES[0])
    usage = merged(usage, _read(head, first, model)) if first >= 0 and _BEGINS in head else usage
    tier = _stated_tier(body, tail, tail.rfind(_NAMES[0]))
    return usage._replace(tier=tier) if usage is not None and tier else usage


def merged(one: Usage | None, other: Usage | None) -> Usage | None:
    """Return two partial usages of one call as one: the larger of each number, since streams count up."""
    if one is None or other is None:
        return one or other
    return Usage(
        max(one.input_tokens, other.input_tokens),
        max(one.output_tokens, other.output_tokens),
        max(one.cached_tokens, other.cached_tokens),
        max(one.cache_write_tokens, other.cache_write_tokens),
        max(one.reasoning_tokens, other.reasoning_tokens),
        one.model or other.model,
        one.tier or other.tier,
    )


def _tier(text: bytes) -> str:
    """Return the last service tier that a text states in lower case, empty for the standard one."""
    for name in (b'"service_tier"', b'"trafficType"'):
        at = text.rfind(name)
        if at >= 0 and (found := _TIER.match(text, at)) is not None:
            tier = found[1].decode().lower()
            return "" if tier in STANDARD_TIERS else tier
    return ""


def _speed(text: bytes, at: int) -> str:
    """Return Anthropic's `speed` in the usage object at this place; the name may be an argument of a tool elsewhere."""
    if at < 0 or b'"speed"' not in text or (found := _OBJECT.match(text, at)) is None:
        return ""
    try:
        stated, _ = _SCANNER.raw_decode(text[at : at + _WINDOW].decode("latin-1"), found.end() - 1 - at)
    except (ValueError, RecursionError):
        return ""
    speed = stated.get("speed")
    return speed if isinstance(speed, str) and _WORD.fullmatch(speed) and speed not in STANDARD_TIERS else ""


def _last(text: bytes, model: str) -> Usage | None:
    for name in _NAMES:
        end = len(text)
        for _ in range(_MAX_TRIES):
            at = text.rfind(name, 0, end)
            if at < 0:
                break
            if _OBJECT.match(text, at) is not None:
                usage = _read(text, at, model)
                if usage is not None:
                    return usage
            end = at
    return None


def _read(text: bytes, at: int, model: str) -> Usage | None:
    """Read the first number of each name from `at` on: details and iterations follow the totals, or are in them."""
    pairs = _FIELD.findall(text, at, at + _WINDOW)
    if not pairs:
        return None
    pairs.reverse()
    stated: dict[bytes, bytes] = dict(pairs)
    found = {name: int(number) for name, number in stated.items()}
    written = 0
    cached = _first(found, b"cached_tokens", b"cachedContentTokenCount", b"total_cached_tokens") or 0
    prompt = _first(found, b"prompt_tokens", b"prompt_eval_count", b"promptTokenCount", b"total_input_tokens")
    output = _first(found, b"completion_tokens", b"output_tokens", b"eval_count", b"outputTokens")
    reasoning = _first(found, b"reasoning_tokens", b"thoughtsTokenCount", b"total_thought_tokens") or 0
    if output is None:
        output = (_first(found, b"candidatesTokenCount", b"total_output_tokens") or 0) + reasoning
    if prompt is None:
        reads = _first(found, b"cache_read_input_tokens", b"cacheReadInputTokens") or 0
        prompt = _first(found, b"input_tokens", b"inputTokens")
        if prompt is None:
            prompt = max(0, found.get(b"total_tokens", 0) - output)
        written = _first(found, b"cache_creation_input_tokens", b"cacheWriteInputTokens") or 0
        prompt += reads + written
        cached = cached or reads
    return Usage(prompt, output, cached, written, min(reasoning, output), model)


def _first(found: dict[bytes, int], *names: bytes) -> int | None:
    for name in names:
        if name in found:
            return found[name]
    return None


_REASON = re.compile(
    rb'"(?:finish_reason|stop_reason|finishReason|stopReason)"[ \t\r\n]{0,64}:[ \t\r\n]{0,64}"([A-Za-z_]{1,64})"'
)
_INCOMPLETE = re.compile(
    rb'"incomplete_details"[ \t\r\n]{0,64}:[ \t\r\n]{0,64}\{[ \t\r\n]{0,64}"reason"[ \t\r\n]{0,64}:[ \t\r\n]{0,64}'
    rb'"([A-Za-z_]{1,64})"'
)
_CONTENT = re.compile(
    rb'"(?:text|content|delta|bytes|completion|response|transcript|arguments|partial_json|input|thinking'
    rb'|reasoning(?:_content|_text)?)"[ \t\r\n]{0,64}:[ \t\r\n]{0,64}"[^"]'
)
"""A piece of an answer in an event: texts, calls of tools, thoughts, and the encoded events of Bedrock."""

_FAILING = re.compile(rb"^event: ?error\r?\n(?:[^\r\n]+\r?\n)*", re.MULTILINE)
"""An event that is named an error. Poe has its reason in `text`, which is a piece of an answer elsewhere."""

_RESPONSE = re.compile(rb'"object"[ \t\r\n]{0,64}:[ \t\r\n]{0,64}"response"')
"""Object of OpenAI's responses, which states a reason only where it is incomplete."""

_REQUEST_IDS = (b"x-request-id", b"request-id", b"x-amzn-requestid", b"apim-request-id")
"""Headers with the id of a request: OpenAI and most others, Anthropic, Bedrock, Azure; the first of them counts."""

_MAX_ID = 128
"""Characters of a request id that are kept. Chosen: ids have 20 to 60."""


def has_content(events: bytes) -> bool:
    """Return whether the events of a stream hold a piece of the answer, however short."""
    return _CONTENT.search(_FAILING.sub(b"", events)) is not None


def finish_reason_of(body: bytes) -> str | None:
    """Return why the model stopped, in the provider's own word; None where an answer does not say it. Never raise."""
    tail = body if len(body) <= _TAIL else body[-_TAIL:]
    found = _REASON.findall(tail)
    if found:
        return str(found[-1].decode("ascii"))
    incomplete = _INCOMPLETE.search(body)
    if incomplete is not None:
        return incomplete[1].decode("ascii")
    return "completed" if _RESPONSE.search(body) is not None else None


def request_id_of(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the provider's id of a request from raw headers in any case; None without one. Never raise."""
    found = {name.lower(): value for name, value in headers if name.lower() in _REQUEST_IDS}
    for name in _REQUEST_IDS:
        if name in found:
            text = found[name].decode("latin-1")[:_MAX_ID]
            return text if text.isprintable() and text else None
    return None
