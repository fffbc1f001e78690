"""Imports of a script, the stacks that they send through, and its timeouts. The script is read and never run."""

from __future__ import annotations

import ast
import sys
import tokenize
import warnings
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from tidegate.cli.doctor import environment
from tidegate.cli.doctor.environment import OTHERS, STACKS, Finding, Installed, Severity
from tidegate.settings import Settings
from tidegate.transports.imports import SHARED, UNGOVERNABLE, remedy

MAX_FILES = 500
"""Files that are read for one script. Chosen: more than the modules beside a usual script."""


class Unreadable(ValueError):
    """File that is not Python source. Its text states the fault."""


def read_script(path: Path, installed: Installed, settings: Settings, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield what a script imports, what that sends through, and its timeouts. Raise `Unreadable`."""
    names, start = _foreign(path), f"python {path}"
    used, missing = _distributions(names)
    sent = [environment.sdk(installed, name) for name in used if name not in STACKS and name not in OTHERS]
    found = [each for each in sent if each.verdict is not Severity.NOTE or each.name in environment.SDKS]
    reached = {name for each in used for name in installed.ways_out(each)}
    found += environment.stacks(installed, [name for name in STACKS if name in reached or name in used])
    has_way = any(each.verdict is Severity.GOVERNED for each in found)
    found += [_ungovernable(module, has_way, start) for module in UNGOVERNABLE if module in names]
    text = "not checked: it is not installed in this Python; run the doctor of the Python that has it"
    found += [Finding("sdk", Severity.NOTE, name, text) for name in missing]
    yield from found
    yield from environment.clocks(installed, settings, environ, frozenset(used))
    if "tidegate" not in names:
        text = f"does not import tidegate; start it with `tidegate run {start}`, or add `import tidegate.auto`"
        yield Finding("script", Severity.NOTE, path.name, text)
    if not has_way and not missing and all(each.verdict is not Severity.UNGOVERNED for each in found):
        text = f"no import of it sends through an HTTP stack that tidegate governs; {remedy(frozenset(), start)}"
        yield Finding("script", Severity.UNGOVERNED, path.name, text)


def _distributions(names: frozenset[str]) -> tuple[list[str], list[str]]:
    """Return the installed distributions of imported modules, and the imported packages that are not installed."""
    owners = metadata.packages_distributions()
    found: dict[str, None] = {}
    missing = []
    for top in sorted({name for name in names if name.isidentifier()} - sys.stdlib_module_names - {"tidegate"}):
        owned = list(dict.fromkeys(owners.get(top, ())))
        if not owned and top not in UNGOVERNABLE:
            missing.append(top)
        if len(owned) > 1:
            # A namespace of several distributions: only those count whose files have an imported module.
            inner = [name.replace(".", "/") for name in names if name.startswith(f"{top}.")]
            owned = [each for each in owned if _has_any(each, inner)]
        found |= dict.fromkeys(map(environment.normal, owned))
    return list(found), missing


def _has_any(distribution: str, modules: list[str]) -> bool:
    files = [str(file) for file in metadata.files(distribution) or ()]
    return any(file.startswith((f"{module}/", f"{module}.py")) for module in modules for file in files)


def _ungovernable(module: str, has_way: bool, start: str) -> Finding:
    name = UNGOVERNABLE[module]
    if module in SHARED and has_way:
        return Finding("stack", Severity.NOTE, name, environment.OF_NO_MATTER)
    text = f"cannot be governed; calls through it bypass tidegate; {remedy(frozenset({module}), start)}"
    return Finding("stack", Severity.UNGOVERNED, name, text)


def _foreign(script: Path) -> frozenset[str]:
    """Return every module, with its parent packages, that a script or a module beside it imports from elsewhere."""
    waiting, seen, found = [(script, _imports(script))], {script.resolve()}, set()
    while waiting:
        file, names = waiting.pop(0)
        for name in names:
            beside = _beside(name, file, script.parent)
            if not name.startswith(".") and not beside:
                parts = name.split(".")
                found |= {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
            for path in beside:
                if path.resolve() in seen or len(seen) >= MAX_FILES:
                    continue
                seen.add(path.resolve())
                try:
                    waiting.append((path, _imports(path)))
                except Unreadable:
                    continue
    return frozenset(found)


def _beside(name: str, file: Path, folder: Path) -> list[Path]:
    """Return the files of a module and of its parent packages, if they are beside the script."""
    level = len(name) - len(name.lstrip("."))
    home = file.parents[level - 1] if 0 < level <= len(file.parents) else folder
    parts = [part for part in name.split(".") if part]
    places = [home.joinpath(*parts[:end]) for end in range(1, len(parts) + 1)]
    return [
        path
        for place in places
        for path in (place.with_name(place.name + ".py"), place / "__init__.py")
        if path.is_file()
    ]


def _imports(path: Path) -> dict[str, None]:
    """Return the modules that a file imports, and what it imports from them, in their order. Raise `Unreadable`."""
    try:
        with tokenize.open(path) as file, warnings.catch_warnings():
            # Warnings of the parser, as for "\d", are for the user who runs the script.
            warnings.simplefilter("ignore")
            tree = ast.parse(file.read(), str(path))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Unreadable(_why(error)) from None
    found: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= dict.fromkeys(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            home = "." * node.level + (node.module or "")
            found[home] = None
            found |= dict.fromkeys(f"{home}{'' if home.endswith('.') else '.'}{each.name}" for each in node.names)
    return found


def _why(error: Exception) -> str:
    if isinstance(error, SyntaxError):
        return f"it is not Python source (line {error.lineno or 0}: {error.msg})"
    if isinstance(error, OSError):
        return f"it cannot be read ({error.strerror or error})"
    return f"it is not Python source ({error or 'too deeply nested'})"
