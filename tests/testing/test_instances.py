"""The smallest instance of a schema fits it: pydantic's own schemas read back, and each rule by itself."""

from __future__ import annotations

import datetime
import enum
import json
import uuid
from decimal import Decimal
from typing import Annotated, Literal

import pytest
from annotated_types import MaxLen, MinLen
from pydantic import BaseModel, Field, TypeAdapter

from tidegate.testing.formats.json_schema import fitted, smallest


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


class Leaf(BaseModel):
    kind: Literal["leaf"] = "leaf"
    weight: float = Field(gt=0, lt=1)


class Tree(BaseModel):
    """A schema that holds itself."""

    name: str = Field(min_length=2)
    children: list[Tree] = Field(default_factory=list)
    parent: Tree | None
    leaf: Leaf
    colour: Colour


@pytest.mark.parametrize(
    "kind",
    [
        Tree,
        Leaf,
        Colour,
        list[Leaf],
        Annotated[list[Tree], MinLen(2), MaxLen(3)],
        tuple[int, str, Leaf],
        dict[str, int],
        Leaf | Tree,
        int | None,
        Annotated[int, Field(ge=3, multiple_of=4)],
        Annotated[int, Field(gt=3, lt=5)],
        Annotated[int, Field(le=-2)],
        Annotated[float, Field(gt=0.1, lt=0.2)],
        Annotated[float, Field(ge=0.3)],
        bool,
        None,
        datetime.datetime,
        datetime.date,
        datetime.time,
        datetime.timedelta,
        uuid.UUID,
        Decimal,
    ],
    ids=str,
)
def test_what_pydantic_describes_it_reads_back(kind):
    described = TypeAdapter(kind)
    described.validate_python(described.validate_json(json.dumps(smallest(described.json_schema()))))


@pytest.mark.parametrize(
    ("schema", "instance"),
    [
        ({"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}, "required": ["a"]}, {"a": 0}),
        ({"type": "object", "properties": {"a": {"type": "integer"}}}, {}),
        ({"type": "object", "required": ["unknown"]}, {"unknown": None}),
        ({"properties": {"a": {"type": "boolean"}}, "required": ["a"]}, {"a": False}),
        ({"type": "array", "items": {"enum": ["x", "y"]}, "minItems": 2}, ["x", "x"]),
        ({"type": "array", "items": {"type": "string"}}, []),
        ({"type": ["string", "null"], "minLength": 9}, None),
        ({"anyOf": [{"type": "string", "minLength": 9}, {"type": "integer"}]}, 0),
        ({"oneOf": [{"const": "long enough"}, {"const": 1}]}, 1),
        ({"allOf": [{"type": "object", "required": ["a"]}, {"required": ["b"]}]}, {"a": None, "b": None}),
        ({"type": "integer", "minimum": 1, "maximum": 10}, 1),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, 0.25),
        ({"type": "string", "minLength": 3}, "xxx"),
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"const": 7}}}, 7),
        ({"$ref": "#/definitions/old", "definitions": {"old": {"const": 8}}}, 8),
        (True, None),
    ],
)
def test_a_rule_by_itself(schema, instance):
    assert smallest(schema) == instance


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
        {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        {"type": "text"},
        {"anyOf": [{"type": "text"}]},
        False,
    ],
)
def test_a_schema_without_an_instance_that_we_find_is_a_value_error(schema):
    with pytest.raises(ValueError, match=r"."):
        smallest(schema)


def test_only_a_json_object_is_an_answer_that_has_its_form_already():
    schema = {"type": "object", "properties": {"a": {"const": "ä"}}, "required": ["a"]}
    assert fitted('{"b": 1}', schema) == '{"b": 1}'
    for words in ("4", "[1]", "It is 4.", ""):
        assert fitted(words, schema) == '{"a": "ä"}'
