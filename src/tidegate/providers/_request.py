"""Facts of a request, the quota that it counts against, and its expected charge."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import chain, repeat
from operator import itemgetter

from pydantic_core import from_json

from tidegate.core.cost_estimator import CostEstimator
from tidegate.core.values import Cost, RequestFacts, Usage, new
from tidegate.providers._paths import MAX_MODEL, Endpoint
from tidegate.providers._schema import Provider

_MAX_BODY = 1 << 25
"""Bytes of a request body above which it is not parsed. Chosen: more text than any model reads."""

_MAX_TOKENS = 1 << 31
"""Greatest bound on output tokens that is believed. Chosen: above the largest signed integer of 32 bits."""

_MAX_CHOICES = 1024
"""Answers to one request (`n`, `best_of`) above which their number is ignored. Chosen: far above the numbers in use."""

_TOKEN_CHARS = 4
"""Characters that a ready token in an embeddings input counts for. Source: platform.openai.com/tokenizer, read
2026-11-20."""

_SCHEMA_KEYS = frozenset({"tools", "functions", "response_format", "text", "toolConfig"})
_TEXT_KEYS = frozenset(
    {
        "messages",
        "input",
        "system",
        "instructions",
        "prompt",
        "suffix",
        "inputs",
        "query",
        "documents",
        "message",
        "texts",
        "contents",
        "content",
        "systemInstruction",
        "system_instruction",
        "instances",
        "requests",
        "inputText",
        "chat_history",
        "preamble",
    }
)
_BOUND_KEYS = ("max_completion_tokens", "max_output_tokens", "max_tokens", "max_tokens_to_sample", "max_gen_len")
_NESTED_BOUNDS = (
    ("options", "num_predict"),
    ("parameters", "max_tokens"),
    ("parameters", "max_new_tokens"),
    ("parameters", "maxOutputTokens"),
    ("sampling_params", "max_new_tokens"),
    ("inferenceConfig", "maxTokens"),
    ("inferenceConfig", "max_new_tokens"),
    ("textGenerationConfig", "maxTokenCount"),
    ("generationConfig", "maxOutputTokens"),
    ("generation_config", "max_output_tokens"),
)
_TEXT, _SCHEMA, _BOUND = "text", "schema", "bound"
_READ = {
    **dict.fromkeys(_TEXT_KEYS, _TEXT),
    **dict.fromkeys(_SCHEMA_KEYS, _SCHEMA),
    **dict.fromkeys(_BOUND_KEYS, _BOUND),
    **{outer: _BOUND for outer, _ in _NESTED_BOUNDS},
}
"""Use of each request field that is read; other fields are ignored."""

_READ_KEYS = frozenset(_READ)
_MESSAGES = "messages"

_OPAQUE = frozenset(
    {
        "image_url",
        "input_image",
        "image",
        "input_audio",
        "audio",
        "input_file",
        "file",
        "video_url",
        "input_video",
        "base64",
        "url",
        "computer_screenshot",
        "redacted_thinking",
    }
)
"""Content types whose length in the body says nothing about their tokens."""

_DATA_URL = 64
"""Characters up to which a string is read as text without a check for a data URL. Chosen: the check costs time for each
string, and no file is that short."""

_MODEL = re.compile(rb'"model"[ \t\r\n]{0,64}:[ \t\r\n]{0,64}"([ -!#-\[\]-~]{1,256})"')
_STREAM = re.compile(rb'"stream"[ \t\r\n]{0,64}:[ \t\r\n]{0,64}true')
_PART_MODEL = re.compile(rb'name="model"\r?\n(?:[^\r\n]{0,128}\r?\n){0,3}\r?\n([!-~]{1,256})\r?\n')
_PART_STREAM = re.compile(rb'name="stream"\r?\n(?:[^\r\n]{0,128}\r?\n){0,3}\r?\n(?:true|True|1)\r?\n')

_EDGE = 4096
"""Bytes read at each end of a body that is not parsed: the short fields of a form are there."""


def read_body(provider: Provider, place: tuple[Endpoint, str] | None, body: bytes | None) -> RequestFacts:
    """Return the model, input length, output bound and streaming flag of a request. Never raise, for any body.

    A model in the path (Azure's deployment) takes precedence over the body's. `input_chars` is the length of the text
    that counts as input. A picture, sound or file counts `provider.image_chars`. `max_output_tokens` is multiplied by
    `n`. `place` is the result of `Provider.endpoint` for the path.
    """
    model, streams = (place[1], place[0].streams) if place is not None else ("", False)
    if not body:
        return RequestFacts(model, 0, None, streams)
    if body[:2] == b"--":
        return _from_parts(model, body)
    try:
        request = from_json(body) if len(body) <= _MAX_BODY else None
    except ValueError:
        request = _leniently(body)
    if type(request) is not dict:
        return _from_text(model, streams, body)
    if not model:
        named = request.get("model")
        model = named if isinstance(named, str) and len(named) <= MAX_MODEL and named.isascii() else _model(named)
    keys, chars, bound = _READ_KEYS.intersection(request), 0, None
    if _MESSAGES in keys and (counted := _plain_chars(request[_MESSAGES])) is not None:
        keys, chars = keys.difference((_MESSAGES,)), counted
    if keys:
        texts = [request[key] for key in keys if _READ[key] is _TEXT]
        schemas = [request[key] for key in keys if _READ[key] is _SCHEMA]
        if len(texts) + len(schemas) < len(keys):
            bound = _bound(request)
        chars += _chars(texts, provider.image_chars, 0)
        if schemas:
            chars += _chars(schemas, provider.image_chars, 1)
    return new(RequestFacts, (model, chars, bound, request.get("stream", streams) is True))


def scope(provider: Provider, inquiry: RequestFacts, host: str, path: str, level: str = "") -> str:
    """Return the part of the account that the quota applies to: the model or deployment, `""` for the whole account.

    Path segments that the endpoint marks as scope (a project, a location) precede the model. Models with a common quota
    have their common ending as scope. Source: provider-facts.md section 19. `host` is for providers whose scope is a
    region or a subdomain. `level` (`model` or `account`) replaces the table's scope.
    """
    model = ""
    if (level or provider.scope) == "model":
        model = next((ending for ending in provider.pooled if inquiry.model.endswith(ending)), inquiry.model)
    return "/".join([*provider.segments(path), model] if model else provider.segments(path))


def family_of(provider: Provider, path: str) -> str:
    """Return the endpoint family if it has separate limits, else `""`."""
    place = provider.endpoint(path)
    return place[0].family if place is not None else ""


def credential_of(provider: Provider, get: Callable[[str], str | None]) -> str:
    """Return the secret that identifies the payer, as one string for immediate hashing. It must not be logged.

    `get` returns a request header by lower-case name. The result is empty if the provider's quota does not depend on
    credentials.
    """
    values = [(name, get(name)) for name in provider.credential]
    return "\n".join(f"{name}={payer(provider, value)}" for name, value in values if value)


def payer(provider: Provider, value: str) -> str:
    """Return the part of a credential header that identifies the payer: all of it, or the key name of a signed one."""
    if provider.credential_part is not None:
        before, after = provider.credential_part
        _, signed, rest = value.partition(before)
        if signed:
            return rest.partition(after)[0]
    return value


def estimate(provider: Provider, inquiry: RequestFacts, learned: CostEstimator) -> Cost:
    """Return the charge that is expected when the call is admitted, by the provider's rule and what its key learned."""
    _, chars, bound, _ = inquiry
    given = chars / learned.chars_per_token
    fixed = learned.fixed_tokens
    if fixed:
        given = max(min(1.0, given), given + fixed)
    most = mean = learned.output_for(bound)
    if bound is not None:
        most = float(bound)
        mean = min(mean, most)
    charging = provider.charging
    weight = 1.0
    if charging.burndown:
        weight = charging.weight(inquiry.model)
        mean *= weight
        most = max(most, mean)
    tokens, input_tokens, output_tokens, produced = charging.choose((0.0, given, given + most, given + mean, mean))
    held = most if charging.gives_back else 0.0
    return new(Cost, (1.0, tokens, input_tokens, output_tokens, produced, weight, held, given, most, mean / weight))


def charged(provider: Provider, usage: Usage) -> Usage:
    """Return the usage that an answered call is charged; the provider may not count input read from a cache.

    Output tokens are not weighted here: the cost has their weight (`Cost.weight`). Cached tokens stay as they are.
    """
    if not provider.charging.cache_reads_free or not usage.cached_tokens:
        return usage
    return usage._replace(input_tokens=max(0, usage.input_tokens - usage.cached_tokens))


def _leniently(body: bytes) -> object:
    """Parse with Python's parser, which takes five times as long but accepts lone surrogates and deep nesting."""
    try:
        return json.loads(body.decode())
    except (ValueError, RecursionError):
        return None


def _model(named: object) -> str:
    if not isinstance(named, str):
        return ""
    return named[:MAX_MODEL] if named.isascii() else named[:MAX_MODEL].encode("utf-8", "replace").decode("utf-8")


_role_and_content = itemgetter("role", "content")


def _plain_chars(messages: object) -> int | None:
    """Return the characters of messages that have a role and a text only; None for any other list, or no list.

    Most requests have such messages. No step of Python's is taken for each of them.
    """
    if type(messages) is not list:
        return None
    try:
        texts = [*chain.from_iterable(map(_role_and_content, messages))]
    except (KeyError, TypeError):
        return None
    plain = {*map(type, texts)} == {str} and {*map(len, messages)} == {2}
    return sum(map(len, texts)) if plain and True not in map(str.startswith, texts, repeat("data:")) else None


def _chars(left: list[object], opaque_chars: int, names: int) -> int:
    """Count the characters of all text below `left`; with `names` 1 the keys too (models read those of schemas)."""
    total = 0
    for node in left:
        if type(node) is dict:
            if "type" in node or "images" in node:
                what = node.get("type")
                if isinstance(what, str) and what in _OPAQUE:
                    total += opaque_chars
                    continue
                pictures = node.get("images")
                if isinstance(pictures, list):
                    total += opaque_chars * len(pictures)
                    node = {key: value for key, value in node.items() if key != "images"}
            elif "bytes" in node or ("data" in node and ("mimeType" in node or "mime_type" in node)):
                total += opaque_chars
                continue
            left.extend(node.values())
            if names:
                total += sum(map(len, node))
        elif type(node) is str:
            size = len(node)
            opaque = size > _DATA_URL and node[:5] == "data:" and ";base64," in node[:128]
            total += opaque_chars if opaque else size
        elif type(node) is list:
            if node and type(node[0]) is int:
                total += _TOKEN_CHARS * len(node)
            else:
                left.extend(node)
    return total


def _bound(request: dict[str, object]) -> int | None:
    """Return the request's own bound on output tokens, over all choices."""
    bound = None
    for key in _BOUND_KEYS:
        if key in request:
            bound = _count(request[key], _MAX_TOKENS)
            if bound is not None:
                break
    if bound is None:
        for outer, inner in _NESTED_BOUNDS:
            nested = request.get(outer)
            if isinstance(nested, dict):
                bound = _count(nested.get(inner), _MAX_TOKENS)
                if bound is not None:
                    break
    if bound is None or not ("n" in request or "best_of" in request):
        return bound
    choices = max(_count(request.get("n"), _MAX_CHOICES) or 1, _count(request.get("best_of"), _MAX_CHOICES) or 1)
    return bound * choices


def _count(value: object, most: int) -> int | None:
    return value if type(value) is int and 0 <= value <= most else None


def _from_parts(model: str, body: bytes) -> RequestFacts:
    """Read a multipart form. Its fields are before or after the file, so only the two ends are read."""
    edges = (body[:_EDGE], body[-_EDGE:])
    if not model:
        match = next((m for edge in edges if (m := _PART_MODEL.search(edge)) is not None), None)
        model = match[1].decode("ascii") if match is not None else ""
    return RequestFacts(model, 0, None, any(_PART_STREAM.search(edge) for edge in edges))


def _from_text(model: str, streams: bool, body: bytes) -> RequestFacts:
    """Read a body that is no JSON object, or too large or deep to parse, from its ends and its length."""
    edges = (body[:_EDGE], body[-_EDGE:])
    if not model:
        match = next((m for edge in edges if (m := _MODEL.search(edge)) is not None), None)
        model = match[1].decode("ascii") if match is not None else ""
    looks_like_json = body[:64].lstrip()[:1] == b"{"
    stream = streams or any(_STREAM.search(edge) for edge in edges)
    return RequestFacts(model, min(len(body), _MAX_BODY) if looks_like_json else 0, None, stream)
