"""Rows come out of the reorder buffer in the order of their submission, each once, whatever ends first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.pool.rows import ReorderBuffer


@given(st.data(), st.integers(0, 40))
def test_what_comes_out_is_the_order_of_submission_whatever_ends_first(data: st.DataObject, count: int) -> None:
    buffer: ReorderBuffer[int | None] = ReorderBuffer()
    order = data.draw(st.permutations(range(count)))
    evicted = data.draw(st.sets(st.sampled_from(range(count)))) if count else set()
    # Completions begin before the last submission.
    ahead = data.draw(st.integers(0, count))
    given_out: list[int | None] = []
    submitted = dropped = 0

    def submit_until(index: int) -> None:
        nonlocal submitted
        while submitted <= index:
            assert buffer.submit() == submitted
            submitted += 1

    for step, index in enumerate(order):
        submit_until(min(count - 1, max(index, step + ahead)))
        if index in evicted:
            buffer.evict(index)
            dropped += 1
        else:
            buffer.complete(index, index)
        given_out += buffer.ready()
        assert buffer.pending == submitted - len(given_out) - dropped
        assert given_out == [each for each in range(len(given_out) + dropped) if each not in evicted][: len(given_out)]
    assert given_out == [each for each in range(count) if each not in evicted]
    assert buffer.ready() == []
    assert buffer.pending == 0


def test_rows_that_end_in_another_order_come_in_their_own() -> None:
    buffer: ReorderBuffer[str] = ReorderBuffer()
    for _ in range(5):
        buffer.submit()
    seen = []
    for index in (2, 0, 4, 1, 3):
        buffer.complete(index, f"row {index}")
        seen.append(buffer.ready())
    assert seen == [[], ["row 0"], [], ["row 1", "row 2"], ["row 3", "row 4"]]


def test_none_is_a_value() -> None:
    buffer: ReorderBuffer[None] = ReorderBuffer()
    buffer.complete(buffer.submit(), None)
    assert buffer.ready() == [None]


@pytest.mark.parametrize("index", [-1, 0, 1, 2])
def test_a_row_that_is_not_open_cannot_end(index: int) -> None:
    buffer: ReorderBuffer[int] = ReorderBuffer()
    buffer.submit()
    buffer.submit()
    buffer.complete(0, 0)
    buffer.evict(1)
    for end in (lambda: buffer.complete(index, 1), lambda: buffer.evict(index)):
        with pytest.raises(ValueError, match=f"row {index} not completed"):
            end()
    assert buffer.ready() == [0]
    with pytest.raises(ValueError, match="completed or evicted"):
        buffer.complete(0, 0)
