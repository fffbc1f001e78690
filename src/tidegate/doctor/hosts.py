"""Hosts that a script or the environment names, and whether calls to each are governed under `tidegate run`."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from tidegate import providers
from tidegate._install import host_of, named_hosts
from tidegate.doctor.environment import Finding, Severity
from tidegate.doctor.source import SourceModule
from tidegate.settings import Settings
from tidegate.transports import sockets
from tidegate.transports.governance import is_local, is_private_name

PLACES = frozenset({"base_url", "api_base", "openai_api_base", "anthropic_api_url", "azure_endpoint"})
"""Keywords that give an address to SDKs and frameworks (openai, anthropic, litellm, langchain, llama-index)."""

COMMON_PLACES = frozenset({"host", "server_url"})
"""Such keywords that other libraries use too: they count for known SDKs only (ollama, mistralai)."""

MARKED = frozenset(
    {
        "openai",
        "anthropic",
        "google",
        "groq",
        "together",
        "mistralai",
        "cohere",
        "ollama",
        "replicate",
        "huggingface_hub",
        "litellm",
        "dspy",
        "voyageai",
        "instructor",
        "agents",
        "pydantic_ai",
        "langchain",
        "langchain_openai",
        "langchain_anthropic",
        "langchain_groq",
        "langchain_mistralai",
        "langchain_ollama",
        "langchain_deepseek",
        "langchain_xai",
        "langchain_google_genai",
        "llama_index",
        "haystack",
        "autogen_ext",
        "smolagents",
        "crewai",
    }
)
"""Packages whose requests carry the mark of a known SDK, or of an SDK below them (`providers/_sdk_headers.py`)."""

SDK_TABLES = {
    "openai": "compatible",
    "anthropic": "anthropic-compatible",
    "groq": "groq",
    "together": "together",
    "mistralai": "mistral",
    "cohere": "cohere",
    "ollama": "ollama-local",
    "replicate": "replicate",
}
"""Tables for the clients of one SDK on an unknown host (`providers.adopt`)."""

SENDING = frozenset({"post", "request", "stream"})
"""Methods and functions of HTTP clients that may send a POST to the address in their arguments."""


def in_script(modules: list[SourceModule], folder: Path, settings: Settings) -> Iterator[Finding]:
    """Yield each literal address of an inference server, with its line."""
    for module in modules:
        path = module.path
        name = str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call):
                for host, finding in _of_call(module, node, settings):
                    yield Finding("host", finding[0], host, finding[1], place=f"{name}:{node.lineno}")
            elif isinstance(node, ast.Dict):
                for host, finding in _of_dictionary(module, node, settings):
                    yield Finding("host", finding[0], host, finding[1], place=f"{name}:{node.lineno}")


def in_environment(settings: Settings, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the hosts that variables name."""
    for row in providers.BASE_URL_VARIABLES:
        host = host_of(environ.get(row.name, ""))
        if host:
            yield Finding("host", Severity.GOVERNED, _shown(host), f"named by {row.name}")
    for host in settings.hosts:
        yield Finding("host", Severity.GOVERNED, _shown(host), "named by TIDEGATE_HOSTS")


def _of_call(module: SourceModule, node: ast.Call, settings: Settings) -> Iterator[tuple[str, tuple[Severity, str]]]:
    called = module.dotted(node.func)
    package = called.partition(".")[0]
    for keyword in node.keywords:
        counts = keyword.arg in PLACES or (keyword.arg in COMMON_PLACES and package in MARKED)
        host = _address(module, keyword.value) if counts else ""
        if host:
            yield _shown(host), _judged(host, f"{called or 'a call'}({keyword.arg}=)", called, settings)
    method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    if method in SENDING and package not in MARKED:
        for argument in node.args[:2]:
            host, path = _address(module, argument), _path(module, argument)
            if host and providers.generates(host, path):
                yield _shown(host), _judged(host, f"{method}() to an inference path", "", settings)


def _of_dictionary(
    module: SourceModule, node: ast.Dict, settings: Settings
) -> Iterator[tuple[str, tuple[Severity, str]]]:
    for key, value in zip(node.keys, node.values, strict=True):
        place = key.value if isinstance(key, ast.Constant) else None
        host = _address(module, value) if isinstance(place, str) and place in PLACES else ""
        if host:
            yield _shown(host), _judged(host, f"{{{place!r}: …}}", "a dictionary", settings)


def _judged(host: str, where: str, called: str, settings: Settings) -> tuple[Severity, str]:
    """Return the result for calls to `host`. An empty `called` is an HTTP client that surely sends inference."""
    package = called.partition(".")[0]
    known = providers.table_of(host)
    if known is not None:
        return Severity.GOVERNED, f"{where}: {_key(known)}"
    if host in named_hosts(settings):
        return Severity.GOVERNED, f"{where}: named by a variable"
    table = _table_of_sdk(called)
    read = f", as {_key(table)}" if table is not None else ""
    if is_local(host) or is_private_name(host):
        return Severity.GOVERNED, f"{where}: this machine or a private network{read}"
    if package in MARKED:
        return Severity.GOVERNED, f"{where}: calls of a known SDK are governed on any host{read}"
    help_ = f"set TIDEGATE_HOSTS={host} to govern it"
    if not package:
        return Severity.UNGOVERNED, f"{where}: an HTTP client without an SDK, and an unknown host; {help_}"
    return Severity.NOTE, f"{where}: governed if a known SDK sends the calls; otherwise {help_}"


def _key(table: providers.Provider) -> str:
    """Return the provider's name, and what its keys are separate for."""
    path = "path" if any("{scope}" in each.path for each in table.endpoints) else ""
    model = "model" if table.scope == "model" else ""
    parts = [part for part in ("credential" if table.credential else "host", path, model) if part]
    return f"{table.name}, one key per {', '.join(parts[:-1])}{' and ' if parts[1:] else ''}{parts[-1]}"


def _table_of_sdk(called: str) -> providers.Provider | None:
    """Return the table for calls of an SDK's client to an unknown host, None where the path of each call decides."""
    return providers.named(
        "azure-compatible" if called.endswith("AzureOpenAI") else SDK_TABLES.get(called.partition(".")[0], "")
    )


def _address(module: SourceModule, node: ast.expr) -> str:
    text = module.literal(node)
    return host_of(text) if "://" in text else ""


def _path(module: SourceModule, node: ast.expr) -> str:
    try:
        return urlsplit(module.literal(node)).path
    except ValueError:
        return ""


def is_model_socket(address: str) -> bool:
    """Return whether an address is that of a websocket session with a model."""
    if not address.startswith(("ws://", "wss://")):
        return False
    try:
        parts = urlsplit(address)
        return sockets.is_inference(parts.hostname or "", parts.path)
    except ValueError:
        return False


def _shown(host: str) -> str:
    return host if host.isprintable() else ascii(host)
