"""A registry that shares its keys, after a fork: the child is a member of its own."""

from __future__ import annotations

from tests.memory_log import MemoryCarrier, MemoryMember, MemoryStore
from tidegate.admission.registry import RateLimitRegistry
from tidegate.admission.shared_keys import MAX_LOCKED_SECONDS
from tidegate.core.limiter_state import Permit
from tidegate.core.values import Cost, Key, Kind, Outcome
from tidegate.settings import Settings
from tidegate.testing import VirtualClock

KEY = Key("provider", "https://provider.test", "0123456789abcdef", "model")


class ForkedCarrier(MemoryCarrier):
    """A carrier whose members get numbers of their own in the child, as those of a host do."""

    def after_fork(self) -> None:
        for each in self.joined:
            each.become_new()


def test_attempts_of_the_parent_are_foreign_to_the_child() -> None:
    clock = VirtualClock()
    store = MemoryStore()
    carrier = ForkedCarrier(store)
    child = RateLimitRegistry(Settings(telemetry=False, status=False), clock=clock, carrier=carrier)
    flying = child.try_admit(KEY)
    assert isinstance(flying, Permit)
    # What a fork does in the child, with the lock held as before it.
    child.before_fork()
    child.after_fork_in_child()
    assert child.snapshot().keys[KEY].in_flight == 0
    child.settle(flying, Outcome(Kind.OK))
    counts = child.snapshot().keys[KEY]
    assert counts.answered == 0, "the parent counts it"
    own = child.try_admit(KEY, Cost())
    assert isinstance(own, Permit)
    child.settle(own, Outcome(Kind.OK))
    assert child.snapshot().keys[KEY].answered == 1


def test_the_end_of_the_parent_frees_its_slots_in_the_child() -> None:
    clock = VirtualClock()
    store = MemoryStore()
    carrier = ForkedCarrier(store)
    child = RateLimitRegistry(Settings(telemetry=False, status=False), clock=clock, carrier=carrier)
    assert isinstance(child.try_admit(KEY), Permit)
    (parent,) = carrier.joined
    number = parent.member
    child.before_fork()
    child.after_fork_in_child()
    (session,) = child._shared.sessions.values()
    assert [member for member, _ in session.replica.flights] == [number]
    (log,) = store.logs.values()
    assert isinstance(log.members[parent.member], MemoryMember)
    log.remove(number)
    permit = child.try_admit(KEY)
    assert isinstance(permit, Permit)
    assert [member for member, _ in session.replica.flights] == [parent.member]


def test_a_child_that_cannot_join_yet_has_attempts_of_its_own_alone() -> None:
    clock = VirtualClock()
    store = MemoryStore()
    child = RateLimitRegistry(Settings(telemetry=False, status=False), clock=clock, carrier=ForkedCarrier(store))
    assert isinstance(child.try_admit(KEY), Permit)
    (log,) = store.logs.values()
    parent = next(iter(log.members))
    child.before_fork()
    child.after_fork_in_child()
    log.holder = parent
    assert child.snapshot().keys[KEY].in_flight == 0
    clock.advance(2 * MAX_LOCKED_SECONDS)
    own = child.try_admit(KEY)
    assert isinstance(own, Permit), "it decides alone where the log stays locked"
    assert child.snapshot().keys[KEY].in_flight == 1
    log.holder = None
    assert child.snapshot().keys[KEY].in_flight == 1
    child.settle(own, Outcome(Kind.OK))
    assert child.snapshot().keys[KEY].in_flight == 0
    assert child._shared is not None
    (session,) = child._shared.sessions.values()
    assert [member for member, _ in session.replica.flights] == [parent]
