"""Each public name has a docstring, and so has each public method and property of a public class."""

from __future__ import annotations

import ast
import inspect
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

import tidegate
from tools.docs_site.api import PUBLIC, public_names


def undocumented(module: ModuleType, names: list[str]) -> list[str]:
    """The names without a docstring. A constant has it behind its assignment, a field in the text of its class."""
    found = []
    for name in names:
        value = getattr(module, name)
        if not (inspect.isclass(value) or inspect.isroutine(value)):
            found += [name] if name not in documented_constants() else []
            continue
        # The text that a dataclass makes of its signature is no docstring.
        if not inspect.getdoc(value) or (value.__doc__ or "").startswith(f"{value.__name__}("):
            found.append(name)
        members = vars(value).items() if inspect.isclass(value) else ()
        for part, member in members:
            raw = getattr(member, "__func__", member)
            is_code = inspect.isfunction(raw) or isinstance(raw, property)
            if is_code and not part.startswith("_") and not inspect.getdoc(getattr(value, part)):
                found.append(f"{name}.{part}")
    return found


@cache
def documented_constants() -> set[str]:
    """The names of the package that are assigned and have a text behind that."""
    found: set[str] = set()
    for path in Path(tidegate.__file__).parent.rglob("*.py"):
        body = ast.parse(path.read_text("utf-8")).body
        for node, after in pairwise(body):
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            is_text = isinstance(after, ast.Expr) and isinstance(getattr(after.value, "value", None), str)
            if isinstance(target, ast.Name) and is_text:
                found.add(target.id)
    return found


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_has_a_docstring(module: str) -> None:
    assert undocumented(import_module(module), public_names(module)) == []
