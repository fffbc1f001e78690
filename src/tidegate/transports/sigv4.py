"""Renewal of AWS signatures (SigV4) that expire in the queue.

Theory of operation. AWS refuses a signature older than five minutes with a 403. Some callers sign before they send:

- The Bedrock clients of anthropic and openai sign in a method of theirs. A class patch on it notes in the request
  which client signed. After a long wait that client signs again.
- Others (LiteLLM and its dependents) call botocore's `SigV4Auth.add_auth` and pass the headers to an HTTP client. A
  class patch on it keeps the signer of each recent signature, with its credentials, service and region. After a long
  wait that signer signs the request again.
- A signature of an unknown signer cannot be renewed. Such a call waits at most as long as its signature is valid. It
  then gets the last answer, or the 429 for a missed deadline, and its caller can sign again.

Lines: anthropic 2.11 `lib/bedrock/_client.py`, `_mantle.py`, `lib/aws/_client.py` `_prepare_request`; openai 3.52
`providers/bedrock.py` `_BedrockSigV4Auth._validate_request`, the first step of both of its ways to sign. (Its clients
hold both signing methods bound, so patches on those would miss existing clients.) botocore 1.44.5 `auth.py`; LiteLLM
1.106.2 `llms/bedrock/base_aws_llm.py` `get_request_headers`, `llms/bedrock/chat/converse_handler.py`, which posts
`dict(prepped.headers)`.
"""

from __future__ import annotations

import re
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

from tidegate.transports.patches import Patches, when_imported

STALE_AFTER_SECONDS = 60.0
"""Seconds from the start of a call after which its request is signed again. Chosen: far below
`SIGNATURE_LIFETIME_SECONDS`."""

SIGNATURE_LIFETIME_SECONDS = 240.0
"""Seconds after which a signature that cannot be renewed is no longer sent. Derived from AWS, which refuses after 300 s
by its own clock ("Signature expired ... - 5 min.", anthropics/anthropic-sdk-go#122)."""

MAX_NOTED_SIGNATURES = 1024
"""Signatures whose signers are kept. Chosen: far above the requests that wait for their sending."""

DATE = "%Y%m%dT%H%M%SZ"
"""Format of `x-amz-date`."""

SIGNER = "tidegate.signer"
"""Key in a request's extensions that holds its signer."""

SIGNATURE = ("authorization", "x-amz-date", "x-amz-security-token", "x-amz-content-sha256")
"""Headers that signing sets (openai 3.52 `_AWS_SIGNING_HEADERS`).

All are removed before a request is signed again, or the new signature would cover them.
"""


class Methods(NamedTuple):
    """Methods of a class that signs: the one to patch, which gets the request first, and the two that sign."""

    noting: str
    signing: str
    asigning: str


_PREPARING = Methods("_prepare_request", "_prepare_request", "_prepare_request")

SIGNING: dict[str, Methods] = {
    "anthropic.lib.bedrock._client": _PREPARING,
    "anthropic.lib.bedrock._mantle": _PREPARING,
    "anthropic.lib.aws._client": _PREPARING,
    "openai.providers.bedrock": Methods("_validate_request", "prepare_request", "prepare_async_request"),
}


class Signer(NamedTuple):
    """The client that signed a request, and its signing methods."""

    owner: weakref.ref[Any]
    methods: Methods


class BotocoreSigner(NamedTuple):
    """A `botocore.auth.SigV4Auth` that signed a request, and the body that it signed."""

    auth: Any
    body: bytes

    def sign(self, request: Any) -> None:
        """Sign a request of httpx or requests again, over the same headers as before."""
        names = _SIGNED_HEADERS.search(request.headers["authorization"])
        kept = set(names[1].split(";") if names is not None else ()) - {"host", *SIGNATURE}
        headers = {name: request.headers[name] for name in kept if name in request.headers}
        signed = sys.modules["botocore.awsrequest"].AWSRequest("POST", str(request.url), headers, self.body)
        self.auth.add_auth(signed)
        for name in SIGNATURE:
            request.headers.pop(name, None)
            if name in signed.headers:
                request.headers[name] = signed.headers[name]


_SIGNED_HEADERS = re.compile(r"SignedHeaders=([^,\s]+)")

_noted: OrderedDict[str, Any] = OrderedDict()

_watching: set[int] = set()


def watch(patches: Patches) -> None:
    """Patch botocore's signer, now or when it is imported; `patches` are those of a stack that sends its requests."""
    module = sys.modules.get("botocore.auth")
    if module is not None:
        _watch(patches, module)
    elif id(patches) not in _watching:
        _watching.add(id(patches))
        when_imported("botocore.auth", partial(_watch, patches))


def _watch(patches: Patches, module: ModuleType) -> None:
    if patches.on:
        patches.put(module.SigV4Auth, "add_auth", note)


def note(wrapped: Callable[..., Any], auth: Any, args: Any, kwargs: Any) -> Any:
    """Run `SigV4Auth.add_auth`, and keep the signer under its signature."""
    result = wrapped(*args, **kwargs)
    request = args[0] if args else kwargs.get("request")
    authorization = getattr(request, "headers", {}).get("Authorization")
    if authorization is not None:
        # Each line is one step for other threads, and for a signal handler.
        _noted[authorization] = auth
        if len(_noted) > MAX_NOTED_SIGNATURES:
            _noted.popitem(last=False)
    return result


def signer_of(headers: Mapping[str, str], body: bytes | None) -> BotocoreSigner | None:
    """Return botocore's signer of a request, None if botocore did not sign it."""
    auth = _noted.get(_authorization(headers)) if body is not None else None
    return BotocoreSigner(auth, body) if auth is not None and body is not None else None


def seconds_left(headers: Mapping[str, str], now_on: datetime) -> float | None:
    """Return for how many seconds a signature can still be sent; None if there is none that expires."""
    if not _authorization(headers).startswith("AWS4-"):
        return None
    try:
        signed_on = datetime.strptime(str(headers.get("x-amz-date")), DATE).replace(tzinfo=UTC)
    except ValueError:
        return SIGNATURE_LIFETIME_SECONDS
    return min(SIGNATURE_LIFETIME_SECONDS, max(0.0, SIGNATURE_LIFETIME_SECONDS - (now_on - signed_on).total_seconds()))


def _authorization(headers: Mapping[str, Any]) -> str:
    given = headers.get("authorization") or ""
    return given.decode("latin-1") if isinstance(given, bytes) else str(given)


def signed_by(call: Any, headers: Mapping[str, str], body: bytes | None, noted: bool = False) -> BotocoreSigner | None:
    """Return botocore's signer of a call's request; limit the call's wait where nothing can sign it again."""
    signer = signer_of(headers, body)
    if signer is None and not noted:
        remaining_seconds = seconds_left(headers, datetime.now(UTC))
        if remaining_seconds is not None and remaining_seconds < call.policy.max_wait:
            call.policy = call.policy._replace(max_wait=remaining_seconds)
    return signer


def renew(request: Any, signer: BotocoreSigner | None) -> None:
    """Sign a signed request again; exceptions of the signer propagate."""
    owner, methods = _unsigned(request)
    if owner is not None:
        getattr(owner, methods.signing)(request)
    elif signer is not None:
        signer.sign(request)


async def arenew(request: Any, signer: BotocoreSigner | None) -> None:
    """Sign a signed request of an async client again; exceptions of the signer propagate."""
    owner, methods = _unsigned(request)
    if owner is not None:
        await getattr(owner, methods.asigning)(request)
    elif signer is not None:
        signer.sign(request)


def _unsigned(request: Any) -> tuple[Any, Methods]:
    """Remove the signature and return the client that can renew it; return None if there is no signature or client."""
    signer: Signer | None = getattr(request, "extensions", {}).get(SIGNER)
    owner = signer.owner() if signer is not None else None
    if signer is None or owner is None or not request.headers.get("authorization", "").startswith("AWS4-"):
        return None, _PREPARING
    for name in SIGNATURE:
        request.headers.pop(name, None)
    return owner, signer.methods


def of(package: str) -> dict[str, Callable[[Patches, ModuleType], None]]:
    return {name: put for name in SIGNING if name.startswith(f"{package}.")}


def put(patches: Patches, module: ModuleType) -> None:
    methods = SIGNING[module.__name__]
    for each in list(vars(module).values()):
        if isinstance(each, type) and each.__module__ == module.__name__ and methods.noting in vars(each):
            patches.put(each, methods.noting, partial(_note, methods))


def _note(methods: Methods, wrapped: Callable[..., Any], owner: Any, args: Any, kwargs: Any) -> Any:
    request = args[0] if args else kwargs.get("request")
    extensions = getattr(request, "extensions", None)
    if isinstance(extensions, dict):
        extensions[SIGNER] = Signer(weakref.ref(owner), methods)
    return wrapped(*args, **kwargs)
