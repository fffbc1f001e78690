"""Bindings of clients to a registry, which `wrap` and `install` set, and the choice of governed requests.

Theory of operation. Before it sends, a transport asks `binding_of` for the client's binding. It then asks
`provider_of`, and `provider_elsewhere` for hosts that nothing names. None from any of them means: pass the request
through unchanged. A binding may also live in the context (`bind_context`), for SDKs that create HTTP clients below a
long-lived object.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any, NamedTuple

from tidegate import providers
from tidegate.admission import hooks
from tidegate.admission.context import current_scope
from tidegate.admission.key_table import KeyTable
from tidegate.core.exchange import CallPolicy

BINDING = "_tidegate_mark"
"""The attribute that `wrap` sets on an HTTP client, or on an SDK object that creates its own HTTP clients."""


def nobody(host: str) -> str | None:
    """Return None: no host is governed by its name."""
    return None


class Binding(NamedTuple):
    """Binding of a client to a registry. `family` is its SDK's (see `providers.adopt`), None for a bare HTTP client.

    With `any_host` every inference path is governed. Without it, these are: known providers, local servers, hosts that
    `named` maps to a family, and the hosts that `provider_elsewhere` accepts.
    """

    registry: KeyTable
    policy: CallPolicy
    priority: int = 0
    family: str | None = None
    any_host: bool = False
    named: Callable[[str], str | None] = nobody

    def __deepcopy__(self, memo: object) -> Binding:
        """Return the same object: a copied client uses the same registry."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as None: a registry stays in its process, so a client elsewhere is not governed."""
        return type(None), ()


def policy_of(registry: KeyTable, max_wait: float | None = None) -> CallPolicy:
    """Return the policy of a client's calls, with one attempt: the SDK repeats transient failures itself."""
    return CallPolicy(registry.settings.max_wait if max_wait is None else max_wait, 1)


class Installation:
    """The process-wide binding while tidegate is installed."""

    binding: Binding | None = None


def binding_of(client: Any) -> Binding | None:
    """Return the binding for a client's requests: its own, else the context's, else the installation's.

    Return None if no binding applies, the registry is disabled, or the context is marked as passthrough.
    """
    binding = getattr(client, BINDING, None)
    if binding is None:
        binding = _carried.get() or Installation.binding
    if binding is None or binding.registry.disabled:
        return None
    scope = current_scope()
    return None if scope is not None and scope.open else binding


Headers = Iterable[tuple[bytes, bytes]]


def counts_refusals() -> bool:
    return hooks.on_ungoverned is not None


def count_refusal(client: Any, status: int, sent: Callable[[], tuple[str, str, Headers]]) -> None:
    """Count the refused request of an SDK that no limiter governs, since it asks for no inference (a file, a poll).

    A request inside a governed attempt is part of that call. `sent` returns host, path and headers of the request; if
    it raises, as for a mock, nothing is counted.
    """
    if status != HTTPStatus.TOO_MANY_REQUESTS:
        return
    with suppress(Exception):
        hook, (host, path, headers) = hooks.on_ungoverned, sent()
        if hook is None or not host or binding_of(client) is None or providers.generates(host, path):
            return
        if providers.table_of(host) is not None or providers.sdk_family(headers) is not None:
            hook(f"{hooks.REFUSED}{host}")


def provider_of(binding: Binding, host: str, path: str) -> providers.Provider | None:
    """Return the provider of the inference endpoint `path` on `host` if `binding` governs it, else None."""
    if binding.any_host:
        return providers.adopt(host, path, binding.family)
    provider = providers.recognise(host, path)
    if provider is not None:
        return provider
    if not providers.generates(host, path):
        return None
    family = binding.named(host)
    return providers.adopt(host, path, family or "openai") if family is not None or is_local(host) else None


def provider_elsewhere(
    binding: Binding, host: str, path: str, headers: Callable[[], Headers], networked: Callable[[], bool]
) -> providers.Provider | None:
    """Return the table for a request to a host that nothing names, or None to pass it through.

    Inference paths are governed if the headers show a known SDK; unambiguous ones also for any SDK that Stainless
    generated, and on hosts with private names. In a process with tidegate installed, a client that is not `networked`
    (a mock, an application under test) is never governed.
    """
    hook = hooks.on_ungoverned
    if not host:
        if hook is not None and providers.sdk_family(headers()) is not None:
            hook(hooks.NO_HOST)
        return None
    if binding.any_host or not providers.generates(host, path):
        return None
    pairs = dict(headers())
    family = providers.sdk_family(pairs.items())
    if family is None or family == providers.UNNAMED:
        # Many services have a path `/v1/messages`; Anthropic's clients always send a version header.
        certain = _is_plain(path) and (b"anthropic-version" in pairs or _MESSAGES.search(path) is None)
        if not certain:
            return None
        if family is None and not is_private_name(host):
            if hook is not None and networked():
                hook(host)
            return None
        family = "openai"
    if not networked():
        return None
    return providers.adopt(host, path, None if family == providers.ANY else family)


_PLAIN = re.compile(r"/chat/completions/?\Z|/openai/|/v\d[^/]*/(?:.+:\w+|(?:audio/|images/)?[a-z]+(?:/compact)?/?)\Z")
_MESSAGES = re.compile(r"/(?:messages|complete)/?\Z")


@lru_cache(maxsize=1024)
def _is_plain(path: str) -> bool:
    """Return whether an inference path is more than a common last word, as `/v1/forms/7/responses` is."""
    return _PLAIN.search(path) is not None


@lru_cache(maxsize=1024)
def is_local(host: str) -> bool:
    """Return whether `host` is this machine or a private address, where self-hosted servers run."""
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
"""Suffixes of names that public DNS does not serve.

RFC 6762 (.local), ICANN resolution 2024.07.29.06 (.internal; host.docker.internal is one), RFC 8375 (.home.arpa),
Kubernetes "DNS for Services and Pods" (SERVICE.NAMESPACE.svc), RFC 6762 appendix G (.lan in use).
"""


@lru_cache(maxsize=1024)
def is_private_name(host: str) -> bool:
    """Return whether `host` is a name of a private network: a single label (a compose service), or a private suffix."""
    name = host.lower().removesuffix(".")
    # A name with a colon is an IPv6 address.
    single = name != "" and "." not in name and ":" not in name and not name.isdigit()
    return single or name.endswith(PRIVATE_SUFFIXES)


_carried: ContextVar[Binding | None] = ContextVar("tidegate_mark", default=None)


@contextmanager
def bind_context(binding: Binding | None) -> Iterator[None]:
    """Govern the requests inside by `binding`, through any HTTP client; None changes nothing."""
    if binding is None:
        yield
        return
    token = _carried.set(binding)
    try:
        yield
    finally:
        _carried.reset(token)
