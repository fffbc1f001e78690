"""Packages and interpreter of this Python environment, and the part of them that tidegate governs.

Two tables hold the known packages: HTTP stacks, and the SDKs and frameworks that send through them. Each function
yields `Finding`s.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from tidegate.providers import BASE_URL_VARIABLES, PRICES_DATE, PRICES_MAX_AGE_DAYS
from tidegate.settings import PREFIX, Settings, unknown_variables
from tidegate.shared_log import AUTO, is_server, place_of
from tidegate.shared_log.carrier import Unshared
from tidegate.transports import framework_timeouts
from tidegate.transports.framework_timeouts import TIMEOUTS, FrameworkTimeout, shown
from tidegate.transports.imports import SHARED, UNGOVERNABLE
from tidegate.transports.install import host_of
from tidegate.transports.sdks import TRANSPORTS


class Severity(StrEnum):
    """Result of a finding: the word of its line after the section."""

    GOVERNED = "governed"
    UNGOVERNED = "ungoverned"
    STRETCHED = "stretched"
    KEPT = "kept"
    SET = "set"
    NOTE = "note"
    TRAP = "trap"


class Finding(NamedTuple):
    """One line of the report.

    `section` is python, stack, sdk, clock, host, price, setting, trap or script.
    """

    section: str
    verdict: Severity
    name: str
    text: str
    version: str = ""

    def line(self) -> str:
        """Return one line of plain text, its fields first, so that it can be searched."""
        version = f" {self.version}" if self.version else ""
        return f"{self.section} {self.verdict} {self.name}{version}: {self.text}"

    def fields(self) -> dict[str, Any]:
        return {**self._asdict(), "verdict": str(self.verdict)}


class HttpStack(NamedTuple):
    """HTTP stack, or another way to send calls. `point` is where each attempt passes, empty if it cannot be governed.

    It was tested from version `least` to before `below`. A `shared` one has many uses other than LLM calls: it counts
    only where a script imports it and has no other way to send calls.
    """

    distribution: str
    module: str
    point: str
    least: str
    below: str
    source: str
    shared: bool = False


class Package(NamedTuple):
    """SDK or framework. `modules` are its modules that a script imports.

    It sends through the packages here that its metadata requires, and through the optional stacks `also`, where
    installed. `instead` replaces both, where the metadata names packages that are not used for inference.
    """

    distribution: str
    modules: tuple[str, ...]
    source: str
    also: tuple[str, ...] = ()
    instead: tuple[str, ...] = ()
    note: str = ""


STACKS = (
    HttpStack("httpx", "httpx", "Client.send, AsyncClient.send", "0.23", "1", "httpx 0.28.1 _client.py"),
    HttpStack("httpx2", "httpx2", "Client.send, AsyncClient.send", "2", "3", "httpx2 2.16.2 _client.py"),
    HttpStack("requests", "requests", "Session.send", "2.20", "3", "requests 2.34.2 sessions.py"),
    HttpStack("aiohttp", "aiohttp", "ClientSession._request", "3.8", "4", "aiohttp 3.14.5 client.py"),
    HttpStack("botocore", "botocore", "Endpoint, before signing", "1.29", "2", "botocore 1.44.5 endpoint.py"),
    HttpStack(
        "aiobotocore", "aiobotocore", "AioEndpoint, before signing", "2.13", "4", "aiobotocore 3.10.0 endpoint.py"
    ),
    *(
        HttpStack(distribution, module, "", "", "", "imports", shared=module in SHARED)
        for module, distribution in UNGOVERNABLE.items()
    ),
)

OWN_HOSTS = (
    "governed at its own hosts; its paths are inference paths nowhere else, so another server (loopback, a private "
    "gateway) passes by unless register_provider names it"
)

PACKAGES = (
    Package("openai", ("openai",), "openai 3.52.0 _base_client.py"),
    Package("anthropic", ("anthropic",), "anthropic 2.11.0 _base_client.py"),
    Package("google-genai", ("google.genai",), "google-genai 3.4.0 _api_client.py", ("aiohttp",)),
    Package("groq", ("groq",), "groq 1.7.0 _base_client.py"),
    Package("together", ("together",), "together 3.1.1 _base_client.py"),
    Package("cohere", ("cohere",), "cohere 7.3.1 core/http_client.py"),
    Package("mistralai", ("mistralai",), "mistralai 3.7.0 client/basesdk.py"),
    Package("ollama", ("ollama",), "ollama 0.6.3 _client.py"),
    Package("huggingface-hub", ("huggingface_hub",), "huggingface_hub 1.33.0 inference/_client.py"),
    Package(
        "replicate",
        ("replicate",),
        "replicate 1.0.7 client.py: RetryTransport",
        note="its RetryTransport repeats GET requests itself; predictions are POST requests, and each passes the queue",
    ),
    Package("boto3", ("boto3",), "boto3 1.44.5", instead=("botocore",)),
    Package("aioboto3", ("aioboto3",), "aioboto3 7.0.0 session.py: sessions of aiobotocore", instead=("aiobotocore",)),
    Package("xai-sdk", ("xai_sdk",), "xai-sdk 1.21.0 client.py: grpc.aio channels", instead=("grpcio",)),
    Package(
        "google-cloud-aiplatform",
        (
            "vertexai.generative_models",
            "vertexai.language_models",
            "vertexai.vision_models",
            "vertexai.preview",
            "google.cloud.aiplatform",
        ),
        "google-cloud-aiplatform 2.7.0 initializer.py: gRPC unless api_transport is rest",
        instead=("grpcio",),
        note='vertexai.init(api_transport="rest") sends through requests, vertexai.Client through google-genai',
    ),
    Package(
        "google-generativeai",
        ("google.generativeai",),
        "google-generativeai 0.8.6 client.py: gRPC unless transport is rest",
        instead=("grpcio",),
        note='with configure(transport="rest") it sends through requests',
    ),
    Package("dashscope", ("dashscope",), "dashscope 2.0.2", also=("requests", "aiohttp"), note=OWN_HOSTS),
    Package("writer-sdk", ("writerai",), "writer-sdk 3.0.0", note=OWN_HOSTS),
    Package("litellm", ("litellm",), "litellm 1.106.2 llms/custom_httpx/http_handler.py"),
    Package("langchain-openai", ("langchain_openai",), "langchain-openai 1.7.3", instead=("openai",)),
    Package("langchain-anthropic", ("langchain_anthropic",), "langchain-anthropic 1.7.7", instead=("anthropic",)),
    Package("instructor", ("instructor",), "instructor 1.17.0", instead=("openai",)),
    Package(
        "pydantic-ai-slim", ("pydantic_ai",), "pydantic-ai 2.62.0", instead=("openai", "anthropic", "google-genai")
    ),
    Package(
        "openai-agents",
        ("agents",),
        "openai-agents 0.24.0",
        instead=("openai",),
        note="its websocket transport and realtime sessions cannot be governed; the HTTP transport is the default",
    ),
    Package("inspect-ai", ("inspect_ai",), "inspect_ai 0.3.285", instead=("openai", "anthropic", "google-genai")),
    Package("lm-eval", ("lm_eval",), "lm_eval 0.4.13 models/api_models.py", instead=("aiohttp", "requests")),
    Package("deepeval", ("deepeval",), "deepeval 4.3.1", instead=("openai",)),
    Package("ragas", ("ragas",), "ragas 0.4.3", instead=("openai",)),
    Package(
        "arize-phoenix-evals",
        ("phoenix.evals",),
        "arize-phoenix-evals 3.9.4 llm/registries.py",
        instead=("openai", "anthropic", "litellm", "google-genai"),
    ),
    Package("arize-phoenix-client", ("phoenix.client",), "arize-phoenix-client 3.5.0", instead=("openai",)),
    Package("dspy", ("dspy",), "dspy 3.4.1", instead=("litellm",)),
    Package("mlflow", ("mlflow",), "mlflow 3.18.0: its judges", instead=("requests", "litellm")),
    Package(
        "llama-index-llms-openai", ("llama_index.llms.openai",), "llama-index-llms-openai 0.8.3", instead=("openai",)
    ),
    Package("llama-index-workflows", ("workflows", "llama_index.core.workflow"), "llama-index-workflows 2.26.1"),
    Package("haystack-ai", ("haystack",), "haystack 3.4.0", instead=("openai",)),
)

PATCHERS = {
    "opentelemetry-instrumentation-httpx": "httpx",
    "opentelemetry-instrumentation-requests": "requests",
    "opentelemetry-instrumentation-aiohttp-client": "aiohttp",
    "opentelemetry-instrumentation-botocore": "botocore",
    "ddtrace": "httpx, requests, aiohttp and botocore",
    "newrelic": "httpx, requests, aiohttp and botocore",
    "sentry-sdk": "httpx, aiohttp and botocore",
    "logfire": "httpx, requests and aiohttp, through opentelemetry",
}
"""Distributions that patch the same HTTP stacks, by wrapt or directly; either order works."""

NODE_COMMANDS = {"promptfoo": "runs on Node; `tidegate run promptfoo` governs it through a gateway (tidegate[ui])"}
"""Commands that make LLM calls outside Python."""


MIN_WRAPT_VERSION = "2.4"
"""First version with `unwrap_object` (wrapt changelog)."""

NOT_INSTALLED = "not checked:"
"""Beginning of the finding of an import that this Python does not have."""

SECRETS = frozenset({"digest_key", "share"})
"""Settings whose values are hidden: the report only states that they are set."""


class Installed:
    """Known distributions of this Python, by their metadata alone: nothing is imported."""

    def __init__(self) -> None:
        self.by_name = {each.distribution: each for each in PACKAGES}
        self.stacks = {each.distribution: each for each in STACKS if not each.shared}
        self._versions: dict[str, str | None] = {}

    def version(self, distribution: str) -> str | None:
        if distribution not in self._versions:
            try:
                self._versions[distribution] = metadata.version(distribution)
            except metadata.PackageNotFoundError:
                self._versions[distribution] = None
        return self._versions[distribution]

    def through(self, package: Package) -> list[str]:
        """Return the known, installed distributions that a package sends through directly."""
        named = package.instead or tuple(_required(package.distribution))
        found = dict.fromkeys(name for name in (*named, *package.also) if name in self.by_name or name in self.stacks)
        return [name for name in found if name != package.distribution and self.version(name) is not None]

    def ways_out(self, package: Package, seen: frozenset[str] = frozenset()) -> list[HttpStack]:
        """Return the HTTP stacks that finally send a package's calls."""
        out: dict[str, HttpStack] = {}
        for name in self.through(package):
            if name in self.stacks:
                out[name] = self.stacks[name]
            elif name not in seen:
                for stack in self.ways_out(self.by_name[name], seen | {package.distribution, name}):
                    out[stack.distribution] = stack
        return list(out.values())

    def reached(self, distribution: str) -> list[HttpStack]:
        """Return the HTTP stacks that the requirements of any distribution lead to, through others without a row."""
        out: dict[str, HttpStack] = {}
        waiting, seen = [distribution], {distribution}
        while waiting:
            for name in _required(waiting.pop()):
                if name in seen or self.version(name) is None:
                    continue
                seen.add(name)
                if name in self.stacks:
                    out[name] = self.stacks[name]
                elif name in self.by_name:
                    out |= {each.distribution: each for each in self.ways_out(self.by_name[name])}
                else:
                    waiting.append(name)
        return list(out.values())


def normal(name: str) -> str:
    """Return the normal form of a distribution's name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _required(distribution: str) -> Iterator[str]:
    try:
        requirements = metadata.requires(distribution) or []
    except metadata.PackageNotFoundError:
        return
    for each in requirements:
        name = re.match(r"[A-Za-z0-9._-]+", each)
        if name and not re.search(r"\bextra\s*==", each):
            yield normal(name[0])


def governed_modules() -> frozenset[str]:
    return frozenset(name for transport in TRANSPORTS for name in transport.MODULES)


def governs(stack: HttpStack) -> bool:
    return any(name.split(".")[0] == stack.module for name in governed_modules())


def stacks(installed: Installed, only: Iterable[HttpStack] | None = None) -> Iterator[Finding]:
    """Yield the installed HTTP stacks, or `only` those. Without `only`, add governed stacks outside the table."""
    for stack in (each for each in STACKS if not each.shared) if only is None else only:
        version = installed.version(stack.distribution)
        if version is None:
            continue
        if governs(stack):
            yield Finding("stack", Severity.GOVERNED, stack.distribution, _patched(stack, version), version)
        else:
            text = "cannot be governed; this matters only if LLM calls are sent through it"
            yield Finding("stack", Severity.NOTE, stack.distribution, text, version)
    known = {stack.module for stack in STACKS}
    for name in sorted(governed_modules()) if only is None else ():
        version = installed.version(name.replace(".", "-"))
        if name.split(".")[0] not in known and version is not None:
            yield Finding("stack", Severity.GOVERNED, name, "patched when it is imported", version)


def _patched(stack: HttpStack, version: str) -> str:
    text = f"patched at {stack.point}"
    if not _before(_numbers(version), _numbers(stack.below)) or _before(_numbers(version), _numbers(stack.least)):
        text += f"; this version is not tested (tested: {stack.least} to before {stack.below})"
    return text


def sdks(installed: Installed, only: Iterable[Package] | None = None) -> Iterator[Finding]:
    """Yield the installed SDKs and frameworks, or `only` those, and whether all their HTTP stacks are governed."""
    for package in PACKAGES if only is None else only:
        version = installed.version(package.distribution)
        if version is None:
            if only is not None:
                text = f"{NOT_INSTALLED} it is not installed in this Python; run the doctor of the Python that has it"
                yield Finding("sdk", Severity.NOTE, package.distribution, text)
            continue
        out = installed.ways_out(package)
        free = [stack.distribution for stack in out if not governs(stack)]
        names = ", ".join(f"{stack.distribution} {installed.version(stack.distribution)}" for stack in out)
        if not out:
            verdict, text = Severity.NOTE, "sends no call itself: its metadata requires no known HTTP stack"
        elif free:
            verdict, text = Severity.UNGOVERNED, f"sends through {names}; {', '.join(free)} cannot be governed"
        else:
            verdict, text = Severity.GOVERNED, f"sends through {names}"
        text += f"; {package.note}" if package.note else ""
        yield Finding("sdk", verdict, package.distribution, text, version)
    if only is None and all(installed.version(package.distribution) is None for package in PACKAGES):
        text = (
            f"no known SDK or framework is installed in this Python ({sys.executable}); for another Python, run its "
            "own `tidegate doctor`"
        )
        yield Finding("sdk", Severity.NOTE, "none", text)


def clocks(
    installed: Installed, settings: Settings, environ: Mapping[str, str], only: frozenset[str] | None = None
) -> Iterator[Finding]:
    """Yield the timeouts of installed frameworks, or of `only` those, and what `install()` does about each."""
    for clock in TIMEOUTS:
        version = installed.version(clock.framework)
        if version is None or (only is not None and clock.framework not in only):
            continue
        verdict, text = _set(clock, settings, environ)
        yield Finding("clock", verdict, clock.framework, f"{clock.measures}: {text}", version)


def _set(clock: FrameworkTimeout, settings: Settings, environ: Mapping[str, str]) -> tuple[Severity, str]:
    if not framework_timeouts.stretches(settings):
        expiry = f"when a call waits longer than that in the queue, the framework {clock.then}"
        return Severity.KEPT, f"{clock.seconds:g} s by default, not extended because of the settings; {expiry}"
    given = next(filter(None, (default.user_setting(environ) for default in clock.defaults)), None)
    if given is not None:
        return Severity.KEPT, f"not extended, because {given} is set"
    new = clock.stretched(clock.seconds, settings.max_wait)
    return Severity.STRETCHED, f"extended from {clock.seconds:g} s to {shown(new)}, unless the program sets it"


def hosts(settings: Settings, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the hosts that variables name."""
    named = [(host_of(environ.get(row.name, "")), row.name) for row in BASE_URL_VARIABLES]
    for host, variable in (*named, *((host, "TIDEGATE_HOSTS") for host in settings.hosts)):
        if host:
            shown_host = host if host.isprintable() else ascii(host)
            yield Finding("host", Severity.GOVERNED, shown_host, f"named by {variable}")


def in_force(settings: Settings) -> Iterator[Finding]:
    """Yield the settings that differ from their defaults, with their source, and never a secret."""
    for name, field in Settings.model_fields.items():
        value = getattr(settings, name)
        if value != field.default:
            said = "set" if name in SECRETS else repr(value)
            yield Finding("setting", Severity.SET, name, f"{said} (from {PREFIX}{name.upper()})")


def sharing(settings: Settings) -> Finding:
    """Return with which processes the limits of a key are shared, and where; or why they are not."""
    name = "limits"
    try:
        place = place_of(settings.share)
    except Unshared as error:
        text = f"not shared: {error}; each process learns the limits of a key alone"
        return Finding("sharing", Severity.NOTE if settings.share == AUTO else Severity.TRAP, name, text)
    if not place:
        return Finding("sharing", Severity.NOTE, name, "not shared: the setting is off; each process decides alone")
    if is_server(settings.share):
        return Finding("sharing", Severity.NOTE, name, f"shared by all processes with this setting, through {place}")
    text = f"shared by all processes of this user on this machine, through {place}; a container has its own"
    return Finding("sharing", Severity.NOTE, name, text)


def prices(today: date) -> Iterator[Finding]:
    """Yield the age of the price table, where it counts as old at the day `today`."""
    days = (today - PRICES_DATE).days
    if days > PRICES_MAX_AGE_DAYS:
        text = (
            f"the table of prices is from {PRICES_DATE}, {days} days ago: costs may be wrong, and newer models have no "
            "price; a newer tidegate, register_price or TIDEGATE_PRICES corrects it"
        )
        yield Finding("price", Severity.TRAP, "table", text)


def misspelt(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the variables that look like a setting but are none."""
    for name, meant in unknown_variables(environ).items():
        yield Finding("setting", Severity.TRAP, name, f"not read: there is no such setting; did you mean {meant}?")


def system(name: str = os.name) -> Iterator[Finding]:
    """Yield what tidegate does not do on this system; `name` is that of `os.name`."""
    if name != "posix":
        text = (
            "`tidegate run`, `status`, `serve` and shared limits need a POSIX system; import, wrap, install, pool and "
            "experiments do not"
        )
        yield Finding("python", Severity.NOTE, sys.platform, text)


def interpreter(installed: Installed) -> Iterator[Finding]:
    """Yield the facts of this Python: how it was started, what runs first in it, and which packages patch too."""
    if sys.flags.ignore_environment:
        text = "a Python started with this option ignores PYTHONPATH; `tidegate run` cannot govern it"
        yield Finding("python", Severity.TRAP, "-I" if sys.flags.isolated else "-E", text)
    if sys.flags.no_site:
        text = "a Python started with this option does not load site; `tidegate run` cannot govern it"
        yield Finding("python", Severity.TRAP, "-S", text)
    for folder in dict.fromkeys(filter(None, sys.path)):
        file = Path(folder) / "sitecustomize.py"
        if file.is_file():
            text = (
                f"{file} is executed at every start; `tidegate run` executes its own sitecustomize first, then this one"
            )
            yield Finding("python", Severity.NOTE, "sitecustomize", text)
    wrapt = installed.version("wrapt")
    if wrapt is not None and _before(_numbers(wrapt), _numbers(MIN_WRAPT_VERSION)):
        text = f"`uninstall()` cannot remove the patches with this version; install {MIN_WRAPT_VERSION} or newer"
        yield Finding("trap", Severity.TRAP, "wrapt", text, wrapt)
    for name, patched in PATCHERS.items():
        version = installed.version(name)
        if version is not None:
            text = (
                f"also patches {patched}, in either order; if it patches last, its times include the wait in the queue"
            )
            yield Finding("trap", Severity.NOTE, name, text, version)
    for command, text in NODE_COMMANDS.items():
        if shutil.which(command, path=os.environ.get("PATH")):
            yield Finding("trap", Severity.NOTE, command, text)


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def _before(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    width = max(len(one), len(other))
    return one + (0,) * (width - len(one)) < other + (0,) * (width - len(other))
