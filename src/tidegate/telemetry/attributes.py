"""Attributes of signals, each with its unit and source, and the attributes that all signals of one key share.

Names are those of the OpenTelemetry conventions where these have one, else `tidegate.*`. No attribute holds a
credential, prompt or answer. The digest of a credential is absent too: it would create new series in every process. An
ordinal distinguishes keys whose other attributes are equal.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping
from itertools import count
from typing import NamedTuple
from urllib.parse import urlsplit

from tidegate import providers
from tidegate.core.values import Key

Value = str | int | float | bool
Attributes = Mapping[str, Value]
Pairs = tuple[tuple[str, Value], ...]

GENAI = "GenAI conventions"
"""semantic-conventions-genai, docs/gen-ai/client-inference.md at ac48b1f (moved from semantic-conventions in 2026)."""

GENERAL = "general conventions"
"""semantic-conventions v1.44.0: docs/registry/attributes/server.md and error.md; all stable."""
HTTP = "HTTP conventions"
"""semantic-conventions v1.44.0: docs/registry/attributes/http.md; all stable."""


class Attribute(NamedTuple):
    """One attribute: its name, the type and unit of its values, their meaning, and the source of the name."""

    name: str
    type: str
    meaning: str
    unit: str = ""
    source: str = "tidegate"


PROVIDER = Attribute("gen_ai.provider.name", "string", "whose quota it is, by the name of the conventions", "", GENAI)
OPERATION = Attribute(
    "gen_ai.operation.name",
    "string",
    "`chat`, `embeddings`, …, where all requests of the key so far are of one operation",
    "",
    GENAI,
)
OWN_NAME = Attribute(
    "tidegate.key.provider", "string", "the provider by tidegate's own name, as in `snapshot()` and `tidegate status`"
)
MODEL = Attribute("gen_ai.request.model", "string", "the model or deployment, where the quota is kept by it", "", GENAI)
TOKEN_TYPE = Attribute("gen_ai.token.type", "string", "`input` or `output`", "", GENAI)
ADDRESS = Attribute("server.address", "string", "host of the key's base URL", "", GENERAL)
PORT = Attribute("server.port", "int", "port of the key's base URL", "", GENERAL)
ERROR = Attribute(
    "error.type", "string", "status of a failure, else its cause or outcome; `queue_deadline`", "", GENERAL
)
STATUS = Attribute("http.response.status_code", "int", "status of the answer, where there is one", "", HTTP)
NAME = Attribute("tidegate.key.name", "string", "the plain name that `execute` was given, where it is no URL")
SCOPE = Attribute("tidegate.key.scope", "string", "what else the quota is kept by, where it is not the model alone")
FAMILY = Attribute("tidegate.key.family", "string", "the endpoint family whose limits are separate")
ORDINAL = Attribute(
    "tidegate.key.ordinal", "int", "which of the keys that agree in all the others; 2 for the second one"
)
OUTCOME = Attribute("tidegate.outcome", "string", "result of the attempt (`Kind`)")
CAUSE = Attribute("tidegate.cause", "string", "why, where one outcome has several causes (`Cause`)")
GATE = Attribute(
    "tidegate.gate", "string", "what was closed: `concurrency`, `pace`, `pause`, `breaker`, `quota …`, `backoff`"
)
ORIGIN = Attribute("tidegate.origin", "string", "what showed it: `retry-after`, `refusals`")
CHANGE = Attribute("tidegate.change", "string", "what changed about the key")
QUOTA = Attribute("tidegate.quota.name", "string", "the quota, as its headers name it")
QUOTA_UNIT = Attribute("tidegate.quota.unit", "string", "what the quota counts: `requests`, `tokens`, …")
QUOTA_SIZE = Attribute("tidegate.quota.size", "double", "how many of its units the quota allows in a window", "1")
WINDOW = Attribute("tidegate.quota.window", "double", "how long a window is", "s")
SHARE = Attribute("tidegate.quota.share", "double", "how much of the quota is left, of 1", "1")
LIMIT = Attribute("tidegate.limit", "int", "attempts that may be in flight from now on", "{attempt}")
WAITED = Attribute("tidegate.waited", "double", "how long the call has waited", "s")
ELAPSED = Attribute("tidegate.elapsed", "double", "time since the call joined the queue", "s")
CLOSED_FOR = Attribute("tidegate.closed_for", "double", "how long nothing is sent from now on", "s")
RETRY_AFTER = Attribute("tidegate.retry_after", "double", "how long the provider asks to wait", "s")
ATTEMPT = Attribute("tidegate.attempt.number", "int", "the attempt that ended, from 1 on", "{attempt}")
ATTEMPTS = Attribute("tidegate.attempt.count", "int", "attempts that the call made", "{attempt}")
GIVEN_UP = Attribute("tidegate.given_up", "boolean", "whether the wait, not the provider, ended the call")

KEY = (PROVIDER, OPERATION, MODEL, ADDRESS, PORT, OWN_NAME, NAME, SCOPE, FAMILY, ORDINAL)
"""Attributes of every signal, as far as its key has them."""

PROVIDER_NAMES = {
    "anthropic-compatible": "anthropic",
    "azure": "azure.ai.openai",
    "azure-compatible": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "compatible": "openai",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "moonshot": "moonshot_ai",
    "vertex": "gcp.vertex_ai",
    "watsonx": "ibm.watsonx.ai",
    "xai": "x_ai",
}
"""Names that the GenAI conventions prescribe, by our provider names. Others are equal, or lack a counterpart there.

A compatible server has the name of its API format, as with an SDK that was given another base URL; `server.address`
and `tidegate.key.provider` distinguish it.
"""

PORTS = {"https": 443, "http": 80}


class KeyAttributes:
    """Attributes of every signal of one key, alone and together with the facts of an event.

    Possible facts are few: outcomes, causes, statuses, quotas, and gates (limiters of a key that may hold a call back).
    Equal sets are one object, built once.
    """

    __slots__ = ("__weakref__", "_sets", "operation", "own")

    def __init__(self, own: Attributes, operation: str = "") -> None:
        self.own = own
        self.operation = operation
        self._sets: dict[Pairs, Attributes] = {(): own}

    def along(self, facts: Pairs) -> Attributes:
        """Return a new set of the key's attributes and `facts`, for facts that never repeat."""
        return {**self.own, **dict(facts)}

    def also(self, facts: Pairs) -> Attributes:
        found = self._sets.get(facts)
        if found is None:
            found = self._sets[facts] = self.along(facts)
        return found


class Keys:
    """Attributes of one registry's keys, for at most as many keys as the registry keeps.

    `operation_of` returns the operation of a key's requests, empty where it is unknown or there are several.
    """

    __slots__ = ("_known", "_most", "_operation_of")

    def __init__(self, most: int, operation_of: Callable[[Key], str] = lambda key: "") -> None:
        self._known: dict[Key, KeyAttributes] = {}
        self._most = most
        self._operation_of = operation_of

    def of(self, key: Key) -> KeyAttributes:
        """Return the attributes of `key`, the same object while it is remembered and has one operation."""
        found, operation = self._known.get(key), self._operation_of(key)
        return found if found is not None and found.operation == operation else self._met(key, operation)

    def _met(self, key: Key, operation: str) -> KeyAttributes:
        with _numbering:
            found = self._known.pop(key, None)
            if found is None or found.operation != operation:
                found = None  # its number is free again
                if len(self._known) >= self._most:
                    self._known.clear()
                found = _numbered(described(key, operation), operation)
            self._known[key] = found
        return found


_numbering = threading.RLock()
_numbers: weakref.WeakValueDictionary[tuple[Pairs, int], KeyAttributes] = weakref.WeakValueDictionary()


def _numbered(described: dict[str, Value], operation: str) -> KeyAttributes:
    """Return the attributes with the first free ordinal, which is free again when the result is deleted.

    The first key of its description needs no ordinal.
    """
    facts = tuple(described.items())
    ordinal = next(number for number in count(1) if (facts, number) not in _numbers)
    own = described if ordinal == 1 else {**described, ORDINAL.name: ordinal}
    made = _numbers[facts, ordinal] = KeyAttributes(own, operation)
    return made


def described(key: Key, operation: str = "") -> dict[str, Value]:
    """Return the attributes of a key that may be published: no credential; of its base URL only host and port."""
    found: dict[str, Value] = {PROVIDER.name: PROVIDER_NAMES.get(key.provider, key.provider)}
    if operation:
        found[OPERATION.name] = operation
    found[OWN_NAME.name] = key.provider
    if "://" in key.base_url:
        found.update(_place(key.base_url))
    elif key.base_url:
        found[NAME.name] = key.base_url
    if key.scope:
        found[(MODEL if _is_model(key) else SCOPE).name] = key.scope
    if key.family:
        found[FAMILY.name] = key.family
    return found


def _place(url: str) -> dict[str, Value]:
    try:
        parts = urlsplit(url)
        port = parts.port or PORTS.get(parts.scheme)
    except ValueError:
        return {}
    return {
        **({ADDRESS.name: parts.hostname} if parts.hostname else {}),
        **({PORT.name: port} if parts.hostname and port else {}),
    }


def _is_model(key: Key) -> bool:
    table = providers.named(key.provider)
    if table is None or table.scope != "model" or key.scope in table.pooled:
        return False
    return not any("{scope}" in endpoint.path for endpoint in table.endpoints)


def _after_fork_in_child() -> None:
    global _numbering
    _numbering = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
