"""Changes of a key in its row: each is noted once with its cause, the newest are kept, torn ones are not read."""

from __future__ import annotations

import gzip
import math
from array import array
from pathlib import Path

import pytest

from tests.core.values import KEY, OK, OUTAGE, answer, bucket, refusal
from tests.launch.test_shared_counters import call, only, opened
from tests.memory_log import MemoryCarrier, MemoryStore
from tidegate.admission import hooks
from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.limiter_state import Permit
from tidegate.core.values import Cause, Cost, Key, Kind, Outcome, Source, refusal_counter
from tidegate.launch.counter_row import (
    CARRIERS,
    CHANGE_DOUBLES,
    FATES,
    GROUPS,
    KEPT_CHANGES,
    RING_BYTES,
    ChangeRing,
    KeyChange,
    read_changes,
)
from tidegate.launch.process_counters import ProcessCounters
from tidegate.launch.totals import Folder
from tidegate.settings import Settings
from tidegate.shared_file import VERSION
from tidegate.testing import VirtualClock

SHARED = Key("provider", "https://provider.test", "0123456789abcdef", "model")
V3 = Path(__file__).parent / "data" / "counters-v3.sheet.gz"


def blank() -> memoryview[float]:
    return memoryview(bytearray(RING_BYTES)).cast("d")


def noted(folder: Path, *kinds: str) -> list[KeyChange]:
    (row,) = only(folder).here
    return [change for change in row.changes if not kinds or change.kind in kinds]


def test_the_newest_changes_are_kept_in_order() -> None:
    cells = blank()
    ring = ChangeRing(cells)
    for number in range(KEPT_CHANGES + 5):
        ring.add(float(number), "concurrency", number, number + 1, Cause.RATE, Source.REFUSALS)
    changes = read_changes(cells.tobytes())
    assert [change.number for change in changes] == list(range(6, KEPT_CHANGES + 6))
    assert changes[-1] == KeyChange(69, 68.0, "concurrency", 0, 68.0, 69.0, Cause.RATE, Source.REFUSALS)


def test_a_change_that_is_being_written_is_passed_over() -> None:
    cells = blank()
    ring = ChangeRing(cells)
    ring.add(1.0, "limit", 0.0, 60.0)
    ring.add(2.0, "limit", 60.0, 30.0)
    cells[CHANGE_DOUBLES] = 1.0  # The first cell of the second record is written after all others.
    assert [change.after for change in read_changes(cells.tobytes())] == [60.0]


@pytest.mark.parametrize("value", [math.nan, math.inf, 99.0])
@pytest.mark.parametrize("cell", [2, 3, 6, 7])
def test_a_record_of_nonsense_is_passed_over(value: float, cell: int) -> None:
    cells = blank()
    ring = ChangeRing(cells)
    ring.add(1.0, "limit", 0.0, 60.0)
    ring.add(2.0, "limit", 60.0, 30.0)
    cells[cell] = value
    assert [change.number for change in read_changes(cells.tobytes())] in ([2], [1, 2])


def test_a_limit_is_noted_when_it_is_learned_and_when_it_changes(tmp_path: Path) -> None:
    slots = opened(ProcessCounters(str(tmp_path)))
    call(slots, 0.0, answer(bucket(60.0, 10.0)))
    call(slots, 2.0, answer(bucket(60.0, 9.0)))
    call(slots, 4.0, answer(bucket(30.0, 9.0)))
    told = [(each.at, each.before, each.after, each.quota, each.origin) for each in noted(tmp_path, "limit")]
    assert told == [(1.0, 0.0, 60.0, 0, Source.HEADERS), (5.0, 60.0, 30.0, 0, Source.HEADERS)]


def test_a_cut_has_the_cause_of_its_refusal(tmp_path: Path) -> None:
    slots = opened(ProcessCounters(str(tmp_path)))
    admission = slots.admission
    permits = [admission.admit(Cost(), 0.0, 0.0, None) for _ in range(8)]
    for permit in permits[:7]:
        admission.settle(permit, OK, 1.0, 0.5, None)
    more = [admission.admit(Cost(), 2.0 + number / 10, 0.0, None) for number in range(12)]
    admission.settle(more[-1], Outcome(Kind.RATE_LIMIT, Cause.CONCURRENCY, status=429), 3.5, 0.5, None)
    (cut,) = [each for each in noted(tmp_path, "concurrency") if each.after < each.before]
    assert (cut.at, cut.cause, cut.after) == (3.5, Cause.CONCURRENCY, admission.concurrency.limit)


def test_a_cooldown_is_noted_once_a_wave_with_the_wait_that_was_asked_for(tmp_path: Path) -> None:
    slots = opened(ProcessCounters(str(tmp_path)))
    permits = [slots.admission.admit(Cost(), 0.0, 0.0, None) for _ in range(4)]
    for number, permit in enumerate(permits):
        slots.admission.settle(permit, refusal(30.0), 1.0 + number / 10, 0.5, None)
    (cooldown,) = noted(tmp_path, "cooldown")
    assert (cooldown.at, cooldown.before, cooldown.after) == (1.0, 30.0, 30.0)
    assert (cooldown.cause, cooldown.origin) == (Cause.RATE, Source.RETRY_AFTER)
    call(slots, 40.0, refusal(10.0))
    assert [each.at for each in noted(tmp_path, "cooldown")] == [1.0, 41.0]


def test_a_breaker_is_noted_at_its_opening_and_closing(tmp_path: Path) -> None:
    slots = opened(ProcessCounters(str(tmp_path)))
    for number in range(5):
        call(slots, float(number), OUTAGE)
    (row,) = only(tmp_path).here
    (opening,) = row.changes[-1:]
    assert (opening.kind, opening.at) == ("breaker_opened", 5.0)
    assert opening.after == pytest.approx(slots.admission.breaker.ready_at - 5.0)
    assert row.counts["breaker"] == 1
    call(slots, 60.0)
    (row,) = only(tmp_path).here
    assert [each.kind for each in row.changes][-1:] == ["breaker_closed"]
    assert (row.counts["breaker"], row.changes[-1].at) == (0, 61.0)


def test_a_rejected_key_is_noted_with_its_cause_until_it_works_again(tmp_path: Path) -> None:
    slots = opened(ProcessCounters(str(tmp_path)))
    call(slots, 0.0, Outcome(Kind.DAILY_LIMIT, Cause.DAY, 7200.0))
    call(slots, 9000.0)
    assert [(each.kind, each.cause) for each in noted(tmp_path)] == [
        ("rejected", Cause.DAY),
        ("accepted", Cause.NONE),
    ]


def test_steady_answers_note_nothing(tmp_path: Path) -> None:
    slots = opened(ProcessCounters(str(tmp_path)))
    call(slots, 0.0, answer(bucket(60.0, 10.0)))
    for number in range(1, 30):
        call(slots, float(number))
    assert [change.kind for change in noted(tmp_path)] == ["limit"]


def test_provenance_and_percentiles_stand_in_the_row(tmp_path: Path) -> None:
    slots = opened(ProcessCounters(str(tmp_path)))
    call(slots, 0.0, answer(bucket(60.0, 10.0)))
    call(slots, 5.0)
    (row,) = only(tmp_path).here
    (quota,) = row.quotas
    assert (quota.origin, quota.known_at) == (list(Source).index(Source.HEADERS), 1.0)
    assert (row.latency_p50, row.latency_p99) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("outcome", "group"),
    [
        (Outcome(Kind.RATE_LIMIT, Cause.RATE), "rate"),
        (Outcome(Kind.RATE_LIMIT, Cause.CONCURRENCY), "rate"),
        (Outcome(Kind.RATE_LIMIT, Cause.OTHERS_CAPACITY), "elsewhere"),
        (Outcome(Kind.OVERLOADED, Cause.OVERLOAD), "overload"),
        (Outcome(Kind.OVERLOADED, Cause.NOT_READY), "elsewhere"),
        (Outcome(Kind.DAILY_LIMIT, Cause.DAY), "day"),
        (Outcome(Kind.QUOTA_EXHAUSTED, Cause.MONEY), "money"),
    ],
)
def test_refusals_are_counted_by_cause_and_fate(outcome: Outcome, group: str, tmp_path: Path) -> None:
    slots = opened(ProcessCounters(str(tmp_path)))
    call(slots)
    for times, fate in enumerate(FATES, 1):
        for _ in range(times):
            slots.admission.counts.note_fate(fate, outcome)
    counts = only(tmp_path).counts
    assert [counts[refusal_counter(fate, outcome)] for fate in FATES] == [1, 2, 3]
    assert sum(counts[f"{fate}_{each}"] for fate in FATES for each in GROUPS) == 6
    assert refusal_counter("absorbed", outcome) == f"absorbed_{group}"


def test_a_refusal_of_an_attempt_without_a_call_is_handed_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "on_new_queue", ProcessCounters(str(tmp_path)).track)
    registry = RateLimitRegistry(Settings())
    permit = registry.try_admit(KEY)
    assert permit
    registry.settle(permit, Outcome(Kind.RATE_LIMIT, Cause.RATE, 7.0, status=429))  # type: ignore[arg-type]
    assert only(tmp_path).counts["handed_back_rate"] == 1


def test_a_file_of_an_older_version_is_told_as_unreadable_beside_the_others(tmp_path: Path) -> None:
    call(opened(ProcessCounters(str(tmp_path))))
    (path,) = tmp_path.iterdir()
    (tmp_path / f"1-{path.name}").write_bytes(gzip.decompress(V3.read_bytes()))
    seen = Folder(tmp_path, onlooker=True).totals()
    assert seen.calls == 1
    assert list(seen.unreadable.values()) == [
        f"it has version 3 of the format, and this tidegate reads version {VERSION}"
    ]


@pytest.mark.parametrize("limit", [math.nan, math.inf, 0.0, -1.0])
def test_a_file_with_impossible_numbers_is_told_as_unreadable(limit: float, tmp_path: Path) -> None:
    slots = opened(ProcessCounters(str(tmp_path)))
    call(slots, 0.0, answer(bucket(60.0, 10.0)))
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    good = array("d", [60.0, 60.0]).tobytes()
    assert content.count(good) == 1
    path.write_bytes(content.replace(good, array("d", [limit, 60.0]).tobytes()))
    seen = Folder(tmp_path, onlooker=True).totals()
    assert (seen.calls, len(seen.unreadable)) == (0, 1)


def test_processes_that_share_a_key_note_the_cause_of_their_own_refusals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, store = VirtualClock(), MemoryStore()
    registries = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        monkeypatch.setattr(hooks, "on_new_queue", ProcessCounters(str(tmp_path / name)).track)
        settings = Settings(telemetry=False)
        registries.append(RateLimitRegistry(settings, clock=clock, carrier=MemoryCarrier(store)))
        for registry in registries:
            # Each step of one process lets the other one know.
            permit = registry.try_admit(SHARED)
            if isinstance(permit, Permit):
                registry.settle(permit, OK)
    first, second = registries
    permit = first.try_admit(SHARED)
    assert isinstance(permit, Permit)
    second_permit = second.try_admit(SHARED)
    assert isinstance(second_permit, Permit)
    second.settle(second_permit, OK)
    first.settle(permit, Outcome(Kind.RATE_LIMIT, Cause.RATE, 20.0, status=429))
    (cooldown,) = noted(tmp_path / "first", "cooldown")
    assert (cooldown.before, cooldown.cause) == (20.0, Cause.RATE)
    (members,) = noted(tmp_path / "first", "members")
    assert (members.before, members.after) == (1.0, 2.0)
    (row,) = only(tmp_path / "first").here
    assert CARRIERS[row.counts["carrier"]] == "memory"
