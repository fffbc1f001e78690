"""Lookup of the provider of a request, by host and path."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

from tidegate.errors import ConfigurationError
from tidegate.providers import clouds, gateways, model_hosts, model_makers
from tidegate.providers._paths import MAX_PATH
from tidegate.providers._schema import Provider
from tidegate.providers.anthropic import ANTHROPIC, ANTHROPIC_COMPATIBLE
from tidegate.providers.clouds import AZURE_COMPATIBLE, BEDROCK
from tidegate.providers.compatible import COMPATIBLE, LEPTON
from tidegate.providers.google import GEMINI, GEMINI_COMPATIBLE, VERTEX, VERTEX_COMPATIBLE
from tidegate.providers.model_hosts import GROQ, OLLAMA_LOCAL, REPLICATE, TOGETHER
from tidegate.providers.model_makers import COHERE, MISTRAL
from tidegate.providers.openai import OPENAI

KNOWN = (
    *(OPENAI, ANTHROPIC, GEMINI, VERTEX),
    *clouds.KNOWN,
    *model_makers.KNOWN,
    *model_hosts.KNOWN,
    *gateways.KNOWN,
    LEPTON,
)
"""Tables that claim hosts. A process-wide install governs these hosts."""

FALLBACK = (
    COMPATIBLE,
    ANTHROPIC_COMPATIBLE,
    AZURE_COMPATIBLE,
    OLLAMA_LOCAL,
    GEMINI_COMPATIBLE,
    VERTEX_COMPATIBLE,
)
"""Tables without hosts, for any base URL (see `adopt`)."""

SPOKEN: dict[str, tuple[Provider, ...]] = {
    "bedrock": (BEDROCK,),
    "gemini": (GEMINI_COMPATIBLE, VERTEX_COMPATIBLE),
    "groq": (GROQ,),
    "together": (TOGETHER,),
    "mistral": (MISTRAL,),
    "cohere": (COHERE,),
    "ollama": (OLLAMA_LOCAL,),
    "replicate": (REPLICATE,),
}
"""Tables for the SDK of one provider on an unknown host, which is a gateway to that provider or a replacement."""

TABLES = (*KNOWN, *FALLBACK)
"""All tables that come with tidegate: first those of known hosts."""

_MAX_HOST = 254
"""Most characters of a host name that is looked up: 253 of a DNS name, and a final dot."""


@dataclass(frozen=True, eq=False, slots=True)
class Tables:
    """The valid tables, by name and by host; replaced as a whole, never changed.

    `parted` are (prefix, suffix, table) of the hosts with a `*`, the most specific first.
    """

    names: dict[str, Provider]
    exact: dict[str, Provider]
    parted: tuple[tuple[str, str, Provider], ...]


class Current:
    """Holder of the valid tables, which are another object after each change.

    Read it once per request, so that no answer mixes two versions.
    """

    tables: Tables


def index(tables: Iterable[Provider]) -> Tables:
    """Return the tables by name and host. Raise `ConfigurationError` if a host is claimed twice."""
    names = {table.name: table for table in tables}
    hosts: dict[str, Provider] = {}
    for provider in names.values():
        for host in provider.hosts:
            taken = hosts.setdefault(host, provider)
            if taken is not provider or provider.hosts.count(host) > 1:
                why = f"it is already a host of {taken.name}"
                raise ConfigurationError(f"Provider({provider.name}).hosts", host, why)
    exact = {host: table for host, table in hosts.items() if "*" not in host}
    halves = ((host.partition("*"), table) for host, table in hosts.items() if "*" in host)
    parts = [(before, after, table) for (before, _, after), table in halves]
    return Tables(names, exact, tuple(sorted(parts, key=lambda part: -len(part[0]) - len(part[1]))))


Current.tables = index(TABLES)


def add(provider: Provider) -> None:
    """Make `provider` valid from the next request on; the caller must serialise calls.

    Raise `ConfigurationError` if a table has the same name or host; the tables then stay unchanged.
    """
    before = Current.tables
    if provider.name in before.names:
        raise ConfigurationError("Provider.name", provider.name, "a name that no other table has")
    Current.tables = index((*before.names.values(), provider))


def named(name: str) -> Provider | None:
    """Return the table called `name`, else None."""
    return Current.tables.names.get(name)


def recognise(host: str, path: str) -> Provider | None:
    """Return the known provider if `https://host/path` is its inference endpoint, else None.

    `host` may be in any case and end in a dot. The caller skips requests other than POST, as some paths also list
    objects.
    """
    provider = table_of(host)
    return provider if provider is not None and provider.endpoint(path) is not None else None


def adopt(host: str, path: str, family: str | None) -> Provider | None:
    """Return the table for a request of a governed client, or None if `path` is not an inference path.

    `family` is the SDK's: `openai`, `anthropic`, `azure`, one of `SPOKEN`, or None for a bare HTTP client. With None,
    plain generation paths count too. A known host keeps its table. The table of an unknown host follows from family and
    path.
    """
    if len(host) > _MAX_HOST or len(path) > MAX_PATH:
        return None
    return _adopt(Current.tables, host, path, family)


def table_of(host: str) -> Provider | None:
    """Return the table that claims `host`, for any path."""
    return _known(Current.tables, host) if len(host) <= _MAX_HOST else None


def generates(host: str, path: str) -> bool:
    """Return whether `path` is an inference path of `host`: by its table, or by any table for an unknown host."""
    if len(path) > MAX_PATH:
        return False
    provider = table_of(host)
    return _is_spoken(path) if provider is None else provider.endpoint(path) is not None


@lru_cache(maxsize=4096)
def _is_spoken(path: str) -> bool:
    return any(table.endpoint(path) is not None for table in chain(FALLBACK, *SPOKEN.values()))


# The tables are part of each cache key, so results of an earlier version are never used.
@lru_cache(maxsize=1024)
def _adopt(tables: Tables, host: str, path: str, family: str | None) -> Provider | None:
    provider = _known(tables, host)
    if provider is not None:
        return provider if provider.endpoint(path) is not None else None
    return _spoken(path, family)


@lru_cache(maxsize=1024)
def _known(tables: Tables, host: str) -> Provider | None:
    host = host.lower().removesuffix(".")
    provider = tables.exact.get(host)
    if provider is None:
        for prefix, suffix, table in tables.parted:
            if host.startswith(prefix) and host.endswith(suffix) and len(host) > len(prefix) + len(suffix):
                return table
    return provider


def _spoken(path: str, family: str | None) -> Provider | None:
    if "/model/" in path and BEDROCK.endpoint(path) is not None:
        return BEDROCK
    own = _first(SPOKEN.get(family or "", ()), path)
    if own is not None:
        return own
    if family == "anthropic":
        return _first((ANTHROPIC_COMPATIBLE, VERTEX_COMPATIBLE), path)
    if family == "azure" or "/openai/deployments/" in path:
        return _first((AZURE_COMPATIBLE,), path)
    if family is None:
        return _first((OLLAMA_LOCAL, COMPATIBLE, *_OTHERS), path)
    return _first((COMPATIBLE, *_OTHERS), path, plain=False)


_OTHERS = (ANTHROPIC_COMPATIBLE, GEMINI_COMPATIBLE, VERTEX_COMPATIBLE)


def _first(tables: tuple[Provider, ...], path: str, plain: bool = True) -> Provider | None:
    for table in tables:
        place = table.endpoint(path)
        if place is not None:
            return table if plain or not place[0].plain else None
    return None
