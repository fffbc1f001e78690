"""The form that a request of OpenAI's asks its answer to have: a JSON Schema, or the arguments of a function.

A function is called where `tool_choice` forces it: the one named, or of `required` the first. Left to choose (`auto`),
the simulated model answers in words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegate.testing.replies import Body, Form

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


def chat_form(body: Body) -> Form | None:
    """Of a chat completion: `tools` with a forcing `tool_choice`, else `response_format`; None for words."""
    functions = [tool.get("function") or {} for tool in body.get("tools") or () if tool.get("type") == "function"]
    choice = body.get("tool_choice")
    if isinstance(choice, Mapping):
        choice = {"name": (choice.get("function") or {}).get("name")}
    wanted = body.get("response_format") or {}
    schema = (wanted.get("json_schema") or {}).get("schema")
    return _forced(functions, choice) or _formatted(wanted.get("type"), schema)


def response_form(body: Body) -> Form | None:
    """Of a response: `tools` with a forcing `tool_choice`, else `text.format`; None for words."""
    functions = [tool for tool in body.get("tools") or () if tool.get("type") == "function"]
    wanted = (body.get("text") or {}).get("format") or {}
    return _forced(functions, body.get("tool_choice")) or _formatted(wanted.get("type"), wanted.get("schema"))


def _forced(functions: list[Mapping[str, Any]], choice: object) -> Form | None:
    if isinstance(choice, Mapping):
        functions = [each for each in functions if each.get("name") == choice.get("name")]
    elif choice != "required":
        return None
    name = functions[0].get("name") if functions else None
    if not isinstance(name, str):
        raise ValueError("tool_choice: no such function among the tools")
    return Form(functions[0].get("parameters") or ANY_OBJECT, name)


def _formatted(kind: object, schema: Mapping[str, Any] | None) -> Form | None:
    if kind == "json_schema":
        return Form(schema or ANY_OBJECT)
    return Form(ANY_OBJECT) if kind == "json_object" else None
