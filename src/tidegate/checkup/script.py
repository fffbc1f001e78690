"""The calls of a script and their settings, as far as they can be read without running it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from tidegate.checkup import environment, hosts
from tidegate.checkup.environment import Installed
from tidegate.checkup.finding import Finding, Verdict
from tidegate.checkup.habits import HABITS
from tidegate.checkup.packages import PACKAGES, STACKS, Package, Stack
from tidegate.checkup.source import Module, modules
from tidegate.settings import Settings

ENTRANCES = frozenset({"tidegate.wrap", "tidegate.install", "tidegate.registry", "tidegate.RateLimitRegistry"})


def script(path: Path, installed: Installed, settings: Settings, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Return the known SDKs and stacks that it imports, its clocks, hosts and habits by line; raise `Unreadable`."""
    read = list(modules(path))
    names = _foreign(read, path.parent)
    used = [package for package in PACKAGES if any(module in names for module in package.modules)]
    direct = [stack for stack in STACKS if stack.module in names]
    yield from environment.sdks(installed, used)
    yield from environment.stacks(installed, _reached(installed, used, direct))
    frameworks = frozenset(package.distribution for package in used)
    yield from environment.clocks(installed, settings, environ, frameworks)
    yield from hosts.in_script(read, path.parent, settings)
    yield _entrance(path, read)
    if not used and not direct:
        yield Finding("script", Verdict.NOTE, path.name, "imports no SDK and no HTTP stack that is known here")
        return
    for module in read:
        yield from habits(module, path.parent)


def habits(module: Module, folder: Path) -> Iterator[Finding]:
    """The lines of one file that are worth a word, in their order."""
    name = str(module.path.relative_to(folder)) if module.path.is_relative_to(folder) else str(module.path)
    found = [
        (getattr(node, "lineno", 0), number, habit)
        for node in ast.walk(module.tree)
        for number, habit in enumerate(HABITS)
        if habit.found(module, node)
    ]
    for line, _, habit in sorted(found, key=lambda each: each[:2]):
        yield Finding("script", habit.verdict, habit.name, habit.text, place=f"{name}:{line}")


def _reached(installed: Installed, used: list[Package], direct: list[Stack]) -> list[Stack]:
    reached = {stack.distribution for package in used for stack in installed.ways_out(package)}
    return [stack for stack in STACKS if stack in direct or stack.distribution in reached]


def _foreign(read: list[Module], folder: Path) -> frozenset[str]:
    """Every module that is imported, with the packages it is in; what lies beside the script is not foreign."""
    found = set()
    for module in read:
        for name in module.imports:
            parts = name.split(".")
            if (folder / f"{parts[0]}.py").is_file() or (folder / parts[0] / "__init__.py").is_file():
                continue
            found |= {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
    return frozenset(found)


def _entrance(path: Path, read: list[Module]) -> Finding:
    for module in read:
        lines = {"import tidegate.auto": module.imports.get("tidegate.auto")}
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and module.dotted(node.func) in ENTRANCES:
                lines.setdefault(module.dotted(node.func), node.lineno)
        for name, line in lines.items():
            if line is not None:
                return Finding("script", Verdict.NOTE, name, "puts tidegate on", place=f"{module.path.name}:{line}")
    text = f"does not put tidegate on by itself: tidegate run python {path}, or add `import tidegate.auto`"
    return Finding("script", Verdict.NOTE, path.name, text)
