"""A wrong argument is an error at the call, which names it; the source is not touched."""

from __future__ import annotations

import functools
import math
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import tidegate


class Untouched:
    """A source that must not be looked at."""

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("the source was touched")


class UntouchedStream:
    """The same, asynchronous."""

    def __aiter__(self) -> AsyncIterator[int]:
        raise AssertionError("the source was touched")


def answer(row: Any) -> Any:
    return row


async def aanswer(row: Any) -> Any:
    return row


def answers(row: Any) -> Iterator[Any]:
    yield row


class Asker:
    """A callable object whose call is a coroutine."""

    async def __call__(self, row: Any) -> Any:
        return row


BOTH = pytest.mark.parametrize("make", [tidegate.map, tidegate.amap])


@BOTH
@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("pool_size", each) for each in (0, -1, True, 2.0, "2", None)),
        *(("window", each) for each in (0, 31, True, 64.0)),
        *(("attempts", each) for each in (0, True, 1.5)),
        *(("timeout", each) for each in (0, -1, math.nan, True, "1")),
        *(("deadline", each) for each in (0, -1, math.nan, True)),
        *(("max_wait", each) for each in (-1, math.nan, True, "1")),
        *(("errors", each) for each in ("ignore", None, True)),
        *(("key", each) for each in ("", "  ", 5)),
        ("ordered", 1),
        ("registry", "default"),
    ],
)
def test_a_value_that_cannot_be_used_is_named(make: Callable[..., Any], field: str, value: Any) -> None:
    with pytest.raises(tidegate.ConfigurationError) as raised:
        make(answer, Untouched(), **{field: value})
    assert (raised.value.field, raised.value.value) == (field, value)


@BOTH
@pytest.mark.parametrize("rows", ["abc", b"abc", {"a": 1}, 5, None])
def test_what_is_no_source_of_rows_is_refused(make: Callable[..., Any], rows: Any) -> None:
    with pytest.raises(tidegate.ConfigurationError) as raised:
        make(answer, rows)
    assert raised.value.field == "rows"


@BOTH
@pytest.mark.parametrize("fn", [5, lambda: 1, lambda a, b: 1, lambda *, row: 1, answers])
def test_what_cannot_be_called_with_one_row_is_refused(make: Callable[..., Any], fn: Any) -> None:
    with pytest.raises(tidegate.ConfigurationError) as raised:
        make(fn, Untouched())
    assert raised.value.field == "fn"


@pytest.mark.parametrize("fn", [aanswer, functools.partial(aanswer), Asker()])
def test_map_refuses_a_coroutine_function_and_names_amap(fn: Any) -> None:
    with pytest.raises(tidegate.ConfigurationError, match="amap"):
        tidegate.map(fn, Untouched())
    tidegate.amap(fn, Untouched())


def test_map_refuses_an_async_source_and_names_amap() -> None:
    with pytest.raises(tidegate.ConfigurationError, match="amap"):
        tidegate.map(answer, UntouchedStream())  # type: ignore[arg-type]
    tidegate.amap(answer, UntouchedStream())


def test_the_signature_of_a_decorator_counts_and_not_that_of_what_it_wraps() -> None:
    def two(a: Any, b: Any) -> Any:
        return a + b

    @functools.wraps(two)
    def one(row: Any) -> Any:
        return two(row, 1)

    @functools.wraps(answer)
    def none() -> None:
        return None

    assert list(tidegate.map(one, [1, 2])) == [2, 3]
    with pytest.raises(tidegate.ConfigurationError):
        tidegate.map(none, Untouched())  # type: ignore[arg-type]


@pytest.mark.parametrize("pool_size", [1, 2])
def test_a_function_of_map_that_returns_a_coroutine_fails_its_row(pool_size: int) -> None:
    @functools.wraps(answer)
    def hidden(row: Any) -> Any:
        return aanswer(row)

    with pytest.raises(tidegate.ConfigurationError, match="amap"):
        list(tidegate.map(hidden, [1], pool_size=pool_size))


@BOTH
def test_builtins_without_a_signature_and_classes_are_functions(make: Callable[..., Any]) -> None:
    for fn in (int, str, print, functools.partial(max, 1), [].append):
        assert make(fn, Untouched()) is not None


def test_a_star_import_does_not_hide_the_builtin() -> None:
    names: dict[str, Any] = {}
    exec("from tidegate import *", names)
    assert "map" not in names
    assert "amap" not in names
    assert {"map", "amap"} <= set(dir(tidegate))
