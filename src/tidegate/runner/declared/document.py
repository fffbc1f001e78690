"""A YAML file as plain values that know where they stand: every complaint names the file, the line and the field."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from tidegate.errors import ConfigurationError

Place = tuple[str | int, ...]
"""Keys and indices from the top of the document to a value."""

DEEPEST = 50
"""Levels of nesting that are read: an experiment has five."""


MAX_VALUES = 10_000
"""Values of a document, each alias counted as what it stands for: an experiment has some dozens. More read more of a
file that is none."""

MAX_CHARACTERS = 4 * 1024 * 1024
"""Characters of a document, and of its texts with each alias counted as what it stands for. They are stored in full
with the experiment."""


class Document:
    """A YAML file; `values` are its mappings, lists, texts and numbers, `name` is what to call it."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self._lines: dict[Place, int] = {}
        self._values = self._characters = 0
        try:
            if len(text) > MAX_CHARACTERS:
                raise ConfigurationError(name, f"{len(text)} characters", f"at most {MAX_CHARACTERS} characters")
            node = yaml.compose(text, Loader=yaml.SafeLoader)
            if not isinstance(node, MappingNode):
                raise ConfigurationError(name, _short(text), "a mapping: `name: ...`, `dataset: ...`, `task: ...`")
            self._read(node, ())
            self.values: dict[str, Any] = yaml.safe_load(text)
        except yaml.MarkedYAMLError as error:
            raise self._unreadable(error) from None
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            if isinstance(error, ConfigurationError):
                raise
            raise ConfigurationError(name, "the file", f"it is no YAML: {_first_line(error)}") from None

    @classmethod
    def of(cls, path: Path) -> Document:
        """The document in a file. Raises `ConfigurationError` where that cannot be read."""
        try:
            return cls(str(path), path.read_text("utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError("experiment", str(path), f"a readable file: {_first_line(error)}") from None

    def field(self, place: Place) -> str:
        """Return what to call a value in a complaint: file, line and field; of what is missing, where it should be."""
        line = next(self._lines[place[:size]] for size in range(len(place), -1, -1) if place[:size] in self._lines)
        field = ".".join(str(part) for part in place)
        return f"{self.name}, line {line}" + (f", {field}" if field else "")

    def part(self, place: Place) -> Place:
        """A place without the parts that the document does not have, as what a validator calls its alternatives."""
        found: Place = ()
        for each in place:
            if (*found, each) in self._lines:
                found = (*found, each)
        return found

    def value(self, place: Place) -> Any:
        """Return what stands at a place; None where nothing does."""
        found: Any = self.values
        for each in place:
            there = isinstance(found, dict) or (isinstance(found, list) and isinstance(each, int) and each < len(found))
            found = (found.get(each) if isinstance(found, dict) else found[each]) if there else None
        return found

    def _read(self, node: Node, place: Place) -> None:
        if len(place) > DEEPEST:
            raise ConfigurationError(self.field(place), "…", f"at most {DEEPEST} levels deep")
        self._lines[place] = node.start_mark.line + 1
        self._values += 1
        self._characters += len(node.value) if isinstance(node, ScalarNode) else 0
        if self._values > MAX_VALUES:
            bound = f"at most {MAX_VALUES} values, each alias counted as what it stands for"
            raise ConfigurationError(self.name, "the file", bound)
        if self._characters > MAX_CHARACTERS:
            bound = f"at most {MAX_CHARACTERS} characters, each alias counted as what it stands for"
            raise ConfigurationError(self.name, "the file", bound)
        for part, key, value in _parts(node):
            if (*place, part) in self._lines:
                self._lines[(*place, part)] = key.start_mark.line + 1
                raise ConfigurationError(self.field((*place, part)), part, "it is there twice")
            self._read(value, (*place, part))
            self._lines[(*place, part)] = key.start_mark.line + 1

    def _unreadable(self, error: yaml.MarkedYAMLError) -> ConfigurationError:
        mark = error.problem_mark or error.context_mark
        where = f"{self.name}, line {mark.line + 1}" if mark is not None else self.name
        return ConfigurationError(where, "the text", f"it is no YAML: {error.problem or error.context}")


def _parts(node: Node) -> Iterator[tuple[str | int, Node, Node]]:
    """The name of each value of a node, the node of that name, and the value's own."""
    if isinstance(node, MappingNode):
        for key, value in node.value:
            yield str(key.value) if isinstance(key.value, Hashable) else "?", key, value
    elif isinstance(node, SequenceNode):
        for index, value in enumerate(node.value):
            yield index, value, value


def _short(text: str) -> str:
    first = text.strip().partition("\n")[0]
    return first if len(first) <= 40 else first[:39] + "…"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
