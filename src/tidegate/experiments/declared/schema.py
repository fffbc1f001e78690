"""Schema of `experiment.yaml`: its rows, its question to a model, its judges. It never holds a credential.

The YAML document records the line of each value, so every error names the file, the line and the field.

In a prompt template, `{field}` stands for the row's value of that name. `{a.b}` is `b` of the mapping, or position `b`
of the list, under `a`. `{{a}}` is the text `{a}` itself. All other braces stay unchanged, so a prompt may show JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, ValidationError, model_validator
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from tidegate.admission import redaction
from tidegate.core.safe_text import is_secret_segment
from tidegate.errors import ConfigurationError, Error
from tidegate.experiments.engine.experiment import WEIGHTS
from tidegate.experiments.engine.queues import TASK_STAGE

FIELD = re.compile(r"\{\{([A-Za-z_][\w.\-]*)\}\}|\{([A-Za-z_][\w.\-]*)\}")
"""Pattern of an escaped name (group 1) or a field (group 2) of a template."""


class MissingField(Error):
    """Error for a row that lacks a field of a template."""

    def __init__(self, field: str, there: list[str]) -> None:
        self.field = field
        self.there = there
        super().__init__(f"template not filled: the row has no field for {{{field}}}; it has {_listed(there)}")


class Template:
    """Text with fields; `fields` lists them in their order, each once."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.fields = tuple(dict.fromkeys(match[2] for match in FIELD.finditer(text) if match[2]))

    def filled(self, values: Mapping[str, Any]) -> str:
        """Return the text with every field's value: strings unchanged, other values as JSON. Raise `MissingField`."""
        return FIELD.sub(lambda match: "{" + match[1] + "}" if match[1] else _text(_found(match[2], values)), self.text)


def values_of(row: Any) -> dict[str, Any]:
    """Return the fields of a row for templates, and the whole row as `row`, unless the row has that field."""
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
"""Path of a value in the document: keys and indices from the top."""

MAX_VALUES = 10_000
"""Maximum values of a document, each alias counted as its full content. Chosen: an experiment has some dozens."""

MAX_CHARACTERS = 4 * 1024 * 1024
"""Maximum characters of a document, and of its texts with each alias counted as its full content. Chosen: they are
stored in full with the experiment."""


class Document:
    """YAML file; `values` holds its mappings, lists, texts and numbers, `name` is its name in error messages."""

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
            raise ConfigurationError(name, "the file", f"it is not YAML: {_short(str(error), 200)}") from None

    @classmethod
    def of(cls, path: Path) -> Document:
        """Read the document in a file. Raise `ConfigurationError` if that is not possible."""
        try:
            return cls(str(path), path.read_text("utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError("experiment", str(path), f"a readable file: {_short(str(error), 200)}") from None

    def field(self, place: Place) -> str:
        """Return the file, line and field of a value for an error message.

        A missing value has the line of its parent.
        """
        line = next(self._lines[place[:size]] for size in range(len(place), -1, -1) if place[:size] in self._lines)
        field = ".".join(str(part) for part in place)
        return f"{self.name}, line {line}" + (f", {field}" if field else "")

    def part(self, place: Place) -> Place:
        """Return a path without the parts that the document lacks, such as a validator's names of alternatives."""
        found: Place = ()
        for each in place:
            if (*found, each) in self._lines:
                found = (*found, each)
        return found

    def value(self, place: Place) -> Any:
        """Return the value at a path; None if there is none."""
        found: Any = self.values
        for each in place:
            there = isinstance(found, dict) or (isinstance(found, list) and isinstance(each, int) and each < len(found))
            found = (found.get(each) if isinstance(found, dict) else found[each]) if there else None
        return found

    def _read(self, node: Node, place: Place) -> None:
        self._lines[place] = node.start_mark.line + 1
        self._values += 1
        self._characters += len(node.value) if isinstance(node, ScalarNode) else 0
        if self._values > MAX_VALUES or self._characters > MAX_CHARACTERS:
            bound = f"at most {MAX_VALUES} values and {MAX_CHARACTERS} characters"
            raise ConfigurationError(self.name, "the file", f"{bound}, each alias counted as its full content")
        for part, key, value in _parts(node):
            if (*place, part) in self._lines:
                self._lines[(*place, part)] = key.start_mark.line + 1
                raise ConfigurationError(self.field((*place, part)), part, "it is given twice")
            self._read(value, (*place, part))
            self._lines[(*place, part)] = key.start_mark.line + 1

    def _unreadable(self, error: yaml.MarkedYAMLError) -> ConfigurationError:
        mark = error.problem_mark or error.context_mark
        where = f"{self.name}, line {mark.line + 1}" if mark is not None else self.name
        return ConfigurationError(where, "the file", f"it is not YAML: {error.problem or error.context}")


def _parts(node: Node) -> Iterator[tuple[str | int, Node, Node]]:
    if isinstance(node, MappingNode):
        for key, value in node.value:
            yield str(key.value) if isinstance(key.value, Hashable) else "?", key, value
    elif isinstance(node, SequenceNode):
        for index, value in enumerate(node.value):
            yield index, value, value


def _short(text: str, most: int = 40) -> str:
    first = text.strip().partition("\n")[0]
    return first if len(first) <= most else first[: most - 1] + "…"


KEY_VARIABLES = {
    "openai": "OPENAI_API_KEY",
    "azure": "AZURE_OPENAI_API_KEY",
    "anthropic": "ANTHROPIC_API_KEY",
    "google": "GEMINI_API_KEY",
}
"""Environment variable of each SDK's key, as the SDK reads it (`_client.py` and `lib/azure.py` of openai 3.52,
`_client.py` of anthropic 2.11, google-genai 3.4)."""

AZURE_PATH = "/openai/v1"
"""Path of the API below an Azure endpoint. Source: learn.microsoft.com, Azure OpenAI v1 API: the openai client is used
with this base URL and the resource's key, without an API version. Read 2026-11-24."""

RESERVED_PARAMETERS = frozenset({"model", "messages", "system", "contents", "config", "stream"})
"""Parameters that other fields set, or that would change the kind of answer."""

SECRETIVE = frozenset({"api_key", "extra_headers", "default_headers", "headers", "http_options", "authorization"})
"""Parameters that could put a credential into the file, and so into the database."""

VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,99}")
"""Pattern of the name of an environment variable."""

REFERENCE = re.compile(r"\$\{([A-Z_][A-Z0-9_]{0,99})\}")
"""Pattern of a reference in a `base_url` to the value of an environment variable."""

IDENTIFIER = re.compile(r"[0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
"""Pattern of account and project identifiers in gateway addresses (32 hexadecimal digits or a UUID): no credentials."""

HOLDS = "it holds a credential, which would be stored; name its variable in `api_key_env` (rows may hold any text)"
"""Error text for a credential in the file."""
HOLDS_PATH = "its path may hold a credential, which would be stored; write ${NAME} for the environment variable NAME"
"""Error text for a possible credential in the path of an address."""

MAX_SHOWN_CHARACTERS = 60
"""Maximum characters of a value in an error message. Chosen: the value is recognised, and the message stays one
line."""


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
    """Error in a field that depends on others; `place` is the path of the wrong field below the model."""

    def __init__(self, place: Place, bound: str) -> None:
        self.place = place
        super().__init__(bound)


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class MessageTemplate(_Part):
    """Message of a conversation; its content is a template."""

    role: Literal["user", "assistant"]
    content: Text


class QuestionSpec(_Part):
    """Question and its model. `prompt` is short for one message with the role `user`."""

    provider: Literal["openai", "azure", "anthropic", "google", "compatible"]
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
        if self.provider in ("azure", "compatible") and self.base_url is None:
            article = "an" if self.provider == "azure" else "a"
            raise _At(("base_url",), f"{article} {self.provider} provider needs its `base_url`")
        if not self.fields:
            asked = "it asks the same of every row; write {field} for the value of that field in a row"
            raise _At((self._asked_in,), asked)
        for name in _names(self.parameters):
            if name.lower() in SECRETIVE:
                secret = f"`{name}` could hold a credential, which stays out of this file; use `api_key_env`"
                raise _At(("parameters",), secret)
        for name in self.parameters:
            if name in RESERVED_PARAMETERS:
                given = "it is not a parameter here: another field sets it, or answers would be streamed"
                raise _At(("parameters", name), given)
        return self

    @property
    def _asked_in(self) -> str:
        return "prompt" if self.messages is None else "messages"

    @property
    def conversation(self) -> Sequence[MessageTemplate]:
        return self.messages or [MessageTemplate(role="user", content=self.prompt or "")]

    @property
    def fields(self) -> frozenset[str]:
        texts = [self.system or "", *(each.content for each in self.conversation)]
        return frozenset(field for text in texts for field in Template(text).fields)

    def address(self, environ: Mapping[str, str]) -> str | None:
        """Return the base URL with the values of its variables; None to use the SDK's default."""
        if self.base_url is None:
            return None
        address = REFERENCE.sub(lambda match: environ.get(match[1], ""), self.base_url)
        if self.provider == "azure" and not urlsplit(address).path.strip("/"):
            return address.rstrip("/") + AZURE_PATH
        return address

    @property
    def credential(self) -> str | None:
        """Return the environment variable of the key; None if no key is needed."""
        return self.api_key_env or KEY_VARIABLES.get(self.provider)


class JudgeSpec(QuestionSpec):
    """Model that judges answers, and how its own answer is read; `{output}` stands for the answer to judge."""

    name: Text
    parse: Literal["score", "label", "json"] = "score"
    range: tuple[float, float] | None = Field(None, strict=False)
    labels: list[Text] | dict[Text, float] | None = None
    outputs: list[Text] | None = None

    @model_validator(mode="after")
    def _says_how_it_is_read(self) -> Self:
        if not any(field.partition(".")[0] == "output" for field in self.fields):
            raise _At((self._asked_in,), "a judge must see the answer; write {output} for it")
        if (self.parse == "label") != bool(self.labels):
            raise _At(("labels" if self.labels else "parse",), "`labels` and `parse: label` need each other")
        if (self.parse == "json") != bool(self.outputs):
            raise _At(("outputs" if self.outputs else "parse",), "`outputs` and `parse: json` need each other")
        if self.range is not None and (self.parse != "score" or self.range[0] >= self.range[1]):
            raise _At(("range",), "`range` is [least, most], with `parse: score` only")
        return self


class BudgetSpec(_Part):
    """Most that the experiment may spend: US dollars, tokens, or both."""

    usd: float | None = Field(None, gt=0, allow_inf_nan=False)
    tokens: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _has_an_amount(self) -> Self:
        if self.usd is None and self.tokens is None:
            raise _At((), "a budget needs `usd`, `tokens` or both")
        return self


class BatchSpec(_Part):
    """Rows are answered by the provider's Batch API, in batches of at most `max_requests`."""

    max_requests: int | None = Field(None, ge=1)


class Declaration(_Part):
    """Complete experiment."""

    name: Text
    dataset: Text
    repetitions: int = Field(1, ge=1, le=1_000_000)
    max_concurrency: int | None = Field(None, ge=1, le=100_000)
    weight: float = Field(1.0, ge=WEIGHTS[0], le=WEIGHTS[1])
    spread: bool = False
    budget: BudgetSpec | None = None
    batch: BatchSpec | None = None
    task: QuestionSpec
    evaluators: list[JudgeSpec] = Field(default_factory=list)

    @model_validator(mode="after")
    def _names_are_unlike(self) -> Self:
        names = [judge.name for judge in self.evaluators]
        if len(set(names)) != len(names):
            twice = max(range(len(names)), key=lambda index: names[:index].count(names[index]))
            raise _At(("evaluators", twice, "name"), "another evaluator has this name")
        if TASK_STAGE in names:
            raise _At(("evaluators", names.index(TASK_STAGE), "name"), "the stage of tasks has this name")
        return self

    @model_validator(mode="after")
    def _can_be_in_batches(self) -> Self:
        if self.batch is not None:
            if self.task.provider == "google":
                raise _At(("batch",), "no batch: only openai, azure, anthropic and compatible providers have them here")
            if self.spread or self.budget is not None:
                other = "spread" if self.spread else "budget"
                raise _At((other,), f"no {other} beside `batch`")
        return self

    @property
    def credentials(self) -> tuple[str, ...]:
        """Return the environment variables that the experiment needs, each once."""
        parts: list[QuestionSpec] = [self.task, *self.evaluators]
        named = [name for part in parts for name in (part.credential, *REFERENCE.findall(part.base_url or "")) if name]
        return tuple(dict.fromkeys(named))


def declared(document: Document) -> Declaration:
    """Return the declaration in a document. Raise `ConfigurationError`, which names the line and the field."""
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
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _texts(inner, (*place, str(name)))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _texts(inner, (*place, index))


def _is_path_credential(segment: str) -> bool:
    """Return whether a path segment may be a credential; account identifiers are none."""
    return not REFERENCE.search(segment) and not IDENTIFIER.fullmatch(segment) and is_secret_segment(segment)


def stored(values: Mapping[str, Any]) -> Declaration:
    """Return a stored declaration. Raise `ConfigurationError` if this tidegate cannot read it."""
    try:
        return Declaration.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigurationError(".".join(str(part) for part in first["loc"]), "…", first["msg"]) from None


def _complaint(error: ValidationError, document: Document) -> ConfigurationError:
    # An unknown field often explains why another one is missing.
    first = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    place = document.part(first["loc"])
    value = first.get("input")
    blamed = first.get("ctx", {}).get("error")
    if isinstance(blamed, _At):
        place += blamed.place
        value = document.value(place)
    bound = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        bound = f"there is no such field; the fields are {', '.join(_known(place))}"
        if str(place[-1]).lower() in SECRETIVE:
            bound = "credentials stay out of this file; name the variable that has the key in `api_key_env`"
    if first["type"] in ("model_type", "model_attributes_type") and place:
        bound = f"it must be a mapping; its fields are {', '.join(_known((*place, '')))}"
    if first["type"] == "missing":
        return ConfigurationError(document.field((*place, first["loc"][-1])), None, "it is missing")
    return ConfigurationError(document.field(place), _shown(value, place), bound)


def _known(place: Place) -> list[str]:
    if len(place) == 1:
        return sorted(Declaration.model_fields)
    if "messages" in place[:-1]:
        return sorted(MessageTemplate.model_fields)
    parts: dict[str | int, type[BaseModel]] = {"task": QuestionSpec, "budget": BudgetSpec, "batch": BatchSpec}
    return sorted(parts.get(place[0], JudgeSpec).model_fields)


def _shown(value: object, place: Place) -> object:
    """Return the given value, or "…" if it may be a secret or is a whole part of the file."""
    secret = place and str(place[-1]).lower() in {*SECRETIVE, "api_key_env", "base_url"}
    if secret or not isinstance(value, str | int | float | bool | None):
        return "…"
    return redaction.clean(value, MAX_SHOWN_CHARACTERS) if isinstance(value, str) else value
