"""Source of a script and of the modules next to it: their imports and names. Nothing is run."""

from __future__ import annotations

import ast
import tokenize
import warnings
from collections.abc import Iterator
from pathlib import Path

MAX_FILES = 500
"""Maximum files that are read for one script; further modules are ignored. Raising it reads a large project for longer.
Chosen: more than the modules beside a usual script."""


class Unreadable(ValueError):
    """File that is not Python source. Its text states the fault."""


DEFAULTS = frozenset({"os.environ.get", "os.getenv"})
"""Functions whose second argument, or `default`, is the value in use where the variable is not set."""


class SourceModule:
    """One source file: its syntax tree, the full names behind its names, and the texts of its constants."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with tokenize.open(path) as file, warnings.catch_warnings():
                # Warnings of the parser, as for "\d", are for the user who runs the script.
                warnings.simplefilter("ignore")
                self.tree = ast.parse(file.read(), str(path))
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise Unreadable(_why(error)) from None
        self.names: dict[str, str] = {}
        self.imports: dict[str, int] = {}
        self._constants: dict[str, ast.expr | None] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                self._import(node)
            elif isinstance(node, ast.ImportFrom):
                self._import_from(node)
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                self._assign(node)

    def _import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.imports.setdefault(alias.name, node.lineno)
            top = alias.name.partition(".")[0]
            self.names[alias.asname or top] = alias.name if alias.asname else top

    def _import_from(self, node: ast.ImportFrom) -> None:
        home = "." * node.level + (node.module or "")
        self.imports.setdefault(home, node.lineno)
        for alias in node.names:
            full = f"{home}{'' if home.endswith('.') else '.'}{alias.name}"
            self.imports.setdefault(full, node.lineno)
            self.names[alias.asname or alias.name] = full

    def _assign(self, node: ast.Assign | ast.AnnAssign) -> None:
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Name):
                # A name with two values has no known one.
                self._constants[target.id] = node.value if target.id not in self._constants else None

    def literal(self, node: ast.expr | None, seen: frozenset[str] = frozenset()) -> str:
        """Return the text of an expression if the source contains it, else "".

        It may be the value of a name that is assigned once, or the default of an environment variable. Each expression
        in an f-string is replaced by `x`.
        """
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str) else ""
        if isinstance(node, ast.JoinedStr):
            return "".join(self.literal(part) if isinstance(part, ast.Constant) else "x" for part in node.values)
        if isinstance(node, ast.Name) and node.id not in seen:
            return self.literal(self._constants.get(node.id), seen | {node.id})
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
            return next(filter(None, (self.literal(value, seen) for value in node.values)), "")
        if isinstance(node, ast.Call) and self.dotted(node.func) in DEFAULTS:
            named = next((keyword.value for keyword in node.keywords if keyword.arg == "default"), None)
            return self.literal(node.args[1] if len(node.args) > 1 else named, seen)
        return ""

    def dotted(self, node: ast.AST) -> str:
        """Return the full name of an expression: `urllib3.util.Retry` for `Retry` if it was imported so; else ""."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            before = self.dotted(node.value)
            return f"{before}.{node.attr}" if before else ""
        return ""


def modules(script: Path) -> Iterator[SourceModule]:
    """Yield the script, then the modules next to it that it imports, recursively. Raise `Unreadable` for the script."""
    first = SourceModule(script)
    folder = script.parent
    waiting, seen = [first], {script.resolve()}
    while waiting:
        module = waiting.pop(0)
        yield module
        for path in _beside(module, folder):
            if path.resolve() in seen or len(seen) >= MAX_FILES:
                continue
            seen.add(path.resolve())
            try:
                waiting.append(SourceModule(path))
            except Unreadable:
                continue


def _beside(module: SourceModule, folder: Path) -> Iterator[Path]:
    for name in module.imports:
        level = len(name) - len(name.lstrip("."))
        home = module.path.parents[level - 1] if 0 < level <= len(module.path.parents) else folder
        parts = [part for part in name.split(".") if part]
        for end in range(1, len(parts) + 1):
            place = home.joinpath(*parts[:end])
            for path in (place.with_name(place.name + ".py"), place / "__init__.py"):
                if path.is_file():
                    yield path


def _why(error: Exception) -> str:
    if isinstance(error, SyntaxError):
        return f"it is not Python source (line {error.lineno or 0}: {error.msg})"
    if isinstance(error, OSError):
        return f"it cannot be read ({error.strerror or error})"
    return f"it is not Python source ({error or 'too deeply nested'})"
