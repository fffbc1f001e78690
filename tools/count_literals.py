"""Count of the numeric literals in the decision code: the numbers that a person chose instead of the data.

Run `python tools/count_literals.py [path …]`; without paths it counts `src/tidegate/core`. A line for each file gives
the literals and the module constants that hold one. Not counted: 0, 1, 2, the factors between units, and in a folder
the modules about texts.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import NamedTuple

CORE = Path(__file__).parents[1] / "src" / "tidegate" / "core"

FACTORS = frozenset({0.0, 1.0, 2.0, 60.0, 1000.0, 3600.0, 86_400.0, 1e-3, 1e6, 1e-6, 1e9, 1e-9})
"""Numbers that decide nothing: identities, a double, seconds in larger units, milli, micro and nano."""

TEXTS = frozenset({"held_time.py", "safe_text.py", "wait_text.py"})
"""Modules of `CORE` about texts, whose numbers are lengths of patterns and forms of words: no call waits for them."""


class LiteralCount(NamedTuple):
    """Numeric literals of one file, and the module constants that are made of one."""

    literals: int
    constants: int


def count(source: str) -> LiteralCount:
    """Count the literals of a module."""
    tree = ast.parse(source)
    literals = sum(_chosen(node) for node in ast.walk(tree))
    constants = sum(
        any(_chosen(node) for node in ast.walk(statement))
        for statement in tree.body
        if isinstance(statement, ast.Assign | ast.AnnAssign)
    )
    return LiteralCount(literals, constants)


def _chosen(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, int | float)
        and not isinstance(node.value, bool)
        and float(node.value) not in FACTORS
    )


def _deciding(folder: Path) -> list[Path]:
    return sorted(file for file in folder.glob("*.py") if file.name not in TEXTS)


def main(paths: list[str]) -> int:
    """Print a line for each file and their sum; return 0."""
    given = [Path(path) for path in paths] or [CORE]
    files = [file for path in given for file in (_deciding(path) if path.is_dir() else [path])]
    counts = [(file, count(file.read_text())) for file in files]
    for file, found in counts:
        if found.literals:
            print(f"{file.name:28} {found.literals:4} literals  {found.constants:4} constants")
    total = LiteralCount(*(sum(column) for column in zip(*(found for _, found in counts), strict=True)))
    print(f"{'all':28} {total.literals:4} literals  {total.constants:4} constants")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
