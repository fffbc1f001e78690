"""Prompt templates: a text in which `{field}` stands for what a row has under that name.

A name in braces is a field, `{a.b}` is `b` of the mapping (or the place `b` of the list) under `a`, and `{{a}}` is the
text `{a}` itself. All other braces stay as they are, so that a prompt may show JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from tidegate.errors import Error

FIELD = re.compile(r"\{\{([A-Za-z_][\w.\-]*)\}\}|\{([A-Za-z_][\w.\-]*)\}")


class MissingField(Error):
    """A row lacks what a template asks for."""

    def __init__(self, field: str, there: list[str]) -> None:
        self.field = field
        self.there = there
        super().__init__(f"the template asks for {{{field}}}, which the row does not have (it has {_listed(there)})")


class Template:
    """One text with fields; `fields` are those it asks for, in their order."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.fields = tuple(dict.fromkeys(match[2] for match in FIELD.finditer(text) if match[2]))

    def filled(self, values: Mapping[str, Any]) -> str:
        """The text with every field's value: texts as they are, anything else as JSON. Raises `MissingField`."""
        return FIELD.sub(lambda match: "{" + match[1] + "}" if match[1] else _text(_found(match[2], values)), self.text)


def values_of(row: Any) -> dict[str, Any]:
    """Return the fields of a row for templates, and the whole of it as `row`, unless it has that itself."""
    own = {str(name): value for name, value in row.items()} if isinstance(row, Mapping) else {}
    return {"row": row, **own}


def _found(field: str, values: Mapping[str, Any]) -> Any:
    if field in values:
        return values[field]
    found: Any = values
    for part in field.split("."):
        if isinstance(found, Mapping) and part in found:
            found = found[part]
        elif isinstance(found, list | tuple) and part.isdecimal() and int(part) < len(found):
            found = found[int(part)]
        else:
            raise MissingField(field, [name for name in values if name != "row"])
    return found


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _listed(names: list[str], most: int = 10) -> str:
    shown = ", ".join(names[:most]) + (", …" if len(names) > most else "")
    return shown or "no fields"
