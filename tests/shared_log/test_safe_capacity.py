"""Members that cannot hear each other: each uses its part of the limits, and all share again at the return."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from bench.shared import ROWS, SHAPES, run
from tests.effort import some
from tests.laws.world import KEY
from tests.memory_log import MemoryCarrier, MemoryStore
from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.events import Event, ShareJoined, ShareLost
from tidegate.core.limiter_state import Permit
from tidegate.core.values import Cause, Kind, Outcome
from tidegate.settings import Settings
from tidegate.shared_file import VERSION
from tidegate.shared_log.host import HostCarrier
from tidegate.testing import VirtualClock

KEEPS = 0.9
"""Seconds for which the log of a host may be locked without a loss, a little less."""

AWAY = next(shape for shape in SHAPES if shape.name == "away")
BY_NAME = {row.name: row for row in ROWS}


class Several:
    """Registries that share a log in virtual time."""

    def __init__(self, count: int, **settings: float) -> None:
        self.clock, self.store = VirtualClock(), MemoryStore()
        made = Settings(telemetry=False, status=False, **settings)
        self.registries = [
            RateLimitRegistry(made, clock=self.clock, carrier=MemoryCarrier(self.store)) for _ in range(count)
        ]
        self.told: list[Event] = []
        self.registries[0].subscribe(self.told.append)
        for _ in range(2):
            for registry in self.registries:
                self.call(registry)
                self.clock.advance(1.0)

    def call(self, registry: RateLimitRegistry) -> None:
        permit = registry.try_admit(KEY)
        if isinstance(permit, Permit):
            registry.settle(permit, Outcome(Kind.OK))

    def admitted(self, registry: RateLimitRegistry) -> list[Permit]:
        found = []
        while isinstance(permit := registry.try_admit(KEY), Permit):
            found.append(permit)
        return found

    def members(self) -> list[int]:
        return [registry.snapshot().keys[KEY].members for registry in self.registries]


@pytest.mark.parametrize("count", some([4], [8]))
@pytest.mark.parametrize("name", ["120-a-minute", "three-buckets"])
def test_members_stay_within_stated_limits_while_they_cannot_hear_each_other(name: str, count: int) -> None:
    found = run(BY_NAME[name], 0, count, AWAY)
    assert found.lost == 0
    assert found.refused_away <= 0.05
    assert found.ratio <= 1.03


def test_slots_are_divided_and_no_member_is_without_one() -> None:
    played = Several(4)
    before = len(played.admitted(played.registries[0]))
    played = Several(4)
    played.store.set_away(True)
    held = [played.admitted(registry) for registry in played.registries]
    assert [len(each) for each in held] == [-(-before // 4)] * 4


def test_slots_of_absent_members_end_with_the_own_calls() -> None:
    played = Several(2)
    theirs = played.admitted(played.registries[1])
    played.store.set_away(True)
    mine = played.admitted(played.registries[0])
    assert theirs
    assert mine, "what the other holds is not known any more"
    for permit in mine:
        played.registries[0].settle(permit, Outcome(Kind.OK))
    assert len(played.admitted(played.registries[0])) >= len(mine)


def test_attempts_in_flight_are_told_again_at_the_return() -> None:
    played = Several(2)
    one, two = played.registries
    before = len(played.admitted(one))
    played = Several(2)
    one, two = played.registries
    played.store.set_away(True)
    mine = played.admitted(one)
    played.call(two)
    played.store.set_away(False)
    played.clock.advance(5.0)
    for _ in range(2):
        for permit in played.admitted(one):
            one.withdraw(permit)
        for permit in played.admitted(two):
            two.withdraw(permit)
        played.clock.advance(1.0)
    assert mine
    assert len(played.admitted(two)) <= before - len(mine)
    for permit in mine:
        one.settle(permit, Outcome(Kind.OK))
    assert played.members() == [2, 2]


def test_a_key_that_answers_others_is_not_told_as_never_answered(caplog: pytest.LogCaptureFixture) -> None:
    clock, store = VirtualClock(), MemoryStore()
    settings = Settings(telemetry=False, status=False)
    answered, refused = (RateLimitRegistry(settings, clock=clock, carrier=MemoryCarrier(store)) for _ in range(2))
    permit, _ = answered.try_admit(KEY), refused.try_admit(KEY)
    assert isinstance(permit, Permit)
    answered.settle(permit, Outcome(Kind.OK))
    while refused.snapshot().keys[KEY].refused < 20:
        clock.advance(1.0)
        permit = refused.try_admit(KEY)
        if isinstance(permit, Permit):
            refused.settle(permit, Outcome(Kind.OVERLOADED, Cause.OVERLOAD))
    assert "ever answered" not in caplog.text


def test_a_process_that_never_reached_the_log_says_so_and_only_later_names_the_minute() -> None:
    clock, store = VirtualClock(), MemoryStore()
    store.set_away(True)
    registry = RateLimitRegistry(Settings(telemetry=False, status=False), clock=clock, carrier=MemoryCarrier(store))
    seen = []
    for seconds in (0.0, 5.0, 60.0):
        clock.advance(seconds)
        permit = registry.try_admit(KEY)
        assert isinstance(permit, Permit)
        registry.settle(permit, Outcome(Kind.OK))
        seen.append(registry.snapshot().keys[KEY].share_lost)
    assert seen == [*["it is out of reach, so this process decides alone"] * 2, "it has been out of reach for a minute"]


def test_after_a_minute_a_member_decides_as_if_unshared_and_says_so() -> None:
    played = Several(2)
    one, two = played.registries
    assert [type(each) for each in played.told if isinstance(each, ShareJoined | ShareLost)] == [ShareJoined]
    played.store.set_away(True)
    played.call(one)
    assert played.members()[0] == 2
    played.clock.advance(61.0)
    played.call(one)
    assert played.members()[0] == 1
    told = [each for each in played.told if isinstance(each, ShareLost)]
    assert [each.reason for each in told] == ["it has been out of reach for a minute"]
    played.store.set_away(False)
    played.call(two)
    played.call(one)
    assert played.members()[0] == 2
    assert isinstance([each for each in played.told if isinstance(each, ShareJoined | ShareLost)][-1], ShareJoined)


@pytest.mark.skipif(sys.platform != "linux", reason="other locks have not been tried")
def test_a_log_of_a_host_that_stays_locked_divides_the_limits(tmp_path: Path) -> None:
    import fcntl

    tmp_path.chmod(0o700)
    began, passed = time.monotonic(), [0.0]
    settings = Settings(telemetry=False, status=False)
    one, two = (
        RateLimitRegistry(settings, clock=lambda: began + passed[0], carrier=HostCarrier.at(tmp_path)) for _ in range(2)
    )

    def call(registry: RateLimitRegistry) -> None:
        passed[0] += 0.01
        permit = registry.try_admit(KEY)
        if isinstance(permit, Permit):
            registry.settle(permit, Outcome(Kind.OK))

    for _ in range(20):
        call(one)
        call(two)
    seen = one.snapshot().keys[KEY]
    assert (seen.members, seen.share_lost) == (2, "")
    (log,) = (path for path in tmp_path.iterdir() if path.suffix == f".{VERSION}")
    with log.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        locked_at = passed[0]
        while passed[0] < locked_at + KEEPS:
            call(one)
        assert one.snapshot().keys[KEY].share_lost == ""
        while passed[0] < locked_at + 3.0:
            call(one)
        seen = one.snapshot().keys[KEY]
        assert (seen.members, seen.share_lost) == (2, "it is out of reach, so a part of the limits is used")
    passed[0] += 2.0
    call(one)
    call(two)
    seen = one.snapshot().keys[KEY]
    assert (seen.members, seen.share_lost) == (2, "")
