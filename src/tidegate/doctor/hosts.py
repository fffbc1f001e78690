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
        host = _address(keyword.value) if counts else ""
        if host:
            yield _shown(host), _judged(host, f"{called or 'a call'}({keyword.arg}=)", package, settings)
    method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    if method in SENDING and package not in MARKED:
        for argument in node.args[:2]:
            host, path = _address(argument), _path(argument)
            if host and providers.generates(host, path):
                yield _shown(host), _judged(host, f"{method}() to an inference path", "", settings)


def _judged(host: str, where: str, package: str, settings: Settings) -> tuple[Severity, str]:
    """Return the result for calls to `host`. An empty `package` is an HTTP client that surely sends inference."""
    known = providers.table_of(host)
    if known is not None:
        return Severity.GOVERNED, f"{where}: {known.name}"
    if host in named_hosts(settings):
        return Severity.GOVERNED, f"{where}: named by a variable"
    if is_local(host) or is_private_name(host):
        return Severity.GOVERNED, f"{where}: this machine or a private network"
    if package in MARKED:
        return Severity.GOVERNED, f"{where}: calls of a known SDK are governed on any host"
    help_ = f"set TIDEGATE_HOSTS={host} to govern it"
    if not package:
        return Severity.UNGOVERNED, f"{where}: an HTTP client without an SDK, and an unknown host; {help_}"
    return Severity.NOTE, f"{where}: governed if a known SDK sends the calls; otherwise {help_}"


def _address(node: ast.expr) -> str:
    return host_of(literal(node)) if "://" in literal(node) else ""


def _path(node: ast.expr) -> str:
    try:
        return urlsplit(literal(node)).path
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


def literal(node: ast.expr) -> str:
    """Return a literal text. Each expression in an f-string is replaced by `x`."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(literal(part) if isinstance(part, ast.Constant) else "x" for part in node.values)
    return ""


def _shown(host: str) -> str:
    return host if host.isprintable() else ascii(host)
