"""Cost of a steady call in bytecodes and functions: what each call must not exceed, whatever is added to the code."""

from __future__ import annotations

import sys

import pytest

from tools.call_cost import CASES, measure

ROOM = 1.0 if sys.version_info < (3, 12) else 1.15
"""Room for other versions of Python than 3.11, of which each has bytecodes of its own."""

BOUNDS = {
    "sequential": (2390, 44),
    "32 in flight": (2850, 54),
    "stream": (2840, 60),
    "bare httpx2": (2390, 44),
    "no headers": (2370, 50),
    "sync": (2340, 43),
}
"""Most bytecodes and functions of a call, a little above those of CPython 3.11.7 when they were set."""


@pytest.mark.parametrize("case", CASES)
def test_a_steady_call_costs_no_more_than_its_bound(case: str) -> None:
    cost = measure(case)
    bytecodes, functions = BOUNDS[case]
    assert cost.functions <= functions, cost
    assert sum(cost.bytecodes.values()) <= ROOM * bytecodes, cost
