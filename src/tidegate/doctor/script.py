"""Check of a script that is not run: what its imports, and their requirements, send calls through."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from tidegate.doctor import environment, hosts
from tidegate.doctor.environment import PACKAGES, STACKS, Finding, HttpStack, Installed, Severity, governs
from tidegate.doctor.source import SourceModule, modules
from tidegate.settings import Settings
from tidegate.transports.other_stacks import remedy

SOCKET_CALLS = frozenset({"realtime.connect", "responses.connect", "live.connect"})
"""Calls that open a session over a websocket (openai 3.52.0 resources/realtime and resources/responses, google-genai
3.4.0 live.py)."""

VOICE_AGENTS = frozenset({"agents.realtime.RealtimeRunner"})
"""Classes that hold such a session (openai-agents 0.24.0)."""

ENTRY_POINTS = frozenset({"tidegate.wrap", "tidegate.install", "tidegate.registry", "tidegate.RateLimitRegistry"})


def script(path: Path, installed: Installed, settings: Settings, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield what a script imports and what that sends through, its timeouts, hosts and websocket sessions.

    Raise `Unreadable`.
    """
    read = list(modules(path))
    names = _foreign(read, path.parent)
    used = [package for package in PACKAGES if any(module in names for module in package.modules)]
    known = frozenset(package.distribution for package in used)
    found = [*environment.sdks(installed, used), *_others(installed, names, known)]
    direct = [stack for stack in STACKS if stack.module in names]
    reached = {each.distribution for package in used for each in installed.ways_out(package)}
    found += environment.stacks(
        installed, [each for each in STACKS if governs(each) and (each in direct or each.distribution in reached)]
    )
    has_way = any(each.verdict is Severity.GOVERNED for each in found)
    start = f"python {path}"
    found += [_ungovernable(each, has_way, start) for each in direct if not governs(each)]
    yield from found
    yield from environment.clocks(installed, settings, environ, known)
    yield from hosts.in_script(read, path.parent, settings)
    yield _entry_point(path, read)
    unchecked = any(each.text.startswith(environment.NOT_INSTALLED) for each in found)
    if not has_way and not unchecked and all(each.verdict is not Severity.UNGOVERNED for each in found):
        text = f"no import of it sends through an HTTP stack that tidegate governs; {remedy(frozenset(), start)}"
        yield Finding("script", Severity.UNGOVERNED, path.name, text)
    for module in read:
        yield from _sessions(module, path.parent)


def _others(installed: Installed, names: frozenset[str], known: frozenset[str]) -> Iterator[Finding]:
    """Yield the imported distributions without a row whose requirements lead to an HTTP stack."""
    packages = {each.distribution for each in PACKAGES} | {each.distribution for each in STACKS}
    tops = {name for name in names if name.isidentifier() and name not in sys.stdlib_module_names}
    owners = metadata.packages_distributions()
    for top in sorted(tops):
        owned = [*dict.fromkeys(owners.get(top, [top]))]
        # A namespace of many distributions does not tell which one is meant.
        distribution = environment.normal(owned[0])
        version = installed.version(distribution)
        if len(owned) > 1 or version is None or distribution in packages | known | {"tidegate"}:
            continue
        out = installed.reached(distribution)
        governed = ", ".join(each.distribution for each in out if governs(each))
        others = ", ".join(each.distribution for each in out if not governs(each))
        if governed:
            yield Finding("sdk", Severity.GOVERNED, distribution, f"its requirements send through {governed}", version)
        elif others:
            text = f"its requirements send through {others}, which cannot be governed"
            yield Finding("sdk", Severity.UNGOVERNED, distribution, text, version)


def _ungovernable(stack: HttpStack, has_way: bool, start: str) -> Finding:
    if stack.shared and has_way:
        text = "cannot be governed; this matters only if LLM calls are sent through it"
        return Finding("stack", Severity.NOTE, stack.distribution, text)
    text = f"cannot be governed; calls through it bypass tidegate; {remedy(frozenset({stack.module}), start)}"
    return Finding("stack", Severity.UNGOVERNED, stack.distribution, text)


def _foreign(read: list[SourceModule], folder: Path) -> frozenset[str]:
    """Return every imported module and its parent packages, except modules next to the script."""
    found = set()
    for module in read:
        for name in module.imports:
            parts = name.split(".")
            if (folder / f"{parts[0]}.py").is_file() or (folder / parts[0] / "__init__.py").is_file():
                continue
            found |= {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
    return frozenset(found)


def _sessions(module: SourceModule, folder: Path) -> Iterator[Finding]:
    """Yield the lines that open a session over a websocket."""
    name = str(module.path.relative_to(folder)) if module.path.is_relative_to(folder) else str(module.path)
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and _opens_session(module, node):
            text = "a session over a websocket cannot be governed; its calls bypass tidegate"
            yield Finding("script", Severity.UNGOVERNED, "websocket session", text, place=f"{name}:{node.lineno}")


def _opens_session(module: SourceModule, node: ast.Call) -> bool:
    full = module.dotted(node.func)
    arguments = [*node.args[:1], *(keyword.value for keyword in node.keywords)]
    if full in VOICE_AGENTS or any(hosts.is_model_socket(module.literal(each)) for each in arguments):
        return True
    given = {keyword.arg: keyword.value for keyword in node.keywords}
    for value in (given.get("transport"), *(node.args if full.endswith("responses_transport") else ())):
        if isinstance(value, ast.Constant) and value.value == "websocket":
            return True
    wanted = given.get("use_responses_websocket")
    if isinstance(wanted, ast.Constant) and wanted.value is True:
        return True
    if not isinstance(node.func, ast.Attribute):
        return False
    held = node.func.value
    before = held.attr if isinstance(held, ast.Attribute) else held.id if isinstance(held, ast.Name) else ""
    return f"{before}.{node.func.attr}" in SOCKET_CALLS


def _entry_point(path: Path, read: list[SourceModule]) -> Finding:
    for module in read:
        lines = {"import tidegate.auto": module.imports.get("tidegate.auto")}
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and module.dotted(node.func) in ENTRY_POINTS:
                lines.setdefault(module.dotted(node.func), node.lineno)
        for name, line in lines.items():
            if line is not None:
                return Finding("script", Severity.NOTE, name, "activates tidegate", place=f"{module.path.name}:{line}")
    text = f"does not activate tidegate; start it with `tidegate run python {path}`, or add `import tidegate.auto`"
    return Finding("script", Severity.NOTE, path.name, text)
