"""The mark that `wrap` and `install` leave: it says which requests are governed, by which registry and how.

A transport asks `marked` before it sends, then `provider_of`, and `provider_elsewhere` where that knows nothing. None
means: pass through untouched.

A mark that goes with the context: for SDKs whose HTTP clients come and go below an object that stays.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from ipaddress import ip_address
from typing import Any, NamedTuple

from tidegate import providers
from tidegate.admission import key_hook
from tidegate.admission.context import is_passthrough
from tidegate.admission.key_table import KeyTable
from tidegate.core.exchange import CallPolicy

MARK = "_tidegate_mark"
"""The attribute that `wrap` leaves on an HTTP client, or on an SDK's object that sends through clients of its own."""


def nobody(host: str) -> str | None:
    """No host is governed by its name."""
    return None


class Binding(NamedTuple):
    """The mark of a client; `family` is its SDK's (see `providers.adopt`), None for a bare HTTP client.

    With `any_host` every inference path is governed, else those of known providers, of local servers, of the hosts that
    `named` knows, with the family of what they speak, and those of `provider_elsewhere`.
    """

    registry: KeyTable
    policy: CallPolicy
    priority: int = 0
    family: str | None = None
    any_host: bool = False
    named: Callable[[str], str | None] = nobody

    def __deepcopy__(self, memo: object) -> Binding:
        """The same: the copy of a client counts at the registry of the first."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """None: a registry stays in its process, and elsewhere the client is as if it had never been wrapped."""
        return type(None), ()


def policy_of(registry: KeyTable, max_wait: float | None = None) -> CallPolicy:
    """Return what a client's calls may do by themselves: transient failures are its SDK's to repeat."""
    return CallPolicy(registry.settings.max_wait if max_wait is None else max_wait, 1)


class Installation:
    """The process-wide mark, while tidegate is installed."""

    mark: Binding | None = None


def marked(client: Any) -> Binding | None:
    """The mark that decides over a client's requests: its own, else the carrier's, else that of the installation.

    None: nobody's.
    """
    mark = getattr(client, MARK, None)
    if mark is None:
        mark = carried() or Installation.mark
    if mark is None or mark.registry.disabled or is_passthrough():
        return None
    return mark


Headers = Iterable[tuple[bytes, bytes]]


def provider_of(mark: Binding, host: str, path: str) -> providers.Provider | None:
    """Return whose inference endpoint `path` on `host` is, as far as `mark` governs it; None: pass through."""
    if mark.any_host:
        return providers.adopt(host, path, mark.family)
    provider = providers.recognise(host, path)
    if provider is not None:
        return provider
    if not providers.generates(host, path):
        return None
    family = mark.named(host)
    return providers.adopt(host, path, family or "openai") if family is not None or is_local(host) else None


def provider_elsewhere(
    mark: Binding, host: str, path: str, headers: Callable[[], Headers], networked: Callable[[], bool]
) -> providers.Provider | None:
    """Return the table for a request to a host that nobody has named; None: pass through.

    Governed are inference paths under the mark of a known SDK. Those that are inference paths for sure are governed
    under the mark of any SDK that Stainless generated, and on hosts whose names are private.
    `headers` returns the pairs of the request with names in lower case; `networked` says whether its client sends over
    a network: in a process that has tidegate installed, mocks and applications under test are never governed so.
    """
    if mark.any_host or not providers.generates(host, path):
        return None
    pairs = dict(headers())
    family = providers.sdk_family(pairs.items())
    if family is None or family == providers.UNNAMED:
        # `/v1/messages` is a path of many services; Anthropic's own asks for its version.
        certain = _is_plain(path) and (b"anthropic-version" in pairs or _MESSAGES.search(path) is None)
        if not certain:
            return None
        if family is None and not is_private_name(host):
            if key_hook.passed is not None and networked():
                key_hook.passed(host)
            return None
        family = "openai"
    if not networked():
        return None
    return providers.adopt(host, path, None if family == providers.ANY else family)


_PLAIN = re.compile(r"/chat/completions/?\Z|/openai/|/v\d[^/]*/(?:.+:\w+|(?:audio/|images/)?[a-z]+(?:/compact)?/?)\Z")
_MESSAGES = re.compile(r"/(?:messages|complete)/?\Z")


@lru_cache(maxsize=1024)
def _is_plain(path: str) -> bool:
    """Return whether an inference path is one by more than a common last word, as `/v1/forms/7/responses`."""
    return _PLAIN.search(path) is not None


@lru_cache(maxsize=1024)
def is_local(host: str) -> bool:
    """Return whether `host` is this machine or an address of a private network: self-hosted servers live there."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return False
    return address.is_loopback or address.is_private


PRIVATE_SUFFIXES = (
    ".local",
    ".internal",
    ".lan",
    ".home.arpa",
    ".svc",
    ".svc.cluster.local",
)
"""Ends of names that no public DNS serves.

RFC 6762 (.local), ICANN resolution 2024.07.29.06 (.internal; host.docker.internal is one), RFC 8375 (.home.arpa),
Kubernetes "DNS for Services and Pods" (SERVICE.NAMESPACE.svc), RFC 6762 appendix G (.lan in use).
"""


@lru_cache(maxsize=1024)
def is_private_name(host: str) -> bool:
    """Return whether `host` is a name of a private network: a single label (a compose service), or by its end."""
    name = host.lower().removesuffix(".")
    # Whatever holds a colon is an IPv6 address.
    single = name != "" and "." not in name and ":" not in name and not name.isdigit()
    return single or name.endswith(PRIVATE_SUFFIXES)


_carried: ContextVar[Binding | None] = ContextVar("tidegate_mark", default=None)


def carried() -> Binding | None:
    """The mark that this context carries."""
    return _carried.get()


@contextmanager
def carrying(mark: Binding | None) -> Iterator[None]:
    """Govern requests inside by `mark`, through whatever HTTP client they go; None changes nothing."""
    if mark is None:
        yield
        return
    token = _carried.set(mark)
    try:
        yield
    finally:
        _carried.reset(token)
