"""JSON as it is stored."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import NotStorable
from tidegate.experiments.storage.stored_forms import canonical, cleaned, decoded, digest, encoded, shortened

texts = st.text(st.characters(), max_size=8)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4))


@given(values)
def test_what_is_encoded_is_decoded_as_it_was_and_can_be_stored(value: object) -> None:
    for text in (encoded(value), canonical(value)):
        assert decoded(text) == value
        assert "\x00" not in text
        assert text.encode()


@given(st.dictionaries(texts, values))
def test_the_order_of_keys_makes_no_other_content(value: dict[str, object]) -> None:
    assert digest(canonical(dict(reversed(value.items())))) == digest(canonical(value))


@given(values, values)
def test_other_contents_have_other_digests(one: object, other: object) -> None:
    assert (digest(canonical(one)) == digest(canonical(other))) is (
        json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, object(), b"bytes", {"x": [float("nan")]}])
def test_what_json_has_no_word_for_is_not_stored(value: object) -> None:
    with pytest.raises(NotStorable, match="not JSON"):
        encoded(value)


def test_what_has_no_end_is_not_stored() -> None:
    endless: list[object] = []
    endless.append(endless)
    deep: list[object] = []
    for _ in range(200_000):
        deep = [deep]
    for value in (endless, deep):
        with pytest.raises(NotStorable):
            encoded(value)


def nested(levels: int) -> object:
    value: object = {}
    for level in range(levels - 1):
        value = [value] if level % 2 else {"]": value}
    return value


def deeper(frames: int, text: str) -> object:
    """What is read at the end of so many frames of a stack."""
    return deeper(frames - 1, text) if frames else decoded(text)


def refuses(write: Callable[[object], str], levels: int) -> bool:
    try:
        write(nested(levels))
    except NotStorable:
        return True
    return False


def test_what_is_written_at_its_deepest_is_read_again_from_a_deep_stack() -> None:
    for write in (encoded, canonical):
        deepest = bisect_left(range(2000), True, key=partial(refuses, write)) - 1
        assert deepest > 100
        assert write(deeper(300, write(nested(deepest)))) == write(nested(deepest))
        with pytest.raises(NotStorable, match=f"more than {deepest} levels"):
            write(nested(deepest + 1))


def test_many_brackets_are_not_many_levels() -> None:
    for value in ([[]] * 5000, "[" * 5000, {'"[\\"[': '\\"' + "{" * 5000}):
        assert decoded(encoded(value)) == value


@given(texts | st.text(st.characters(), min_size=200, max_size=400).map(lambda text: text * 20), texts)
def test_a_shortened_name_fits_an_index_and_is_nobody_elses(text: str, other: str) -> None:
    name = shortened(text)
    assert len(name.encode()) <= 8192 // 3 // 2, "two fit an entry of PostgreSQL, a third of a page"
    assert cleaned(name) == name
    assert shortened(name) == name
    assert (shortened(text + other) == name) is (other == "")


@given(texts)
def test_a_cleaned_text_can_be_stored_and_keeps_what_could_be(text: str) -> None:
    clean = cleaned(text)
    assert "\x00" not in clean
    assert clean.encode().decode() == clean
    assert cleaned(clean) == clean
    if "\x00" not in text and not any("\ud800" <= character <= "\udfff" for character in text):
        assert clean == text
