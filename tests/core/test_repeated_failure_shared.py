"""A call that is refused again and again while another process of the same key has its calls answered."""

from __future__ import annotations

import pytest

from tests.core.replica_play import BEGINS, replica_of
from tests.core.values import OK, REFUSED
from tidegate.core.limiter_state import Permit
from tidegate.core.repeated_failure import RepeatedFailure
from tidegate.core.replica import Replica
from tidegate.core.replicated_controller import ReplicatedKey
from tidegate.core.values import Cost, Outcome

WINDOW = 60.0
"""Seconds between two calls that the server answers."""

TRIES = 30
"""Refusals of the call."""


def played(here: Replica, others: list[Replica], at: float, outcome: Outcome) -> Permit:
    """Let a process send one call and hear its outcome at once; the others hear of both."""
    controller = here.controllers[""]
    assert isinstance(controller, ReplicatedKey)
    permit = controller.admit(Cost(), at, 0.0, None)
    controller.settle(permit, outcome, at, 0.5, None)
    for said_at, payload in here.said:
        for other in others:
            other.replay(here.member, said_at, payload)
    here.said.clear()
    return permit


@pytest.mark.parametrize("contended", [True, False])
def test_refusals_of_other_processes_show_that_a_refused_call_may_have_no_luck(contended: bool) -> None:
    """One call is answered in each window. What the others' calls meet tells bad luck from a call that never fits."""
    here, there = replica_of(0), replica_of(1)
    for each in (here, there):
        each.begin_sharing()
    at, own = BEGINS, None
    for _ in range(TRIES):
        permit = played(here, [there], at, REFUSED)
        own = own or RepeatedFailure(permit.state, at)
        own.failed(permit)
        for _ in range(4 * contended):
            played(there, [here], at + 1.0, REFUSED)
        played(there, [here], at + 2.0, OK)
        at += WINDOW
    assert own is not None
    assert own.is_own(permit.state, at, True) is not contended
