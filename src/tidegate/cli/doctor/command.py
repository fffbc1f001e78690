"""`tidegate doctor`: report of what tidegate governs in this Python or in a script, or of what answers mean.

A script is read and never run: its imports, those of the modules next to it, and their requirements count.
"""

from __future__ import annotations

import ast
import os
import sys
import tokenize
import warnings
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tidegate.cli.doctor import environment
from tidegate.cli.doctor.answers import explain
from tidegate.cli.doctor.environment import PACKAGES, STACKS, Finding, HttpStack, Installed, Severity, governs
from tidegate.core.safe_text import json_line
from tidegate.errors import ConfigurationError
from tidegate.providers import load_prices
from tidegate.settings import Settings
from tidegate.transports.imports import remedy

MAX_FILES = 500
"""Files that are read for one script. Chosen: more than the modules beside a usual script."""


class Unreadable(ValueError):
    """File that is not Python source. Its text states the fault."""


def read_script(path: Path, installed: Installed, settings: Settings, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield what a script imports, what that sends through, and its timeouts. Raise `Unreadable`."""
    names = _foreign(path)
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
    if "tidegate" not in names:
        text = f"does not import tidegate; start it with `tidegate run {start}`, or add `import tidegate.auto`"
        yield Finding("script", Severity.NOTE, path.name, text)
    unchecked = any(each.text.startswith(environment.NOT_INSTALLED) for each in found)
    if not has_way and not unchecked and all(each.verdict is not Severity.UNGOVERNED for each in found):
        text = f"no import of it sends through an HTTP stack that tidegate governs; {remedy(frozenset(), start)}"
        yield Finding("script", Severity.UNGOVERNED, path.name, text)


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


STYLES = {
    Severity.GOVERNED: "green",
    Severity.STRETCHED: "green",
    Severity.UNGOVERNED: "red",
    Severity.TRAP: "yellow",
    Severity.KEPT: "yellow",
}
NOTHING = Finding(
    "sdk", Severity.NOTE, "none", "nothing found that tidegate governs; install an SDK, such as `pip install openai`"
)
"""Finding where there is no other one."""

FAILED = 1
"""Exit code if something was found that cannot be governed, or a line that is no answer of a known provider."""


def doctor(
    script: Annotated[
        Path | None,
        typer.Argument(
            help="Check the imports of this script and of the modules next to it instead; nothing is executed."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    answers: Annotated[
        bool, typer.Option("--explain", help="Explain answers of providers, read as JSON lines from standard input.")
    ] = False,
) -> None:
    """List what tidegate governs in this Python, or in a script. The exit code is 1 if something is ungoverned.

    With `--explain`, a line of input is {"provider": name or null, "url": ..., "model": ..., "status": ..., "headers":
    {...}, "body": ..., "now": RFC 3339 or null}. For each answer, print one line of JSON, or on a terminal a table. The
    exit code is 1 if a line was not an answer, or named an unknown provider.
    """
    if answers:
        if script is not None:
            raise ConfigurationError("script", str(script), "--explain reads standard input, and no script")
        if not explain():
            raise typer.Exit(FAILED)
        return
    try:
        found = list(findings(script)) or [NOTHING]
        if script is None:
            found.append(environment.sharing(Settings.from_environment()))
    except Unreadable as error:
        raise ConfigurationError("script", str(script), str(error)) from None
    if as_json:
        for each in found:
            print(json_line(each.fields()))  # noqa: T201
    elif sys.stdout.isatty():
        Console().print(_table(found))
    else:
        for each in found:
            print(each.line())  # noqa: T201
    if any(each.verdict is Severity.UNGOVERNED for each in found):
        raise typer.Exit(FAILED)


def findings(script: Path | None) -> Iterator[Finding]:
    """Yield all findings.

    Raise `Unreadable` if the script cannot be read as Python source, and `ConfigurationError` for an unusable setting.
    """
    settings, installed = Settings.from_environment(), Installed()
    if settings.prices is not None:
        load_prices(settings.prices)
    if script is None:
        yield from environment.system()
        yield from environment.interpreter(installed)
        yield from environment.stacks(installed)
        yield from environment.sdks(installed)
        yield from environment.clocks(installed, settings, os.environ)
        yield from environment.hosts(settings, os.environ)
    else:
        yield from read_script(script, installed, settings, os.environ)
    yield from environment.prices(datetime.now(UTC).date())
    yield from environment.in_force(settings)
    yield from environment.misspelt(os.environ)


def _table(found: Iterable[Finding]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("section")
    table.add_column("verdict", no_wrap=True)
    table.add_column("name", overflow="fold")
    table.add_column("finding", overflow="fold")
    section = ""
    for each in found:
        name = " ".join(filter(None, (each.name, each.version)))
        verdict = Text(str(each.verdict), style=STYLES.get(each.verdict, ""))
        table.add_row(each.section if each.section != section else "", verdict, Text(name), Text(each.text))
        section = each.section
    return table
