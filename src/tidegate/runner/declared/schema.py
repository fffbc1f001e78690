"""The schema of `experiment.yaml`: its rows, its question to a model, its judges. Never a credential.

A YAML file as plain values that know where they stand: every complaint names the file, the line and the field.

Prompt templates: a text in which `{field}` stands for what a row has under that name.

A name in braces is a field, `{a.b}` is `b` of the mapping (or the place `b` of the list) under `a`, and `{{a}}` is the
text `{a}` itself. All other braces stay as they are, so that a prompt may show JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, ValidationError, model_validator
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from tidegate import redaction
from tidegate.core.credentials import is_secret_segment
from tidegate.errors import ConfigurationError, Error

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


KEY_VARIABLES = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY", "google": "GEMINI_API_KEY"}
"""Where each SDK looks for its key by itself (`_client.py` of openai 3.52 and anthropic 2.11, google-genai 3.4)."""

OURS = frozenset({"model", "messages", "system", "contents", "config", "stream"})
"""Parameters that other fields give, or that would change what an answer is."""

SECRETIVE = frozenset({"api_key", "extra_headers", "default_headers", "headers", "http_options", "authorization"})
"""Parameters by which a credential could come into the file, and so into the database."""

VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,99}")

REFERENCE = re.compile(r"\$\{([A-Z_][A-Z0-9_]{0,99})\}")
"""Stands in a `base_url` for the value of an environment variable."""

IDENTIFIER = re.compile(r"[0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
"""Words before the name of an account or a project in the addresses of gateways."""

HOLDS = "it holds a credential, which would be stored: `api_key_env` names a variable, and rows may hold any text"
HOLDS_PATH = "its path may hold a credential, which would be stored: ${NAME} stands for the environment variable NAME"

LONGEST_SHOWN = 60
"""Characters of a value that a complaint shows."""


def _named(value: object) -> object:
    if isinstance(value, str) and not VARIABLE.fullmatch(value):
        raise ValueError("the name of an environment variable, in capitals; the key itself stays out of this file")
    return value


def _plain_url(value: object) -> object:
    if isinstance(value, str) and not re.fullmatch(r"https?://[^\s@/?#]+[^\s@?#]*", value):
        raise ValueError("http(s)://host/path, without credentials and parameters")
    return value


def _checked_text(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError(f'a text: YAML reads this word as {str(value).lower()}; write it in quotes, "yes" or "no"')
    return value


def _names(value: JsonValue) -> Iterator[str]:
    """Every name in it, however deep."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from _names(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _names(inner)


Text = Annotated[str, BeforeValidator(_checked_text), Field(min_length=1)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]


class _At(ValueError):
    """A mistake in a part that has to do with others; `place` is the field below it that is to blame."""

    def __init__(self, place: Place, bound: str) -> None:
        self.place = place
        super().__init__(bound)


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class MessageTemplate(_Part):
    """One message of a conversation; its content is a template."""

    role: Literal["user", "assistant"]
    content: Text


class QuestionSpec(_Part):
    """The question and its model. `prompt` is short for one message of the user."""

    provider: Literal["openai", "anthropic", "google", "compatible"]
    model: Text
    base_url: Annotated[str | None, BeforeValidator(_plain_url)] = None
    api_key_env: Annotated[str | None, BeforeValidator(_named)] = None
    system: Text | None = None
    prompt: Text | None = None
    messages: list[MessageTemplate] | None = Field(None, min_length=1)
    parameters: dict[str, JsonValue] = Field(default_factory=dict)
    timeout: Seconds | None = None

    @model_validator(mode="after")
    def _asks_one_thing(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise _At(("prompt",), "either `prompt` or `messages`")
        if self.provider == "compatible" and self.base_url is None:
            raise _At(("base_url",), "a compatible provider needs its `base_url`")
        if not self.fields:
            asked = "it asks the same of every row: {field} stands for what a row has under that name"
            raise _At((self._asked_in,), asked)
        for name in _names(self.parameters):
            if name.lower() in SECRETIVE:
                secret = f"`{name}` could hold a credential, which stays out of this file: `api_key_env`"
                raise _At(("parameters",), secret)
        for name in self.parameters:
            if name in OURS:
                given = "it is no parameter here: fields of their own give it, and answers come whole"
                raise _At(("parameters", name), given)
        return self

    @property
    def _asked_in(self) -> str:
        return "prompt" if self.messages is None else "messages"

    @property
    def conversation(self) -> Sequence[MessageTemplate]:
        """The messages, templates as they are."""
        return self.messages or [MessageTemplate(role="user", content=self.prompt or "")]

    @property
    def fields(self) -> frozenset[str]:
        """The fields that the templates ask for."""
        texts = [self.system or "", *(each.content for each in self.conversation)]
        return frozenset(field for text in texts for field in Template(text).fields)

    def address(self, environ: Mapping[str, str]) -> str | None:
        """The base URL with the values of the variables that it names; None where the SDK's own holds."""
        if self.base_url is None:
            return None
        return REFERENCE.sub(lambda match: environ.get(match[1], ""), self.base_url)

    @property
    def credential(self) -> str | None:
        """The environment variable that has the key; None where none is needed."""
        return self.api_key_env or KEY_VARIABLES.get(self.provider)


class JudgeSpec(QuestionSpec):
    """A model that judges answers, and how its own answer is read: `{output}` is what is to be judged."""

    name: Text
    parse: Literal["score", "label", "json"] = "score"
    range: tuple[float, float] | None = Field(None, strict=False)
    labels: list[Text] | dict[Text, float] | None = None
    outputs: list[Text] | None = None

    @model_validator(mode="after")
    def _says_how_it_is_read(self) -> Self:
        if not any(field.partition(".")[0] == "output" for field in self.fields):
            raise _At((self._asked_in,), "a judge must see the answer: {output} stands for it")
        if (self.parse == "label") != bool(self.labels):
            raise _At(("labels" if self.labels else "parse",), "`labels` go with `parse: label`, and it needs them")
        if (self.parse == "json") != bool(self.outputs):
            raise _At(("outputs" if self.outputs else "parse",), "`outputs` go with `parse: json`, and it needs them")
        if self.range is not None and (self.parse != "score" or self.range[0] >= self.range[1]):
            raise _At(("range",), "`range` goes with `parse: score`: [least, most]")
        return self


class Declaration(_Part):
    """A whole experiment."""

    name: Text
    dataset: Text
    repetitions: int = Field(1, ge=1, le=1_000_000)
    max_concurrency: int | None = Field(None, ge=1, le=100_000)
    task: QuestionSpec
    evaluators: list[JudgeSpec] = Field(default_factory=list)

    @model_validator(mode="after")
    def _names_are_unlike(self) -> Self:
        names = [judge.name for judge in self.evaluators]
        if len(set(names)) != len(names):
            twice = max(range(len(names)), key=lambda index: names[:index].count(names[index]))
            raise _At(("evaluators", twice, "name"), "another evaluator has this name")
        return self

    @property
    def credentials(self) -> tuple[str, ...]:
        """The environment variables that it needs, each once."""
        parts: list[QuestionSpec] = [self.task, *self.evaluators]
        named = [name for part in parts for name in (part.credential, *REFERENCE.findall(part.base_url or "")) if name]
        return tuple(dict.fromkeys(named))


def declared(document: Document) -> Declaration:
    """The declaration in a document. Raises `ConfigurationError`, which names the line and the field."""
    for place, text in _texts(document.values, ()):
        if redaction.holds_credential(text):
            raise ConfigurationError(document.field(place), "…", HOLDS)
        if place[-1:] == ("base_url",) and any(map(_is_path_credential, text.split("/")[3:])):
            raise ConfigurationError(document.field(place), "…", HOLDS_PATH)
    try:
        return Declaration.model_validate(document.values)
    except ValidationError as error:
        raise _complaint(error, document) from None


def _texts(value: object, place: Place) -> Iterator[tuple[Place, str]]:
    """Yield every text in a document, with its place."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _texts(inner, (*place, str(name)))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _texts(inner, (*place, index))


def _is_path_credential(segment: str) -> bool:
    """Return whether a segment of a path may be a credential; the identifiers of accounts are none."""
    return not REFERENCE.search(segment) and not IDENTIFIER.fullmatch(segment) and is_secret_segment(segment)


def stored(values: Mapping[str, Any]) -> Declaration:
    """The declaration as the store has it. Raises `ConfigurationError` where this tidegate cannot read it."""
    try:
        return Declaration.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigurationError(".".join(str(part) for part in first["loc"]), "…", first["msg"]) from None


def _complaint(error: ValidationError, document: Document) -> ConfigurationError:
    # An unknown field is often what explains why another one is missing.
    first = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    place = document.part(first["loc"])
    value = first.get("input")
    blamed = first.get("ctx", {}).get("error")
    if isinstance(blamed, _At):
        place += blamed.place
        value = document.value(place)
    bound = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        bound = f"there is no such field; there are {', '.join(_known(place))}"
        if str(place[-1]).lower() in SECRETIVE:
            bound = "credentials stay out of this file: `api_key_env` names the variable that has the key"
    if first["type"] == "missing":
        return ConfigurationError(document.field((*place, first["loc"][-1])), None, "it is missing")
    return ConfigurationError(document.field(place), _shown(value, place), bound)


def _known(place: Place) -> list[str]:
    if len(place) == 1:
        return sorted(Declaration.model_fields)
    if "messages" in place[:-1]:
        return sorted(MessageTemplate.model_fields)
    return sorted(QuestionSpec.model_fields if place[0] == "task" else JudgeSpec.model_fields)


def _shown(value: object, place: Place) -> object:
    """Return what was given, unless it may be a secret, or is a whole part of the file."""
    secret = place and str(place[-1]).lower() in {*SECRETIVE, "api_key_env", "base_url"}
    if secret or not isinstance(value, str | int | float | bool | None):
        return "…"
    return redaction.clean(value, LONGEST_SHOWN) if isinstance(value, str) else value
