"""Two-level keys that processes share: one log for an account and its models."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bench.world import VirtualCall
from tests.laws.accounts import SCOPES, TwoLevelWorld, key_of
from tests.laws.strategies import Caller, buckets, callers
from tests.laws.world import WeightedCall
from tests.memory_log import MemoryCarrier, MemoryStore
from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.concurrency_limit import START_CONCURRENCY
from tidegate.core.exchange import CallPolicy, Ending
from tidegate.settings import Settings
from tidegate.testing import Limit


class SharedAccountWorld(TwoLevelWorld):
    """A provider whose models share a limit, before several processes."""

    def __init__(self, shared: Limit, members: int, seed: int) -> None:
        super().__init__(shared, seed=seed)
        self.store = MemoryStore()
        self.registries = [
            RateLimitRegistry(
                Settings(scopes=SCOPES),
                clock=lambda: self.timeline.now,
                draw=self.random.random,
                carrier=MemoryCarrier(self.store),
            )
            for _ in range(members)
        ]

    def call_from(self, member: int, row: int, model: int, at: float) -> None:
        """A call of a process to a model that joins at `at`."""
        governed = WeightedCall(self.registries[member], key_of(model), CallPolicy(max_wait=1e6), 60.0, 0)
        governed.tokens = 0
        self.models[row] = model
        self.join(VirtualCall(self, row, governed), at)


@given(buckets(lowest=5), callers(stays=True), st.integers(0, 2**16), st.integers(2, 4), st.integers(1, 3))
def test_no_process_overdraws_what_models_share_and_every_call_is_answered(
    limit: Limit, made: list[Caller], seed: int, members: int, models: int
) -> None:
    played = SharedAccountWorld(limit, members, seed)
    for row, caller in enumerate(made):
        played.call_from(row % members, row, (row // members) % models, caller.at)
    played.run()
    assert {ended.ending for ended in played.ended.values()} == {Ending.ANSWERED}
    assert len(played.store.logs) == 1, "one log for the account and its models"
    refused = [each for each in played.attempts if not each.admitted]
    assert len(refused) <= START_CONCURRENCY
    for registry in played.registries:
        for session in registry._shared.sessions.values():
            with registry._lock:
                session.begin(played.now)
                session.end()
    for registry in played.registries:
        for session in registry._shared.sessions.values():
            assert session.reason == ""
            assert session.replica.flights == {}
            assert session.replica.account is not None
            assert session.replica.account.in_flight == 0
