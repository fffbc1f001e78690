"""The schema of `experiment.yaml`: its rows, its question to a model, its judges. Never a credential."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, ValidationError, model_validator

from tidegate import redaction
from tidegate.core.credentials import is_secret_segment
from tidegate.errors import ConfigurationError
from tidegate.runner.declared.document import Document, Place
from tidegate.runner.declared.template import Template

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


def _text(value: object) -> object:
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


Text = Annotated[str, BeforeValidator(_text), Field(min_length=1)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]


class _At(ValueError):
    """A mistake in a part that has to do with others; `place` is the field below it that is to blame."""

    def __init__(self, place: Place, bound: str) -> None:
        self.place = place
        super().__init__(bound)


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Message(_Part):
    """One message of a conversation; its content is a template."""

    role: Literal["user", "assistant"]
    content: Text


class Question(_Part):
    """The question and its model. `prompt` is short for one message of the user."""

    provider: Literal["openai", "anthropic", "google", "compatible"]
    model: Text
    base_url: Annotated[str | None, BeforeValidator(_plain_url)] = None
    api_key_env: Annotated[str | None, BeforeValidator(_named)] = None
    system: Text | None = None
    prompt: Text | None = None
    messages: list[Message] | None = Field(None, min_length=1)
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
    def conversation(self) -> Sequence[Message]:
        """The messages, templates as they are."""
        return self.messages or [Message(role="user", content=self.prompt or "")]

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


class Judge(Question):
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
    task: Question
    evaluators: list[Judge] = Field(default_factory=list)

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
        parts: list[Question] = [self.task, *self.evaluators]
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
        return sorted(Message.model_fields)
    return sorted(Question.model_fields if place[0] == "task" else Judge.model_fields)


def _shown(value: object, place: Place) -> object:
    """Return what was given, unless it may be a secret, or is a whole part of the file."""
    secret = place and str(place[-1]).lower() in {*SECRETIVE, "api_key_env", "base_url"}
    if secret or not isinstance(value, str | int | float | bool | None):
        return "…"
    return redaction.clean(value, LONGEST_SHOWN) if isinstance(value, str) else value
