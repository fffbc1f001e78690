"""Packages and settings of this Python environment, and the part of them that tidegate governs.

The requirements in the metadata of a distribution lead to the HTTP stacks that send its calls. Each function yields
`Finding`s.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from enum import StrEnum
from importlib import metadata
from typing import Any, NamedTuple

from tidegate.providers import BASE_URL_VARIABLES, PRICES_DATE, PRICES_MAX_AGE_DAYS
from tidegate.settings import PREFIX, Settings, unknown_variables
from tidegate.shared_log import AUTO, is_server, place_of
from tidegate.shared_log.carrier import Unshared
from tidegate.transports import framework_timeouts
from tidegate.transports.framework_timeouts import TIMEOUTS, FrameworkTimeout, shown
from tidegate.transports.imports import AT_OWN_HOSTS, NOWHERE_ELSE, SHARED, UNGOVERNABLE
from tidegate.transports.install import host_of


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
    """HTTP stack that is governed: `point` is where each attempt passes; tested from `least` to before `below`."""

    point: str
    least: str
    below: str


STACKS = {
    "httpx": HttpStack("Client.send, AsyncClient.send", "0.23", "1"),
    "httpx2": HttpStack("Client.send, AsyncClient.send", "2", "3"),
    "requests": HttpStack("Session.send", "2.20", "3"),
    "aiohttp": HttpStack("ClientSession._request", "3.8", "4"),
    "botocore": HttpStack("Endpoint, before signing", "1.29", "2"),
    "aiobotocore": HttpStack("AioEndpoint, before signing", "2.13", "4"),
}
"""Governed stacks by their distribution, which is also the name of their module."""

OTHERS = {distribution: module for module, distribution in UNGOVERNABLE.items()}
"""Distributions that send in their own way, each with its module."""

SDKS = (
    "openai", "anthropic", "google-genai", "groq", "together", "cohere", "mistralai", "ollama", "huggingface-hub",
    "replicate", "boto3", "aioboto3", "xai-sdk", "google-cloud-aiplatform", "google-generativeai", "dashscope",
    "writer-sdk", "litellm", "langchain-openai", "langchain-anthropic", "instructor", "pydantic-ai-slim",
    "openai-agents", "inspect-ai", "lm-eval", "deepeval", "ragas", "arize-phoenix-evals", "arize-phoenix-client",
    "dspy", "mlflow", "llama-index-llms-openai", "llama-index-workflows", "haystack-ai",
)  # fmt: skip
"""Distributions of SDKs and frameworks that the report of an environment lists where they are installed."""

BY_GRPC = frozenset({"xai-sdk", "google-cloud-aiplatform", "google-generativeai"})
"""SDKs that send by gRPC, whatever else they require (xai-sdk 1.21.0, google-cloud-aiplatform 2.7.0 `initializer.py`,
google-generativeai 0.8.6 `client.py`)."""

NOTES = {
    "replicate": "its RetryTransport repeats GET requests itself; predictions are POST requests, and each passes the "
    "queue",
    "google-cloud-aiplatform": 'vertexai.init(api_transport="rest") sends through requests, vertexai.Client through '
    "google-genai",
    "google-generativeai": 'with configure(transport="rest") it sends through requests',
    **dict.fromkeys(AT_OWN_HOSTS.values(), NOWHERE_ELSE),
    "openai-agents": "its websocket transport and realtime sessions cannot be governed; the HTTP transport is the "
    "default",
}
"""Facts about single SDKs that their metadata do not have."""

OF_NO_MATTER = "cannot be governed; this matters only if LLM calls are sent through it"

SECRETS = frozenset({"digest_key", "share"})
"""Settings whose values are hidden: the report only states that they are set."""


class Installed:
    """Distributions of this Python, by their metadata alone: nothing is imported."""

    def __init__(self) -> None:
        self._versions: dict[str, str | None] = {}

    def version(self, distribution: str) -> str | None:
        if distribution not in self._versions:
            try:
                self._versions[distribution] = metadata.version(distribution)
            except metadata.PackageNotFoundError:
                self._versions[distribution] = None
        return self._versions[distribution]

    def ways_out(self, distribution: str) -> list[str]:
        """Return the stacks to which the requirements of a distribution lead: the governed ones, else the others."""
        out: dict[str, None] = {}
        waiting, seen = [distribution], {distribution}
        while waiting:
            name = waiting.pop(0)
            for other in ("grpcio",) if name in BY_GRPC else _required(name):
                if other in seen or self.version(other) is None:
                    continue
                seen.add(other)
                if other in STACKS or other in OTHERS:
                    out[other] = None
                else:
                    waiting.append(other)
        return [name for name in out if name in STACKS] or list(out)


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


def stacks(installed: Installed, names: Iterable[str] = (*STACKS, *OTHERS)) -> Iterator[Finding]:
    """Yield the installed HTTP stacks among `names`, but none of the ungoverned ones with many other uses."""
    for name in names:
        version = installed.version(name)
        if version is None or OTHERS.get(name) in SHARED:
            continue
        if name in STACKS:
            yield Finding("stack", Severity.GOVERNED, name, _patched(STACKS[name], version), version)
        else:
            yield Finding("stack", Severity.NOTE, name, OF_NO_MATTER, version)


def _patched(stack: HttpStack, version: str) -> str:
    text = f"patched at {stack.point}"
    if not _numbers(stack.least) <= _numbers(version) < _numbers(stack.below):
        text += f"; this version is not tested (tested: {stack.least} to before {stack.below})"
    return text


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def sdk(installed: Installed, name: str) -> Finding:
    """Return what an installed distribution sends through."""
    out, version = installed.ways_out(name), installed.version(name) or ""
    names = ", ".join(f"{each} {installed.version(each)}" for each in out)
    if not out:
        verdict, text = Severity.NOTE, "sends no call itself: its metadata requires no known HTTP stack"
    elif out[0] in STACKS:
        verdict, text = Severity.GOVERNED, f"sends through {names}"
    else:
        verdict, text = Severity.UNGOVERNED, f"sends through {names}, which cannot be governed"
    return Finding("sdk", verdict, name, f"{text}; {NOTES[name]}" if name in NOTES else text, version)


def sdks(installed: Installed) -> Iterator[Finding]:
    """Yield the known SDKs and frameworks that are installed."""
    found = [sdk(installed, name) for name in SDKS if installed.version(name) is not None]
    text = (
        f"no known SDK or framework is installed in this Python ({sys.executable}); for another Python, run its own "
        "`tidegate doctor`"
    )
    yield from found or [Finding("sdk", Severity.NOTE, "none", text)]


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
