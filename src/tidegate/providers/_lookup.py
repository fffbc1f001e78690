"""The provider of a request, by host and path."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tidegate.errors import ConfigurationError
from tidegate.providers._schema import MAX_PATH, Provider
from tidegate.providers.anthropic import ANTHROPIC, ANTHROPIC_COMPATIBLE
from tidegate.providers.azure import AZURE, AZURE_COMPATIBLE, GITHUB_MODELS
from tidegate.providers.baseten import BASETEN
from tidegate.providers.bedrock import BEDROCK
from tidegate.providers.cerebras import CEREBRAS
from tidegate.providers.cohere import COHERE
from tidegate.providers.compatible import COMPATIBLE, LEPTON
from tidegate.providers.dashscope import DASHSCOPE, MODELSCOPE
from tidegate.providers.deepseek import DEEPSEEK
from tidegate.providers.fireworks import FIREWORKS
from tidegate.providers.google import GEMINI, GEMINI_COMPATIBLE, VERTEX, VERTEX_COMPATIBLE
from tidegate.providers.groq import GROQ
from tidegate.providers.huggingface import HUGGING_FACE
from tidegate.providers.mistral import MISTRAL
from tidegate.providers.nvidia import NVIDIA
from tidegate.providers.ollama import OLLAMA, OLLAMA_LOCAL
from tidegate.providers.openai import OPENAI
from tidegate.providers.openrouter import OPENROUTER
from tidegate.providers.perplexity import PERPLEXITY
from tidegate.providers.replicate import REPLICATE
from tidegate.providers.sambanova import SAMBANOVA
from tidegate.providers.together import TOGETHER
from tidegate.providers.xai import XAI

KNOWN = (
    OPENAI,
    AZURE,
    GITHUB_MODELS,
    ANTHROPIC,
    BEDROCK,
    GEMINI,
    VERTEX,
    XAI,
    GROQ,
    DEEPSEEK,
    DASHSCOPE,
    MODELSCOPE,
    OLLAMA,
    FIREWORKS,
    MISTRAL,
    TOGETHER,
    LEPTON,
    CEREBRAS,
    REPLICATE,
    BASETEN,
    OPENROUTER,
    COHERE,
    NVIDIA,
    PERPLEXITY,
    SAMBANOVA,
    HUGGING_FACE,
)
"""Tables that claim hosts, so that a process-wide install governs them."""

FALLBACK = (
    COMPATIBLE,
    ANTHROPIC_COMPATIBLE,
    AZURE_COMPATIBLE,
    OLLAMA_LOCAL,
    GEMINI_COMPATIBLE,
    VERTEX_COMPATIBLE,
)
"""Tables for clients that were wrapped by hand, whatever their base URL."""

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
"""What the SDK of one provider speaks to an unknown host: a gateway to that provider, or a stand-in for it."""

TABLES = (*KNOWN, *FALLBACK)

_MAX_HOST = 254


def index(tables: tuple[Provider, ...]) -> tuple[dict[str, Provider], tuple[tuple[str, str, Provider], ...]]:
    """Exact hosts, and (prefix, suffix, provider) of those with a `*`, the most specific first.

    Raises `ConfigurationError` if two tables claim one host.
    """
    exact: dict[str, Provider] = {}
    parted: list[tuple[str, str, Provider]] = []
    for table in tables:
        for host in table.hosts:
            prefix, star, suffix = host.partition("*")
            taken = exact.get(host) or next((p for a, b, p in parted if star and (a, b) == (prefix, suffix)), None)
            if taken is not None:
                raise ConfigurationError(f"Provider({table.name}).hosts", host, f"already a host of {taken.name}")
            if star:
                parted.append((prefix, suffix, table))
            else:
                exact[host] = table
    return exact, tuple(sorted(parted, key=lambda part: -len(part[0]) - len(part[1])))


@dataclass(frozen=True, eq=False, slots=True)
class Tables:
    """The tables that hold at one time, by name and by host; replaced as a whole, never changed."""

    names: dict[str, Provider]
    exact: dict[str, Provider]
    parted: tuple[tuple[str, str, Provider], ...]
    suffixes: tuple[str, ...]


class Current:
    """The tables that hold now: read once a request, so that no answer mixes two versions of them."""

    tables: Tables


def _tables(names: dict[str, Provider]) -> Tables:
    exact, parted = index(tuple(names.values()))
    return Tables(names, exact, parted, tuple({suffix for _, suffix, _ in parted}))


Current.tables = _tables({table.name: table for table in TABLES})


def add(provider: Provider) -> None:
    """Makes `provider` hold from the next request on; the caller sees to it that this is done by one at a time.

    Raises `ConfigurationError` for a name or a host that a table has already, and leaves the tables as they were.
    """
    before = Current.tables
    if provider.name in before.names:
        raise ConfigurationError("Provider.name", provider.name, "a name that no other table has")
    Current.tables = _tables({**before.names, provider.name: provider})


def version() -> object:
    """Tells the tables that hold now from those that held at another time."""
    return Current.tables


def named(name: str) -> Provider | None:
    """The table called `name`, else None."""
    return Current.tables.names.get(name)


def recognise(host: str, path: str) -> Provider | None:
    """The known provider that `https://host/path` is an inference endpoint of, else None.

    `host` may be of any case and end in a dot. The caller leaves out what is no POST: some paths also list things.
    """
    provider = _known(Current.tables, host) if len(host) <= _MAX_HOST else None
    return provider if provider is not None and provider.endpoint(path) is not None else None


def adopt(host: str, path: str, family: str | None) -> Provider | None:
    """The table for a request of a client that was wrapped by hand, or None where `path` generates nothing.

    `family` is the SDK's: `openai`, `anthropic`, `azure`, one of `SPOKEN`, or None for a bare HTTP client, for which
    plain generation paths count too. A known host keeps its table; an unknown one gets what it speaks, judged by family
    and path.
    """
    if len(host) > _MAX_HOST or len(path) > MAX_PATH:
        return None
    return _adopt(Current.tables, host, path, family)


def table_of(host: str) -> Provider | None:
    """Return the table that claims `host`, whatever the path."""
    return _known(Current.tables, host) if len(host) <= _MAX_HOST else None


FAMILIES = (None, "openai", "anthropic", "azure", *SPOKEN)


def generates(host: str, path: str) -> bool:
    """Return whether `path` is an inference path of `host`: of its own table, or of any for an unknown host."""
    if len(host) > _MAX_HOST or len(path) > MAX_PATH:
        return False
    return _generates(Current.tables, host, path)


@lru_cache(maxsize=4096)
def _generates(tables: Tables, host: str, path: str) -> bool:
    return any(_adopt(tables, host, path, family) is not None for family in FAMILIES)


# The tables are part of each question: an answer that an earlier version of them gave is never found again.
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
    if provider is None and host.endswith(tables.suffixes):
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
        return _first((ANTHROPIC_COMPATIBLE,), path)
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
