"""Lint of prose and structure: plain English, unique class names, file sizes, import cycles.

Run `python tools/check_prose.py`, or with paths below `src` and `docs` to check those alone. Each finding is
`file:line: text`. The bounds are those of CONTRIBUTING.md; the exit code is 1 where one is missed.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "tidegate"

ODD = re.compile(
    r"\b(nobody|somebody|whoever|anybody|anew|meanwhile|besides|lately|wholly|so many|so long|at the most|at the least"
    r"|of its own|comes? to|came to|told|tells?|heard of|let in|goes on|went on|whom)\b",
    re.IGNORECASE,
)
"""Words and phrases that slow a reader down. Other code bases have at most 0.2 of them in 1,000 words."""

MOST_ODD = 1.0
"""Odd words in 1,000 words of docstrings, comments and pages. Raising it lets the riddles back in."""

FREE_RELATIVE = re.compile(r"(What|Who|Whose|Which|Whether|How|Whom|Whatever|Whoever)\b")

MOST_FREE_RELATIVE = 0.02
"""Share of first lines that begin with a free relative ("What ...", "Who ..."). Other code bases: 0 to 0.6 %."""

MOST_WORDS = 25
"""Words of a sentence that a non-native reader takes in at once (the plain-English guides name 20 to 25)."""

MOST_LONG = 0.05
"""Share of sentences that may be longer."""

WARN_LINES, MOST_LINES = 500, 700
"""Lines of a file from which on it is named, and above which it is refused."""


class Text(NamedTuple):
    """One docstring, run of comments, or paragraph of a page, with the line on which it begins."""

    path: Path
    line: int
    text: str
    opening: bool


def texts_of_source(path: Path) -> Iterator[Text]:
    """Return the docstrings (of constants too) and the comments of a module."""
    source = path.read_text()
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for each in body if isinstance(body, list) else ():
            value = each.value if isinstance(each, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield Text(path, each.lineno, value.value, opening=True)
    block: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or token.string.startswith(("#!", "# type:", "# noqa", "# pragma")):
            continue
        if block and token.start[0] != last + 1:
            yield Text(path, first, " ".join(block), opening=False)
            block = []
        if not block:
            first = token.start[0]
        block.append(token.string.lstrip("# ").partition("  # ")[0])
        last = token.start[0]
    if block:
        yield Text(path, first, " ".join(block), opening=False)


def texts_of_page(path: Path) -> Iterator[Text]:
    """Return the paragraphs of a Markdown page, without code, tables and headings."""
    fenced, block, first = False, [], 0
    for number, line in enumerate([*path.read_text().splitlines(), ""], 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and line.strip() and not line.lstrip().startswith(("|", "#", "<", "![")):
            first = first or number
            block.append(line.strip())
            continue
        if block:
            yield Text(path, first, "\n".join(block), opening=False)
        block, first = [], 0


def sentences(text: str) -> Iterator[str]:
    """Return the sentences of a text; code, list items and table rows are none."""
    text = re.sub(r"`[^`]*`", "x", text)
    text = re.sub(r"\n\s*(?:[-*+]|\d+\.) ", "\n\n", text)
    text = re.sub(r"\b(e\.g|i\.e|etc|vs|cf)\.", r"\1", text)
    for paragraph in re.split(r"\n\s*\n", text):
        for each in re.split(r"(?<=[.!?])\s+(?=[\"'(A-Z0-9x])", " ".join(paragraph.split())):
            if each:
                yield each


def words(text: str) -> list[str]:
    """Return the words of a text."""
    return re.findall(r"[A-Za-z][A-Za-z'-]*", text)


class Findings:
    """Findings by rule, and the counts that the bounds are shares of."""

    def __init__(self) -> None:
        self.odd: list[str] = []
        self.relative: list[str] = []
        self.long: list[str] = []
        self.words = self.openings = self.sentences = 0

    def add(self, text: Text) -> None:
        """Check one text."""
        plain = re.sub(r"`[^`]*`", "", text.text)
        place = f"{text.path.relative_to(ROOT)}:{text.line}"
        self.words += len(words(plain))
        self.odd += [f"{place}: {found.group(0)}" for found in ODD.finditer(plain)]
        if text.opening:
            self.openings += 1
            first = text.text.strip().partition("\n")[0]
            if FREE_RELATIVE.match(first):
                self.relative.append(f"{place}: {first[:70]}")
        for sentence in sentences(text.text):
            self.sentences += 1
            if len(words(sentence)) > MOST_WORDS:
                self.long.append(f"{place}: {len(words(sentence))} words: {sentence[:70]}")

    def failures(self) -> Iterator[str]:
        """Return a line for each bound that is missed, after its findings."""
        odd = 1000 * len(self.odd) / max(1, self.words)
        relative = len(self.relative) / max(1, self.openings)
        long = len(self.long) / max(1, self.sentences)
        if odd > MOST_ODD:
            yield from self.odd
            yield f"odd words: {odd:.2f} in 1,000 words; at most {MOST_ODD:g}"
        if relative > MOST_FREE_RELATIVE:
            yield from self.relative
            yield f"first lines that are free relatives: {relative:.1%}; at most {MOST_FREE_RELATIVE:.0%}"
        if long > MOST_LONG:
            yield from self.long
            yield f"sentences of more than {MOST_WORDS} words: {long:.1%}; at most {MOST_LONG:.0%}"

    def summary(self) -> str:
        """Return the figures in one line."""
        return (
            f"{self.words} words, {1000 * len(self.odd) / max(1, self.words):.2f} odd in 1,000; "
            f"{len(self.relative) / max(1, self.openings):.1%} free relatives; "
            f"{len(self.long) / max(1, self.sentences):.1%} of {self.sentences} sentences above {MOST_WORDS} words"
        )


def doubles() -> Iterator[str]:
    """Return the class names that two classes share."""
    places = defaultdict(list)
    for path in sorted(SRC.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    for name, where in places.items():
        if len(where) > 1:
            yield f"{where[0]}: class {name} is also at {', '.join(where[1:])}"


def sizes() -> Iterator[tuple[bool, str]]:
    """Return the files that are large, and whether each is refused."""
    for path in sorted(SRC.rglob("*.py")):
        count = len(path.read_text().splitlines())
        if count > WARN_LINES:
            yield count > MOST_LINES, f"{path.relative_to(ROOT)}:1: {count} lines; at most {MOST_LINES}"


def cycles() -> Iterator[str]:
    """Return the first cycle of imports at the top of modules, those for types included."""
    known = {
        ".".join(("tidegate", *path.relative_to(SRC).with_suffix("").parts)).removesuffix(".__init__"): path
        for path in SRC.rglob("*.py")
    }
    graph: dict[str, set[str]] = {}
    for name, path in known.items():
        tree = ast.parse(path.read_text())
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        lazy = {id(each) for function in functions for each in ast.walk(function)}
        targets = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and id(node) not in lazy:
                # A name is a module of a package, or something in a module.
                found = (f"{node.module}.{alias.name}" for alias in node.names)
                targets |= {each if each in known else node.module for each in found}
        graph[name] = {each for each in targets if each in known} - {name}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        yield f"imports go in a circle: {' -> '.join(error.args[1])}"


def main(arguments: list[str]) -> int:
    """Check the given paths, by default all of `src`, `docs` and the pages at the top; return the exit code."""
    paths = [Path(each).resolve() for each in arguments] or [SRC, ROOT / "docs", ROOT / "README.md"]
    files = [file for path in paths for file in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    findings = Findings()
    for file in files:
        if file.suffix == ".py":
            for text in texts_of_source(file):
                findings.add(text)
        elif file.suffix == ".md":
            for text in texts_of_page(file):
                findings.add(text)
    failures = list(findings.failures())
    if not arguments:
        failures += [*doubles(), *cycles()]
        for refused, line in sizes():
            if refused:
                failures.append(line)
            else:
                print(f"warning: {line}")
    print(*failures, findings.summary(), sep="\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
