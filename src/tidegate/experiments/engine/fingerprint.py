"""Fingerprint of a function's code and prompts, by which a change since the last run is noticed.

Theory of operation. The fingerprint is a digest of source texts without comments: that of the function, and of what it
names in its own file and in the files beside and below it. Texts count by their values, so a prompt counts wherever it
stands. Any other variable counts by the lines that assign it: its value may change while the program runs. Credentials
are removed from values. Code of installed packages does not count.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
import textwrap
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import blake2b
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from tidegate.admission.redaction import clean

MAX_PARTS = 500
"""Functions, classes and variables that one fingerprint covers. Chosen: a task uses some dozens."""

INSTALLED = frozenset({"site-packages", "dist-packages"})
"""Folders of installed packages."""

PLAIN = (str, bytes, int, float, bool, type(None))


def fingerprint(function: Callable[..., Any]) -> str | None:
    """Return the fingerprint of a function, as hexadecimal digits; None where its source is not known."""
    try:
        parts = _Parts(function)
    except Exception:
        # A source that cannot be read must not keep an experiment from running.
        return None
    if not parts.has_source:
        return None
    return blake2b(json.dumps(sorted(parts.texts.items())).encode(), digest_size=8).hexdigest()


class _Parts:
    """Texts of everything that a function uses, by name."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.texts: dict[str, str] = {}
        self.has_source = False
        self._seen: set[int] = set()
        self._assigned: dict[str, dict[str, str]] = {}
        first = _implementation(function)
        self._module = first.__module__
        file = _file(first)
        self._folder = file.parent if file is not None and not INSTALLED & set(file.parts) else None
        self._left: list[tuple[str, Any]] = [("", function)]
        while self._left and len(self._seen) < MAX_PARTS:
            self._add(*self._left.pop())

    def _add(self, name: str, value: Any) -> None:
        if isinstance(value, PLAIN):
            self.texts[name] = clean(repr(value))
            return
        if isinstance(value, tuple | frozenset):
            each = value if isinstance(value, tuple) else sorted(value, key=repr)
            self._left += [(f"{name}[{index}]", one) for index, one in enumerate(each)]
            return
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        if isinstance(value, partial):
            given = [*value.args, *(value.keywords[key] for key in sorted(value.keywords))]
            self._left += [(f"{name}({index})", one) for index, one in enumerate(given) if isinstance(one, PLAIN)]
            self._left.append((name, value.func))
        elif isinstance(value, MethodType):
            self._left += [(name, value.__func__), (f"{name} self", value.__self__)]
        elif isinstance(value, FunctionType):
            self._add_function(name, value)
        elif isinstance(value, type):
            self._add_class(name, value)
        elif self._is_own(type(value)):
            self._left.append((f"{name} type", type(value)))
            settings = vars(value) if hasattr(value, "__dict__") else {}
            self._left += [(f"{name}.{key}", one) for key, one in settings.items() if isinstance(one, str)]

    def _add_function(self, name: str, function: FunctionType) -> None:
        if not self._is_own(function):
            return
        try:
            self.texts[name] = _source(function)
        except OSError:
            # A generated one, such as the methods of a dataclass.
            return
        self.has_source = True
        if hasattr(function, "__wrapped__"):
            self._left.append((f"{name} wrapped", function.__wrapped__))
        names = set(_names(function.__code__))
        # A number that functions change is a count, and no setting.
        kinds = (str, bytes, FunctionType, type, partial, *(() if "nonlocal " in self.texts[name] else (*PLAIN, tuple)))
        for free, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:
                continue
            if isinstance(value, kinds):
                self._left.append((f"{name} {free}", value))
        for used in sorted(names & function.__globals__.keys()):
            self._add_global(used, function.__globals__[used], function, names)

    def _add_global(self, used: str, value: Any, function: FunctionType, names: set[str]) -> None:
        # The name of the first module may have its path in it.
        where = used if function.__module__ == self._module else f"{function.__module__}.{used}"
        if isinstance(value, ModuleType):
            if self._is_own(value):
                members = sorted(names & vars(value).keys())
                self._left += [(f"{value.__name__}.{each}", vars(value)[each]) for each in members]
        elif isinstance(value, (str, bytes, FunctionType, type, partial, MethodType)):
            self._left.append((where, value))
        elif (assigned := self._assignments(function).get(used)) is not None:
            self.texts[where] = assigned
            if not isinstance(value, (*PLAIN, tuple, frozenset)):
                self._left.append((f"{where} value", value))
        elif isinstance(value, (*PLAIN, tuple, frozenset)):
            # Imported from another module.
            self._left.append((where, value))

    def _add_class(self, name: str, made: type) -> None:
        if not self._is_own(made):
            return
        self.texts[name] = _source(made)
        self.has_source = True
        for key, member in vars(made).items():
            inner = getattr(member, "__func__", member)
            if isinstance(inner, FunctionType) and inner.__module__ == made.__module__:
                self._left.append((f"{name}.{key}", inner))
        self._left += [(f"{name} base", base) for base in made.__bases__ if base is not object]

    def _assignments(self, function: FunctionType) -> dict[str, str]:
        """Return the source of the assignments of a function's module, by the name of the variable."""
        known = self._assigned.get(function.__module__)
        if known is None:
            known = self._assigned[function.__module__] = dict(_assignments(_module_source(function)))
        return known

    def _is_own(self, value: Any) -> bool:
        """Return whether an object's source belongs to the program that the function is part of."""
        if getattr(value, "__module__", None) == self._module:
            return True
        file = _file(value)
        return (
            self._folder is not None
            and file is not None
            and file.is_relative_to(self._folder)
            and not INSTALLED & set(file.relative_to(self._folder).parts)
            and not file.is_relative_to(sys.prefix)
        )


def _implementation(function: Any) -> Any:
    while isinstance(function, partial):
        function = function.func
    if isinstance(function, FunctionType | MethodType | type):
        return function
    return type(function)


def _file(value: Any) -> Path | None:
    try:
        found = inspect.getsourcefile(value)
    except TypeError:
        return None
    return Path(found).resolve() if found is not None else None


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _names(each)


def _source(value: Any) -> str:
    """Return a source without comments; of a lambda that is alone in its statement, only the lambda."""
    text = textwrap.dedent(inspect.getsource(value))
    try:
        tree: ast.AST = ast.parse(text)
    except SyntaxError:
        # A lambda in the middle of a statement of several lines.
        return text
    if getattr(value, "__name__", "") == "<lambda>":
        found = [node for node in ast.walk(tree) if isinstance(node, ast.Lambda)]
        tree = found[0] if len(found) == 1 else tree
    return ast.unparse(tree)


def _module_source(function: FunctionType) -> str:
    module = sys.modules.get(function.__module__)
    try:
        return inspect.getsource(module if module is not None else function.__code__)
    except (OSError, TypeError):
        return ""


def _assignments(source: str) -> Iterator[tuple[str, str]]:
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return
    found: dict[str, list[str]] = {}
    for node in tree.body:
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign | ast.AugAssign):
            targets = [node.target]
        for target in targets:
            for each in ast.walk(target):
                if isinstance(each, ast.Name):
                    found.setdefault(each.id, []).append(ast.unparse(node))
    for name, texts in found.items():
        yield name, "\n".join(texts)
