"""The part of a refusal that other calls of the same key may receive: its error object, without request details.

Pure, and never raises. A refusal without an error object is not replayed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from tidegate.core.safe_text import lazy_pattern
from tidegate.core.values import REFUSED, Cause, Kind, Outcome, ReplayableRefusal
from tidegate.providers.refusal_body import parsed, refusal_in

MAX_BODY_BYTES = 1 << 14
"""Upper bound, in bytes, of a refusal that is kept, per key. Chosen: the longest capture has 2,300."""

UNAUTHENTICATED = 401

AUTHENTICATION = frozenset(
    {
        "authenticationerror",
        "incorrectapikey",
        "invalidapikey",
        "invalidauthentication",
        "invalidauthenticationerror",
        "invalidtoken",
        "unauthenticated",
        "unauthorized",
    }
)
"""Codes, without punctuation, by which providers report a wrong credential.

OpenAI: `invalid_api_key`; Anthropic: `authentication_error`; Google: `UNAUTHENTICATED`; DashScope: `InvalidApiKey`;
Moonshot: `invalid_authentication_error` (provider-facts.md sections 1, 4, 5 and 9).
"""

OF_ONE_REQUEST = lazy_pattern(r"(?s)tokens?\b.*\d|\d.*tokens?\b")
"""A lack of money that is stated as a number of tokens is that of one request: a smaller one may pass.

OpenRouter's 402: "can only afford 1200 ... fewer max_tokens", "Prompt tokens limit exceeded: 230799 > 91442".
"""

EXPIRED = "expired"
"""Word in a 401 about a token whose time is over: the next call of the same account will carry another one."""

ERROR_FIELDS = frozenset(
    {"__type", "code", "detail", "error", "error_code", "error_type", "message", "object", "param", "status", "title",
     "type"}
)  # fmt: skip
"""Fields of the outermost object that describe the error. Any other field may belong to one request."""

REQUEST_IDS = frozenset({"requestid", "xrequestid", "traceid", "eventid", "rayid", "userid", "sessionid", "metadata"})
"""Fields, without punctuation, that belong to one request at any depth."""

ID_HEADERS = ("request-id", "requestid", "trace", "cf-ray", "correlation")
"""Parts of names of headers whose values identify one request."""

_OF_THE_KEY = REFUSED | {Kind.PERMANENT}
"""Kinds of outcomes that may hold for other calls of the key."""

TYPED_REQUEST = "google.rpc.RequestInfo"


def answer_of(outcome: Outcome, headers: Iterable[tuple[bytes, bytes]], body: bytes | None) -> ReplayableRefusal | None:
    """Return what other calls of the key may receive of a refusal; None if it concerns one call or is unclear."""
    status = outcome.status
    if status is None or not body or len(body) > MAX_BODY_BYTES or outcome.kind not in _OF_THE_KEY:
        return None
    document = parsed(body)
    error = document[0] if isinstance(document, list) and document else document
    if not isinstance(error, dict):
        return None
    refusal = refusal_in(error)
    if not refusal.text or (outcome.kind is Kind.QUOTA_EXHAUSTED and OF_ONE_REQUEST.search(refusal.text)):
        return None
    if outcome.kind is Kind.PERMANENT:
        named = {_plain(code) for code in refusal.codes}
        if EXPIRED in refusal.text or any(EXPIRED in code for code in named):
            return None
        if outcome.cause is not Cause.AUTH or status != UNAUTHENTICATED or named.isdisjoint(AUTHENTICATION):
            return None
    ids, code = _identifiers(headers)
    kept = {name: _without(value, ids) for name, value in error.items() if name in ERROR_FIELDS}
    whole = [kept] if isinstance(document, list) else kept
    return ReplayableRefusal(status, json.dumps(whole).encode(), code)


def _identifiers(headers: Iterable[tuple[bytes, bytes]]) -> tuple[list[str], str]:
    """Return the header values that identify the request, and the error code in Amazon's header."""
    ids, code = [], ""
    for raw_name, raw_value in headers:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1").strip()
        if name == "x-amzn-errortype":
            code = value.partition(":")[0]
        elif len(value) >= 6 and any(part in name for part in ID_HEADERS):
            ids.append(value)
    return ids, code


def _without(value: object, ids: list[str]) -> object:
    """Return the value without fields of one request, and with its identifiers removed from all texts."""
    if isinstance(value, str):
        for each in ids:
            value = value.replace(each, "…")
        return value
    if isinstance(value, list):
        typed = [(each, str(each.get("@type", "")) if isinstance(each, dict) else "") for each in value]
        return [_without(each, ids) for each, name in typed if not name.endswith(TYPED_REQUEST)]
    if isinstance(value, dict):
        return {name: _without(each, ids) for name, each in value.items() if _plain(str(name)) not in REQUEST_IDS}
    return value


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
