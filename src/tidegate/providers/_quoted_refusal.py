"""The refusal of an upstream that a gateway quotes in its own message, as JSON or by its status. Pure; never raises.

Theory of operation. Gateways answer 400, 500 or 502 for whatever their upstream refused, and put its answer into their
message: `upstream error 429: {"error": {...}}`, `[429]: Rate limit exceeded`, `litellm.RateLimitError: ...`. The quoted
answer then says more than the gateway's status. The same texts stand in ordinary errors that echo a request: a tool's
result, a conversation about limits. So a quotation counts only if it is an object of an error with a status, or a
status that the words before it announce. It does not count in a message about an invalid request or a download.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

REFUSING = frozenset({402, 429, 503, 529})
"""Statuses of an upstream that mean the same at its gateway. Others may be faults of the gateway or of the request."""

RELAYING = frozenset({400, 424, 500, 502})
"""Statuses with which gateways answer for what their upstream refused."""

_MAX_OBJECTS = 4
"""Quoted objects that are tried. Chosen: gateways quote one."""

_MAX_PREFIX = 200
"""Characters in which a status is announced. Chosen: the longest prefix seen has 90."""

_ERROR_FIELDS = frozenset({"error", "code", "status", "type", "message", "msg", "errcode", "error_code", "status_code"})

_FAULTS = (
    r"(?:in)?valid|validat\w{2,6}|max_tokens|schema|malformed|pars(?:e|ing)"
    r"|unexpected|must be|should be|cannot be|expected|input_value"
    r"|unsupported|download\w{0,3}|fetch\w{0,3}|flagged|moderation|safety|violat(?:es?|ing)|policy violation|mcp"
    r"|(?:function|tool)(?: \w{1,20})? (?:call|result|failed)|is not a"
    r"|(?:search|brows(?:er|ing)|crawl(?:er|ing)?|retrieval|plugin|lookup)(?: \w{1,20}){0,2} (?:failed|returned)"
    r"|(?:user|caller|document|conversation) (?:said|asked|wrote|mentions)"
)
_FAULT = re.compile(rf"\b(?:{_FAULTS})\b")
"""Words of a fault in the request: a refusal of the caller's account has none of them."""

_OF_A_REQUEST = re.compile(
    rf"\b(?:{_FAULTS}|must (?:have|not)|required|not supported|arguments?|parameters?|tools?|functions?|content|prompt"
    r"|messages?\.|role|max_tokens|json|urls?|image|permitted|retriev\w{1,4}"
    r"|(?:could not|cannot|failed to|unable to) load)\b"
)
"""Words of an error about the request, or about a file that it names."""

_STATED = re.compile(r"""\}['"` ]{0,3}(?:is|was|does|did|must|should|has|cannot)\b""")
"""An object's end and a verb. The object is a part of the request ("{...} is not of type 'string'")."""

_STATUS = r"(402|429|503|529)(?![0-9]|[.,][0-9])"
_SUBJECT = r"(?:too many|rate|payment|service|overload|resource|quota|insuff|\S{0,20}error|\{)"
_ANNOUNCED = re.compile(
    r"(?:\b(?:http(?:[ /][0-9.]{1,3})?|status(?:[ _]?code)?|(?:error|response)[ _]?code|code|returned|upstream|error"
    rf"|responded(?: with)?)\W{{1,4}}{_STATUS}|(?:\A|[\[(]){_STATUS}\W{{1,3}}{_SUBJECT}|\[{_STATUS}\])"
)
_THROWN = re.compile(
    r"\b(?:ratelimiterror|ratelimitexceeded(?:error|exception)|throttlingexception|toomanyrequests(?:error|exception)?"
    r"|resource_?exhausted(?:error|exception))\b"
)
"""Names of exceptions for a rate (openai, litellm, botocore, google-api-core)."""

_THROTTLED = 429


def is_of_the_request(words: str) -> bool:
    """Return whether a message in lower case describes an invalid request, whose text it may echo."""
    return _OF_A_REQUEST.search(words) is not None


def describes_a_fault(words: str) -> bool:
    return _FAULT.search(words) is not None


def announced(words: str) -> int | None:
    """Return the status of an upstream that a gateway's message in lower case announces at its beginning, else None."""
    start = words[:_MAX_PREFIX]
    found = _ANNOUNCED.search(start)
    if found is None and _THROWN.search(start) is None:
        return None
    before = start if found is None else start[: found.start()]
    if is_of_the_request(before) or _STATED.search(words) is not None:
        return None
    return _THROTTLED if found is None else int(next(group for group in found.groups() if group))


def quoted_objects(message: str) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the JSON objects of errors that a message quotes, each with the words before it in lower case."""
    decoder = json.JSONDecoder()
    place = message.find("{")
    for _ in range(_MAX_OBJECTS):
        if place < 0:
            return
        try:
            found, end = decoder.raw_decode(message, place)
        except (ValueError, RecursionError):
            found, end = None, place + 1
        stated = found is not None and _STATED.match(message, end - 1) is not None
        if isinstance(found, dict) and not stated and not _ERROR_FIELDS.isdisjoint(found):
            yield message[:place].lower(), found
        place = message.find("{", end)
