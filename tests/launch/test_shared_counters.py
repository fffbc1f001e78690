"""The counts of a process in a file: written as they change, read by anybody, never two processes in one row."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.running import environ
from tests.core.scene import Scene
from tests.core.values import KEY, OK, OUTAGE, REFUSED, StubWaker, answer, bucket, fixed, refusal
from tidegate.admission import hooks
from tidegate.admission.key_queue import KeyQueue
from tidegate.admission.registry import RateLimitRegistry
from tidegate.admission.wait_queue import Waiter
from tidegate.cli.end_line import end_line
from tidegate.core.admission_controller import AdmissionController
from tidegate.core.limiter_state import Permit
from tidegate.core.token_totals import TokenTotals
from tidegate.core.values import Cause, Cost, Key, Kind, Outcome, QuotaReading, Usage
from tidegate.core.wait_text import Eta, HeadWait, QueueForecast, QuotaForecast, estimate_eta, head_wait
from tidegate.launch import counter_file, counter_row
from tidegate.launch.process_counters import ProcessCounters
from tidegate.launch.totals import Folder, KeyTotal, QuotaTotal, Totals
from tidegate.providers import ModelPrice
from tidegate.settings import Settings


def opened(sheets: ProcessCounters, key: Key = KEY) -> KeyQueue:
    slots = KeyQueue(AdmissionController(key, Settings(), 60.0, 0.0))
    sheets.track(slots)
    return slots


def call(slots: KeyQueue, now: float = 0.0, outcome: object = OK) -> None:
    slots.admission.settle(slots.admission.admit(Cost(), now, 0.0, None), outcome, now + 1.0, 0.5, None)  # type: ignore[arg-type]


def only(folder: Path) -> KeyTotal:
    (total,) = Folder(folder).totals().keys.values()
    return total


def test_what_happens_at_a_key_stands_in_its_row_at_once(tmp_path: Path) -> None:
    slots = opened(ProcessCounters(str(tmp_path)))
    call(slots)
    slots.admission.admit(Cost(), 2.0, 0.0, None)
    total = only(tmp_path)
    assert total.key == str(KEY)
    assert (total.calls, total.counts["answered"], total.in_flight) == (2, 1, 1)


def test_it_counts_as_a_key_without_a_sheet_does(tmp_path: Path) -> None:
    kept, plain = opened(ProcessCounters(str(tmp_path))), KeyQueue(AdmissionController(KEY, Settings(), 60.0, 0.0))
    for slots in (kept, plain):
        for outcome in (OK, refusal(3.0), answer(bucket(60.0, 12.0)), answer(bucket(-1.0, -1.0))):
            call(slots, 5.0, outcome)
        slots.admission.counts.resent += 2
        slots.admission.counts.absorbed += 1
        slots.admission.counts.given_up += 1
        slots.admission.counts.unsent += 1
    assert kept.snapshot(9.0) == plain.snapshot(9.0)
    counted = {name: getattr(plain.admission.counts, name) for name in counter_row.COUNTS}
    assert only(tmp_path).counts == dict.fromkeys(counter_row.SUMS, 0) | counted


def test_a_file_that_was_cut_off_is_unreadable_while_it_is(tmp_path: Path) -> None:
    call(opened(ProcessCounters(str(tmp_path))))
    (path,) = tmp_path.iterdir()
    whole, folder = path.read_bytes(), Folder(tmp_path)
    path.write_bytes(whole[:5000])
    assert folder.totals().unreadable
    path.write_bytes(whole)
    seen = folder.totals()
    assert (seen.unreadable, seen.calls) == ({}, 1)


def test_who_waits_stands_there_too(tmp_path: Path) -> None:
    slots = opened(ProcessCounters(str(tmp_path)))
    call(slots)
    waiter = Waiter(lambda: pytest.fail("nobody waits here"), 0)  # type: ignore[arg-type]
    slots.waiting.enqueue(waiter)
    assert only(tmp_path).waiting == slots.waiting.count == 1
    slots.waiting.dequeue(waiter)
    assert only(tmp_path).waiting == 0


def test_a_quota_that_is_learned_in_a_burst_is_written_at_once(tmp_path: Path) -> None:
    slots = opened(ProcessCounters(str(tmp_path)))
    first, second = (slots.admission.admit(Cost(), 0.0, 0.0, None) for _ in range(2))
    slots.admission.settle(first, OK, 0.01, 0.01, None)
    slots.admission.settle(second, answer(bucket(60.0, 58.0)), 0.02, 0.02, None)
    (quota,) = only(tmp_path).quotas.values()
    assert quota.limit == 60.0


def test_a_quota_is_told_with_what_was_used_of_it(tmp_path: Path) -> None:
    slots = opened(ProcessCounters(str(tmp_path)))
    call(slots, 0.0, answer(bucket(60.0, 10.0)))
    for number in range(5):
        call(slots, 10.0 + number)
    quota = only(tmp_path).quotas["requests"]
    assert (quota.name, quota.limit, quota.window, quota.used, quota.stood) == ("requests", 60.0, 60.0, 5.0, 10.0)
    assert (quota.since, quota.until) == (1.0, 15.0)


def test_what_lies_before_those_who_wait_is_foreseen_as_in_the_process_itself(tmp_path: Path) -> None:
    slots = opened(ProcessCounters(str(tmp_path)))
    call(slots, 0.0, answer(bucket(60.0, 3.0)))
    for _ in range(8):
        waiter = Waiter(lambda: pytest.fail("nobody waits here"), 0)  # type: ignore[arg-type]
        slots.waiting.enqueue(waiter)
    call(slots, 2.0)
    total = only(tmp_path)
    mine = slots.snapshot(3.0)
    assert estimate_eta(total.outlook(3.0)) == (pytest.approx(mine.eta), mine.eta_gate) == (4.25, "quota requests")
    assert estimate_eta(total.outlook(4.0)).seconds == pytest.approx(3.25)


def test_a_pause_is_told_as_soon_as_somebody_waits_for_its_end(tmp_path: Path) -> None:
    slots = opened(ProcessCounters(str(tmp_path)))
    call(slots, 0.0, refusal(30.0))
    slots.waiting.enqueue(Waiter(lambda: pytest.fail("nobody waits here"), 0))  # type: ignore[arg-type]
    assert estimate_eta(only(tmp_path).outlook(11.0)) == (20.0, "pause")


def test_long_pause_is_foreseen_to_the_end_that_the_provider_named_as_in_the_process_itself(tmp_path: Path) -> None:
    slots = opened(ProcessCounters(str(tmp_path)))
    call(slots, 0.0, refusal(600.0))
    for _ in range(50):
        slots.waiting.enqueue(Waiter(lambda: pytest.fail("nobody waits here"), 0))  # type: ignore[arg-type]
    seen, mine = only(tmp_path).outlook(3.0), slots.snapshot(3.0)
    assert head_wait(seen) == HeadWait("pause", 118.0, 600.0)
    assert (mine.gate, mine.ready_in, mine.stated_wait, mine.stated_for) == ("pause", 118.0, 600.0, 598.0)
    assert seen.closed_for == 598.0


def test_reset_of_the_days_quota_is_told_to_its_end(tmp_path: Path) -> None:
    slots = opened(ProcessCounters(str(tmp_path)))
    call(slots, 0.0, Outcome(Kind.DAILY_LIMIT, Cause.RATE, 7200.0))
    slots.waiting.enqueue(Waiter(lambda: pytest.fail("nobody waits here"), 0))  # type: ignore[arg-type]
    assert head_wait(only(tmp_path).outlook(2.0)) == HeadWait("quota day", 7199.0)
    assert slots.snapshot(2.0).eta == 7199.0


def test_a_breaker_is_told_also_where_nobody_waits_for_it(tmp_path: Path) -> None:
    slots = opened(ProcessCounters(str(tmp_path)))
    for number in range(5):
        call(slots, float(number), OUTAGE)
    assert slots.admission.breaker.ready_at > 5.0
    seen = only(tmp_path).outlook(5.0)
    assert (seen.closed_for, seen.closed_by) == (slots.admission.breaker.ready_at - 5.0, "breaker")


def test_a_boundary_that_has_passed_since_brings_the_limit_back(tmp_path: Path) -> None:
    slots = opened(ProcessCounters(str(tmp_path)))
    call(slots, 0.0, answer(fixed(60.0, 0.0, reset_after=10.0)))
    slots.waiting.enqueue(Waiter(lambda: pytest.fail("nobody waits here"), 0))  # type: ignore[arg-type]
    call(slots, 2.0)
    total = only(tmp_path)
    assert estimate_eta(total.outlook(5.0)).gate == "quota requests"
    assert estimate_eta(total.outlook(20.0)).seconds == 0.0


def test_processes_share_their_quotas_and_add_their_slots() -> None:
    total = KeyTotal("k")
    counts = dict.fromkeys(counter_row.INTEGERS, 0) | {"waiting": 10, "slots": 2, "attempts": 2}
    for looked_at, level in ((1.0, 30.0), (2.0, 0.0)):
        quota = counter_row.QuotaRow("requests", 60.0, 60.0, 0.0, 0.0, 0.0, level, amount=1.0)
        total.add(counter_row.KeyRow("k", counts, 2.0, (quota,), looked_at, latency=1.0), running=True)
    seen = total.outlook(2.0)
    assert (seen.waiting, seen.slots, len(seen.flights)) == (20, 4, 4)
    assert estimate_eta(seen) == (20.0, "quota requests")


def test_a_quota_keeps_its_place_where_another_is_forgotten_and_binds_nobody_any_more(tmp_path: Path) -> None:
    slots = opened(ProcessCounters(str(tmp_path)))
    day = QuotaReading("day", "requests", "continuous", 60.0, 0.0, None, 86_400.0)
    slots.admission.quotas.seed(day, "continuous", 0.0)
    for _ in range(8):
        slots.waiting.enqueue(Waiter(lambda: pytest.fail("nobody waits here"), 0))  # type: ignore[arg-type]
    call(slots, 0.0, answer(bucket(60.0, 3.0)))
    assert list(slots.admission.quotas.mirrors) == ["requests"]
    call(slots, 5.0)
    total = only(tmp_path)
    assert (total.quotas["requests"].limit, total.quotas["requests"].window) == (60.0, 60.0)
    assert estimate_eta(total.outlook(6.0)).gate != "quota day"


def test_an_onlooker_takes_nothing_away(tmp_path: Path) -> None:
    counters = ProcessCounters(str(tmp_path))
    call(opened(counters))
    counters.forked()
    assert Folder(tmp_path, onlooker=True).totals().keys == {}
    assert Folder(tmp_path).totals().calls == 1


def test_a_full_sheet_is_followed_by_another(tmp_path: Path) -> None:
    sheets = ProcessCounters(str(tmp_path))
    kept = [opened(sheets, Key("p", f"https://{number}")) for number in range(2 * counter_file.FILE_KEYS + 1)]
    for slots in kept:
        call(slots)
    assert len(list(tmp_path.iterdir())) == 3
    assert Folder(tmp_path).totals().calls == len(kept)


def test_a_key_that_is_made_anew_adds_to_what_it_was(tmp_path: Path) -> None:
    sheets = ProcessCounters(str(tmp_path))
    for _ in range(2):
        call(opened(sheets))
    assert only(tmp_path).calls == 2


def test_after_a_fork_the_child_has_rows_of_its_own_and_counts_from_nothing(tmp_path: Path) -> None:
    sheets = ProcessCounters(str(tmp_path))
    slots = opened(sheets)
    call(slots)
    sheets.forked()
    slots.waiting.clear()
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    call(slots)
    call(slots)
    assert {path: path.read_bytes() for path in before} == before
    assert slots.admission.counts.answered == 2
    assert len(list(tmp_path.iterdir())) == 2


def test_where_no_file_can_be_made_it_counts_all_the_same(tmp_path: Path) -> None:
    slots = opened(ProcessCounters(str(tmp_path / "gone")))
    call(slots)
    assert slots.admission.counts.answered == 1


def test_a_name_that_is_too_long_is_cut(tmp_path: Path) -> None:
    call(opened(ProcessCounters(str(tmp_path)), Key("p", "https://" + "ü" * 300)))
    assert only(tmp_path).key.startswith("p · üüü")


def test_a_process_that_has_ended_is_read_once_and_does_nothing_any_more(tmp_path: Path) -> None:
    sheets = ProcessCounters(str(tmp_path))
    slots = opened(sheets)
    call(slots)
    slots.admission.admit(Cost(), 2.0, 0.0, None)
    sheets.forked()
    folder = Folder(tmp_path)
    for _ in range(2):
        (total,) = folder.totals().keys.values()
        assert (total.calls, total.counts["answered"], total.in_flight) == (2, 1, 0)
    assert list(tmp_path.iterdir()) == []


PROCESS = """
import os, sys
from tests.launch.test_shared_counters import ProcessCounters, Cost, opened
counters = ProcessCounters(sys.argv[1])
queue = opened(counters)
queue.admission.admit(Cost(), 2.0, 0.0, None)
print(flush=True)
sys.stdin.readline()
os.kill(os.getpid(), 9) if sys.argv[2] == "killed" else os.execvp("sleep", ["sleep", "600"])
"""


@pytest.mark.parametrize("end", ["killed", "another program"])
def test_a_process_counts_as_live_until_it_is_killed_or_becomes_another_program(tmp_path: Path, end: str) -> None:
    env = environ(PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
    command = [sys.executable, "-c", PROCESS, str(tmp_path), end]
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        folder = Folder(tmp_path)
        assert (only(tmp_path).in_flight, folder.totals().pids) == (1, {process.pid})
        process.stdin.write("\n")
        process.stdin.flush()
        while folder.totals().pids:
            pass
        process.kill()
    (total,) = folder.totals().keys.values()
    assert (total.calls, total.in_flight, total.abandoned) == (1, 0, 1)


CUT = """
import sys
from tests.launch.test_shared_counters import ProcessCounters, call, opened
counters = ProcessCounters(sys.argv[1])
queue = opened(counters)
call(queue)
counters.count_host("a.example")
for line in sys.stdin:
    call(queue, float(line))
    counters.count_host("a.example")
    print(queue.admission.counts.answered, flush=True)
"""


@pytest.mark.parametrize("size", [0, 100, 5000])
def test_a_file_that_is_cut_off_ends_no_process_and_has_all_counts_at_its_next_call(tmp_path: Path, size: int) -> None:
    env = environ(PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
    command = [sys.executable, "-c", CUT, str(tmp_path)]
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def call_at(now: float) -> str:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{now}\n")
            process.stdin.flush()
            return process.stdout.readline()

        assert call_at(1.0) == "2\n"
        (path,) = tmp_path.iterdir()
        os.truncate(path, size)
        assert Folder(tmp_path).totals().unreadable.keys() == {process.pid}
        assert call_at(1.01) == "3\n"
        totals = Folder(tmp_path).totals()
        assert (totals.unreadable, totals.calls, totals.hosts) == ({}, 3, {"a.example": 3})
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait() == 0


def test_a_program_that_closes_all_files_gets_no_counts_in_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    counters = ProcessCounters(str(tmp_path / "run"))
    queue = opened(counters)
    call(queue)
    descriptor = counters._files[0]._descriptor
    own = tmp_path / "own"
    with own.open("wb") as file:
        os.dup2(file.fileno(), descriptor)
    call(queue)
    assert queue.admission.counts.answered == 2
    assert own.read_bytes() == b""
    counters.forked()


def test_child_of_a_program_that_closes_all_files_keeps_its_own(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    counters = ProcessCounters(str(tmp_path / "run"))
    call(opened(counters))
    descriptor = counters._files[0]._descriptor
    with (tmp_path / "own").open("wb") as file:
        os.dup2(file.fileno(), descriptor)
    counters.forked()
    assert os.fstat(descriptor).st_ino == (tmp_path / "own").stat().st_ino
    os.close(descriptor)
    call(opened(counters))
    descriptor = counters._files[0]._descriptor
    os.close(descriptor)
    counters.forked()


def test_a_child_of_a_fork_does_not_keep_its_parent_alive(tmp_path: Path) -> None:
    counters = ProcessCounters(str(tmp_path))
    call(opened(counters))
    (left, left_seen), (ended, ended_seen) = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        counters.forked()
        os.write(left_seen, b"1")
        os.read(ended, 1)
        os._exit(0)
    os.read(left, 1)
    counters.forked()
    assert Folder(tmp_path).totals().pids == set()
    os.write(ended_seen, b"1")
    os.waitpid(child, 0)
    for each in (left, left_seen, ended, ended_seen):
        os.close(each)


def quota(used: float, since: float, until: float, stood: float = 20.0) -> QuotaTotal:
    return QuotaTotal("requests", 60.0, 60.0, used, since, stood, until)


def test_the_share_is_of_what_stood_ready_and_what_came_back_meanwhile() -> None:
    assert quota(40.0, 100.0, 160.0).share == 40.0 / (20.0 + 60.0)
    assert quota(200.0, 100.0, 160.0).share == 1.0
    assert quota(0.0, 100.0, 100.0, stood=0.0).share is None


def test_the_shares_of_processes_add_up_from_the_first_to_the_last() -> None:
    total = quota(30.0, 110.0, 150.0, stood=15.0)
    total.add(counter_row.QuotaRow("requests", 60.0, 60.0, 20.0, 100.0, 20.0), 140.0)
    assert (total.used, total.since, total.stood, total.until) == (50.0, 100.0, 20.0, 150.0)
    total.add(counter_row.QuotaRow("requests", 120.0, 60.0, 1.0, 130.0, 1.0), 160.0)
    assert (total.used, total.since, total.stood, total.until, total.limit) == (51.0, 100.0, 20.0, 160.0, 120.0)


def test_a_row_says_by_what_and_by_how_many_its_key_is_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two registries are two processes to each other; each counts its own calls, so none counts twice."""
    counted, shared = tmp_path / "counted", tmp_path / "shared"
    counted.mkdir()
    shared.mkdir(0o700)
    monkeypatch.setattr(hooks, "on_new_queue", ProcessCounters(str(counted)).track)
    registries = [RateLimitRegistry(Settings(share=str(shared))) for _ in range(2)]
    for _ in range(3):
        for registry in registries:
            registry.execute(KEY, lambda: 1)
    total = only(counted)
    assert (total.members, total.most_members, total.carrier) == (2, 2, "file")
    assert (total.calls, total.counts["answered"]) == (6, 6)


def test_a_row_of_another_version_with_an_unknown_carrier_names_none() -> None:
    counts = dict.fromkeys(counter_row.INTEGERS, 0)
    assert [counter_row.KeyRow("k", {**counts, "carrier": each}, 0.0, ()).carrier for each in (1, 99, -1)] == [
        "file",
        "",
        "",
    ]


def test_processes_that_share_a_key_count_its_use_once() -> None:
    quota = counter_row.QuotaRow("requests", 100.0, 60.0, used=40.0, since=0.0, stood=100.0)

    def row(members: int, most: int, used: float) -> counter_row.KeyRow:
        counts = dict.fromkeys(counter_row.INTEGERS, 0) | {"members": members, "most_members": most, "slots": 8}
        return counter_row.KeyRow("k", counts, 2.0, (quota._replace(used=used),), pace=5.0)

    apart, shared, left = KeyTotal("k"), KeyTotal("k"), KeyTotal("k")
    for each in (row(1, 1, 40.0), row(1, 1, 30.0)):
        apart.add(each, running=True)
    for each in (row(2, 2, 40.0), row(2, 2, 39.0)):
        shared.add(each, running=True)
    # The second process shared the key until the first one ended.
    left.add(row(2, 2, 40.0), running=False)
    left.add(row(1, 2, 60.0), running=True)
    assert (apart.quotas["requests"].used, apart.slots, apart.members, apart.outlook(2.0).pace) == (70.0, 16, 1, 10.0)
    assert (shared.quotas["requests"].used, shared.slots, shared.members, shared.outlook(2.0).pace) == (40.0, 8, 2, 5.0)
    assert (left.quotas["requests"].used, left.slots, left.members) == (60.0, 8, 1)


def test_a_row_has_the_tokens_and_the_cost_of_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "on_new_queue", ProcessCounters(str(tmp_path)).track)
    registry = RateLimitRegistry(Settings(share="off"))
    price = ModelPrice(1.0, 2.0)
    monkeypatch.setattr("tidegate.providers._prices._added", {(None, "m"): price})
    for usage in (Usage(100, 10, 40, 0, 5, "m"), Usage(50, 1, model="m"), None):
        permit = registry.try_admit(KEY)
        assert isinstance(permit, Permit)
        registry.settle(permit, Outcome(Kind.OK, usage=usage))
    total = only(tmp_path)
    assert total.tokens == TokenTotals(2, 150, 11, 40, 0, 5, 2, 172_000)
    (tmp_path / "started").touch()
    assert (
        end_line(Folder(tmp_path).totals())
        == "3 calls, 3 answered, 0 given up, 0 refusals retried, 150 input + 11 output tokens, $0.00017"
    )


def test_a_shared_quota_is_used_up_while_a_few_units_are_left_for_the_calls_of_others() -> None:
    def told(level: float, waiting: int, members: int) -> HeadWait:
        key = KeyTotal("k", waiting=waiting, members=members)
        quota = QuotaForecast("requests", level, 120.0, 60.0, None, 1.0)
        return key.head_wait(QueueForecast(waiting, slots=99, quotas=(quota,)))

    assert told(1.5, 300, 2) == HeadWait("quota requests", 0.25)
    assert told(3.5, 300, 2) == HeadWait("quota requests", 0.0)
    free = HeadWait("", 0.0)
    assert [told(3.5, 300, 1), told(3.5, 3, 2), told(90.0, 300, 2), told(3.5, 0, 2)] == [free] * 4


def test_the_row_names_the_instants_of_the_queue(tmp_path: Path) -> None:
    """A key without any quota refuses everything: what is said of the next call is what happens."""
    scene = Scene()
    calls = [scene.call() for _ in range(4)]
    queue = scene.registry._queues[KEY]
    sheets = ProcessCounters(str(tmp_path))
    sheets.track(queue)
    calls += [scene.call() for _ in range(16)]
    compared = 0
    while scene.seen.refused < 25:
        for each in calls:
            if each.poll() == "sent":
                scene.clock.advance(0.1)
                each.reply(REFUSED)
        scene.clock.advance(0.5)
        now, total = scene.clock(), only(tmp_path)
        head, truth = total.head_wait(total.outlook(now)), queue.closing(now)
        if truth.gate == "pace" and truth.seconds is not None:
            compared += 1
            assert head.gate == "pace"
            assert head.seconds == pytest.approx(truth.seconds, abs=1.0)
    assert compared > 50
    assert "no call of this key was ever answered" in head.cause
    assert "no call of this key was ever answered" in end_line(Totals(Folder(tmp_path).totals().keys, True))


@pytest.mark.constants(START_CONCURRENCY=20)
def test_the_row_says_why_the_provider_is_down(tmp_path: Path) -> None:
    scene = Scene()
    calls = [scene.call() for _ in range(6)]
    sheets = ProcessCounters(str(tmp_path))
    sheets.track(scene.registry._queues[KEY])
    for each in calls[:5]:
        each.reply(OUTAGE._replace(error="ConnectError: [Errno 111] Connection refused"))
    waiting = scene.call()
    total = only(tmp_path)
    head = total.head_wait(total.outlook(scene.clock()))
    assert (head.gate, head.cause) == ("breaker", "ConnectError: [Errno 111] Connection refused")
    assert total.eta(total.outlook(scene.clock())) == Eta(None, "breaker")
    assert waiting.state == "waiting"


def test_what_bound_the_key_is_in_its_row(tmp_path: Path) -> None:
    slots, sheets = KeyQueue(AdmissionController(KEY, Settings(), 60.0, 100.0)), ProcessCounters(str(tmp_path))
    sheets.track(slots)
    call(slots, 100.0, answer(bucket(60.0, 1.0)))
    for now in (102.0, 112.0):
        waiter = Waiter(StubWaker, 0)
        waiter.deadline = 3600.0
        slots.admission.pause.close(now, 5.0, False, 0.0, True)
        slots.enqueue(waiter, now, None)
        slots.pump(now + 5.0, None)
        slots.admission.settle(slots.take(waiter), OK, now + 8.0, 0.5, None)  # type: ignore[arg-type]
    total = only(tmp_path)
    assert (total.held, total.elapsed) == ({"pause": pytest.approx(10.0)}, 20.0)
    assert slots.snapshot(130.0).held == {"pause": pytest.approx(10.0)}
    assert total.binding_text == "bound by cooldowns 50%, your program 50% (about 1 in flight; 4 would use the limit)"
