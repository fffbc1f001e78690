"""Signatures that age in the queue: the Bedrock clients of anthropic and openai sign before they send.

AWS refuses a signature that is some minutes old (five, as is generally said). Each of those clients signs in a method
of its own; a class patch on it notes in the request who signed, and a stack that sends the request long after asks that
signer again. The requests of all other clients meet nothing of this.

Lines: anthropic 2.11 `lib/bedrock/_client.py`, `_mantle.py`, `lib/aws/_client.py` `_prepare_request`; openai 3.52
`providers/bedrock.py` `_BedrockSigV4Auth._validate_request`, with which both of its ways to sign begin (its clients
hold those two bound: patches on them would miss clients made before).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

from tidegate.transports.patching import Patches

STALE_AFTER = 60.0
"""Seconds from the coming of a call after which its request is signed anew: well within minutes."""

SIGNER = "tidegate.signer"
"""The extension of a request that names its signer."""

SIGNATURE = ("authorization", "x-amz-date", "x-amz-security-token", "x-amz-content-sha256")
"""The headers that signing sets (openai 3.52 `_AWS_SIGNING_HEADERS`); one left standing would be signed as well."""


class Methods(NamedTuple):
    """Of a class that signs: the method to patch, which gets the request first, and those that sign."""

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
    """Who signed a request, and how it is asked again."""

    owner: weakref.ref[Any]
    methods: Methods


def renew(request: Any) -> None:
    """Signs a request anew, where it was signed; what the signer raises goes through."""
    owner, methods = _unsigned(request)
    if owner is not None:
        getattr(owner, methods.signing)(request)


async def arenew(request: Any) -> None:
    """Signs a request of an async client anew, where it was signed; what the signer raises goes through."""
    owner, methods = _unsigned(request)
    if owner is not None:
        await getattr(owner, methods.asigning)(request)


def _unsigned(request: Any) -> tuple[Any, Methods]:
    """Takes the signature off; returns who is to put on another, None where there is none or nobody to do it."""
    signer: Signer | None = request.extensions.get(SIGNER)
    owner = signer.owner() if signer is not None else None
    if signer is None or owner is None or not request.headers.get("authorization", "").startswith("AWS4-"):
        return None, _PREPARING
    for name in SIGNATURE:
        request.headers.pop(name, None)
    return owner, signer.methods


def of(package: str) -> dict[str, Callable[[Patches, ModuleType], None]]:
    """The modules of one SDK that sign, each with what patches it."""
    return {name: put for name in SIGNING if name.startswith(f"{package}.")}


def put(patches: Patches, module: ModuleType) -> None:
    """Patches the classes of one module that sign."""
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
