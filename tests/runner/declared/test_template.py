"""Prompt templates: names in braces are fields, everything else stays as it is."""

from __future__ import annotations

import pytest

from tidegate.experiments.declared.schema import MissingField, Template, values_of


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("Capital of {country}?", "Capital of Chad?"),
        ("{country}{country}", "ChadChad"),
        ("{people.0.name}, {people.1.name}", "Ada, Bo"),
        ("{a.b}", "whole"),
        ("{size}", "1.5"),
        ("{people}", '[{"name": "Ada"}, {"name": "Bo"}]'),
        ('Answer as {"score": 1} or {}', 'Answer as {"score": 1} or {}'),
        ('{"a": {"b": {country}}}', '{"a": {"b": Chad}}'),
        ("{{country}} stands for {country}", "{country} stands for Chad"),
        ("ends in {", "ends in {"),
    ],
)
def test_a_template_is_filled(text: str, filled: str) -> None:
    row = {"country": "Chad", "people": [{"name": "Ada"}, {"name": "Bo"}], "a.b": "whole", "size": 1.5}
    assert Template(text).filled(values_of(row)) == filled


def test_a_value_with_braces_is_not_filled_again() -> None:
    assert Template("{a}").filled({"a": "{b}", "b": "no"}) == "{b}"


@pytest.mark.parametrize("field", ["nothing", "country.name", "people.7", "people.x"])
def test_a_field_that_the_row_lacks_is_named_with_those_it_has(field: str) -> None:
    with pytest.raises(MissingField, match=rf"\{{{field}\}}.*country, people") as raised:
        Template(f"{{{field}}}").filled(values_of({"country": "Chad", "people": []}))
    assert raised.value.field == field


def test_a_row_that_is_no_mapping_is_there_whole() -> None:
    assert Template("What is {row}?").filled(values_of("blue")) == "What is blue?"


def test_a_field_of_the_row_called_row_comes_before_the_whole() -> None:
    assert Template("{row}").filled(values_of({"row": 3})) == "3"


def test_a_template_knows_its_fields_once_each() -> None:
    assert Template("{b} {a} {b} {{c}}").fields == ("b", "a")
