"""The key of a request: whose quota it counts against, and the account behind its credentials.

A key consists of the provider, the address, the credential that pays, the model or other scope, and the endpoint
family.

Theory of operation of accounts. An `auth=` object adds its credential after the request's key is chosen. To run it
twice could spend a nonce or refresh a token, so it never runs here. Two objects share a key only if their types and
complete states are equal when they are first seen. Plain values compare by value, all others (such as the source of a
token) by identity. Such objects send the same credential, so a program may make a new object for each call. An object
keeps its account while it lives, also while it refreshes its token.

A token in a header may change every hour. A JSON Web Token is identified by the claims that stay the same over a
refresh. Its signature is not checked, because the provider does that.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import types
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from typing import Any, NamedTuple
from urllib.parse import SplitResult, parse_qs, urlsplit

from tidegate import providers
from tidegate.admission import redaction
from tidegate.admission.key_table import KeyTable
from tidegate.core.safe_text import is_secret_segment, masked
from tidegate.core.values import INFINITY, Key, RequestFacts


@lru_cache(maxsize=1024)
def split_url(url: str) -> SplitResult:
    """Return the parts of a URL; clients send many requests to one."""
    return urlsplit(url)


class RequestRoute:
    """Destination of requests, without the query, and the provider's table for it; not unique per destination.

    `is_plain` says that the payer is named by the header of a credential alone, one of `names`, in whole.
    """

    __slots__ = ("facts", "host", "is_plain", "names", "path", "place", "port", "provider", "scheme")

    def __init__(self, provider: providers.Provider, scheme: str, host: str, port: int | None, path: str) -> None:
        self.provider = provider
        self.scheme = scheme
        self.host = host
        self.port = port
        self.path = path
        self.place = provider.endpoint(path)
        self.names = _credential_names(provider)
        self.is_plain = provider.credential_part is None and not provider.query_credential
        self.facts = (provider.name, scheme, host, port, path)


class OutgoingRequest(NamedTuple):
    """A request as its HTTP stack sees it, before it is queued.

    `headers` are the raw pairs, in any case; they are read once. `body` is None if it cannot be read twice. `query` is
    raw. `account` distinguishes credentials that the stack adds only when it sends (see `account_of`).
    `adds_credential` says that an object adds them, so that they may change from one sending to the next.
    """

    route: RequestRoute
    headers: Iterable[tuple[bytes, bytes]]
    body: bytes | None
    replayable: bool
    model: str = ""
    query: bytes = b""
    account: str = ""
    adds_credential: bool = False


Secrets = tuple[tuple[bytes, bytes], ...]
"""The headers of a request that hold a credential, also where it is in the query."""


def key_of(
    registry: KeyTable, sending: OutgoingRequest, request_facts: RequestFacts, headers: dict[bytes, bytes]
) -> tuple[Key, Secrets]:
    """Return the key of a request, interned for speed, and its credentials as they are sent."""
    route, provider = sending.route, sending.route.provider
    found = route.names.intersection(headers)
    if not found:
        headers = {name.lower(): value for name, value in headers.items()}
        found = route.names.intersection(headers)
    secrets = tuple([(name, headers[name]) for name in sorted(found)])
    if sending.query and provider.query_credential:
        secrets += _query_credentials(provider, sending.query)
    if provider.credential_part is not None:
        secrets = tuple([(name, _payer(provider, value)) for name, value in secrets])
    sent = secrets
    for _, value in secrets:
        if value[7:10] == TOKEN_START:
            secrets = tuple([(name, lasting_claims(each)) for name, each in secrets])
            break
    account = sending.account if "authorization" in provider.credential else ""
    facts = (route.facts, hash((secrets, account)), request_facts.model)
    key = registry.interned.get(facts)
    if key is None:
        given = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in secrets}
        credential = providers.credential_of(provider, given.get)
        address = base_url(route)
        # Only for a new key, so that a repeated request costs nothing.
        redaction.remember(_credentials(headers, sending.query, address))
        key = Key(
            provider.name,
            masked(address, registry.digest, redaction.is_known),
            registry.digest(f"{credential}\naccount={account}" if account else credential),
            providers.scope(provider, request_facts, route.host, route.path, registry.settings.level_of(provider.name)),
            providers.family_of(provider, route.path),
        )
        registry.intern(facts, key, operation_of(route.path))
    return key, sent


def operation_of(path: str) -> str:
    """Return the operation of requests to `path`, by its name in the GenAI conventions; empty for others."""
    return next((name for name, pattern in _OPERATIONS if pattern.search(path)), "")


_OPERATIONS = (
    ("embeddings", re.compile(r"embed", re.IGNORECASE)),
    ("generate_content", re.compile(r":(?:stream)?generateContent$", re.IGNORECASE)),
    ("chat", re.compile(r"/(?:chat|messages|responses|converse|converse-stream|chat/completions)$", re.IGNORECASE)),
    ("text_completion", re.compile(r"/(?:completions|complete|api/generate)$", re.IGNORECASE)),
)
"""Operations with the paths of their endpoints. Source: the well-known values of `gen_ai.operation.name` in
semantic-conventions-genai, docs/registry/attributes/gen-ai.md; the first match counts."""


def _credentials(headers: dict[bytes, bytes], query: bytes, address: str) -> Iterator[str]:
    """Yield all credentials in a request, including those that the provider's table does not name."""
    yield from redaction.in_headers(
        (name.decode("latin-1"), value.decode("latin-1")) for name, value in headers.items()
    )
    yield from redaction.in_query(query.decode("latin-1"))
    yield from filter(is_secret_segment, address.split("/")[3:])


@lru_cache(maxsize=256)
def _credential_names(provider: providers.Provider) -> frozenset[bytes]:
    # The spellings of the SDKs and HTTP libraries. `key_of` compares in lower case only if none of these is present.
    spelt = {name for plain in provider.credential for name in (plain, plain.title())}
    spelt |= {name.replace("Openai", "OpenAI").replace("Api-Key", "API-Key") for name in spelt}
    return frozenset(name.encode("ascii") for name in spelt)


def _query_credentials(provider: providers.Provider, query: bytes) -> tuple[tuple[bytes, bytes], ...]:
    """Return the credentials in the query as the headers that they stand for."""
    given = parse_qs(query[:4096].decode("latin-1"))
    pairs = [(header, given[name][0]) for name, header in provider.query_credential if name in given]
    return tuple((header.encode("ascii"), value.encode("latin-1", "replace")) for header, value in pairs)


def _payer(provider: providers.Provider, value: bytes) -> bytes:
    return providers.payer(provider, value.decode("latin-1")).encode("latin-1")


def base_url(route: RequestRoute) -> str:
    """Return scheme, host and port; if the provider's table has no hosts, also the path before the endpoint.

    That path may contain a credential, which `masked` removes.
    """
    port = f":{route.port}" if route.port is not None else ""
    host = f"[{route.host}]" if ":" in route.host else route.host
    origin = f"{route.scheme}://{host}{port}"
    if route.provider.hosts:
        return origin
    return origin + _ENDPOINT.sub("", route.path.removesuffix("/"), count=1)


_ENDPOINT = re.compile(
    r"/(?:chat/completions|v1(?:alpha|beta1?)?/(?:interactions|(?:models|tunedModels|publishers|projects)/.+)|[^/]*)$"
)
"""The end of a path that is not part of a base URL. Google's SDK adds the version itself."""


VOLATILE = frozenset(
    [
        "exp",
        "iat",
        "nbf",
        "jti",
        "uti",
        "aio",
        "rh",
        "auth_time",
        "acrs",
        "acr",
        "sid",
        "nonce",
        "at_hash",
        "c_hash",
        "s_hash",
        "xms_ftd",
        "xms_idrel",
        "xms_st",
        "ver",
    ]
)
"""Claims that differ between two tokens of one account (RFC 7519 4.1; Microsoft's "access token claims reference").

A missing claim gives a refreshed token a new key. A wrong extra claim could let two accounts share a key.
"""

SUBJECT = frozenset(["sub", "oid", "appid", "azp", "client_id", "email"])
"""Claims of which a token must have at least one, to be identified by its claims."""

PLAIN = (str, bytes, int, float, bool)

_names: dict[int, tuple[weakref.ref[Any], str]] = {}
"""Objects by their addresses, with the names that they got at the first look.

Without a lock: a signal handler may ask for an account inside the look for another. Each change is one step.
"""


def account_of(auth: Any) -> str:
    """Return an identifier of the account of an `auth=` object; equal for equal credentials."""
    if isinstance(auth, PLAIN):
        return _digest(auth)
    if isinstance(auth, (tuple, list)):
        return "+".join(account_of(each) for each in auth)
    if isinstance(auth, types.MethodType):
        return f"{account_of(auth.__self__)}.{auth.__name__}"
    # The rare object without weak references is known by its address, which another may get after its end.
    return _name(auth, _state) or f"{os.getpid()}-{id(auth)}"


def accounts_of(objects: Iterable[Any]) -> str:
    """Return an identifier of several objects together; empty if there are none."""
    return "+".join(account_of(each) for each in objects)


TOKEN_START = b"eyJ"
"""First three bytes of a JSON Web Token: `{"` in base64 (RFC 7519, RFC 4648). They follow `Bearer `."""


@lru_cache(maxsize=1024)
def lasting_claims(value: bytes) -> bytes:
    """Return the part of a credential header that stays the same while its token is refreshed; else the header."""
    lasting = {name: claim for name, claim in _claims(value).items() if name not in VOLATILE}
    return json.dumps(lasting, sort_keys=True).encode() if SUBJECT & lasting.keys() else value


EXPIRES_SOON_SECONDS = 60.0
"""Seconds before its end from which on a token counts as expired. Chosen: clocks of machines differ by less, and
identity libraries renew tokens minutes before."""


MAX_CLAIM_SECONDS = 1e15
"""Seconds since 1970 above which a claim is no time. Derived: 30 million years; larger integers have no float."""


def expiry(value: bytes) -> float:
    """Return when the token in a credential header expires, in seconds since 1970; infinity where it names no time."""
    named = _claims(value).get("exp")
    return float(named) if isinstance(named, int | float) and abs(named) < MAX_CLAIM_SECONDS else INFINITY


@lru_cache(maxsize=1024)
def _claims(value: bytes) -> dict[str, Any]:
    """Return the claims of a JSON Web Token in a credential header, empty for any other credential."""
    if value[7:10] != TOKEN_START:
        return {}
    try:
        payload = value.split(b".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + b"=" * (-len(payload) % 4)))
    except (ValueError, IndexError, RecursionError):
        return {}
    return claims if isinstance(claims, dict) else {}


def _name(value: Any, first_name: Callable[[Any], str]) -> str:
    """Return the name of an object, which `first_name` gives at the first look; empty if it cannot be followed."""
    number = id(value)
    found = _names.get(number)
    if found is not None and found[0]() is value:
        return found[1]
    try:
        reference = weakref.ref(value, partial(_drop, number))
    except TypeError:
        return ""
    if found is not None:
        _drop(number, found[0])
    return _names.setdefault(number, (reference, first_name(value) or _serial(value)))[1]


def _drop(number: int, reference: Any) -> None:
    found = _names.get(number)
    if found is not None and found[0] is reference:
        _names.pop(number, None)


def _serial(value: Any) -> str:
    # Unique over processes, because processes share what they learn of a key.
    return uuid.uuid4().hex


def _state(value: Any) -> str:
    """Return a digest of an object's type and state, empty if the state is not known in full."""
    facts = _facts(value)
    parts = [(name, repr(each) if isinstance(each, PLAIN) else _identity(each)) for name, each in sorted(facts.items())]
    if not parts or any(part == "" for _, part in parts):
        return ""
    return _digest((type(value).__module__, type(value).__qualname__, parts))


def _facts(value: Any) -> dict[str, Any]:
    """Return the attributes of an object by name, or the parts of a function. Empty if they are not known."""
    if isinstance(value, types.FunctionType):
        try:
            cells = [cell.cell_contents for cell in value.__closure__ or ()]
        except ValueError:
            return {}
        held = [*cells, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        named = {f".{name}": each for name, each in value.__dict__.items()}
        code = {"code": value.__code__, "globals": id(value.__globals__)}
        return {**code, **{str(place): each for place, each in enumerate(held)}, **named}
    if any(getattr(each, "__slots__", ()) for each in type(value).__mro__):
        return {}
    facts: dict[str, Any] = getattr(value, "__dict__", {})
    return facts


def _identity(value: Any) -> str:
    """Return a name that no other object in any process has; empty if the object cannot be followed."""
    if value is None:
        return "None"
    if isinstance(value, types.MethodType):
        owner, function = _identity(value.__self__), _identity(value.__func__)
        return f"{owner}.{function}" if owner and function else ""
    # httpx wraps an `auth=` function in an object. A function that holds functions is identified by itself.
    by_state = isinstance(value, types.FunctionType) and not any(
        isinstance(each, types.FunctionType) for each in _facts(value).values()
    )
    return _name(value, _state if by_state else _serial)


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode("utf-8", "backslashreplace")).hexdigest()
