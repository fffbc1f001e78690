"""Every call of a key is in exactly one number, at any moment: the numbers of a snapshot and of a run add up."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.core.scene import Caller, Scene
from tests.core.values import INVALID, KEY, OK, OUTAGE, refusal
from tests.effort import effort
from tidegate.admission import hooks
from tidegate.core.exchange import Ending
from tidegate.core.values import CAPACITY, Cause, Kind, Outcome
from tidegate.launch.process_counters import ProcessCounters
from tidegate.launch.totals import Folder

OVERLOADED = Outcome(Kind.OVERLOADED, Cause.OVERLOAD, status=529)
AUTH = Outcome(Kind.PERMANENT, Cause.AUTH, status=401)
OUTCOMES = (OK, OK, OK, refusal(2.0), refusal(None), OVERLOADED, OUTAGE, INVALID, AUTH)


def cancelled(caller: Caller) -> None:
    """The caller ends its call, as a cancelled task does."""
    if caller.flow is not None:
        caller.flow.close()
    else:
        assert caller.permit is not None
        caller.governed.abandon(caller.permit)
    caller.permit = None


class Books:
    """The calls of a scene and what became of each, as their callers see it."""

    def __init__(self, scene: Scene, seed: int) -> None:
        self.scene = scene
        self.random = random.Random(seed)
        self.open: list[Caller] = []
        self.calls = 0
        self.ends = {"answered": 0, "given_up": 0, "failed": 0, "abandoned": 0}

    def step(self) -> None:
        dice = self.random.random()
        if dice < 0.35 or not self.open:
            self.calls += 1
            self.open.append(self.scene.call(max_wait=self.random.choice((0.0, 3.0, 3600.0))))
        elif dice < 0.5:
            self.scene.clock.advance(self.random.random() * 2.0)
        elif dice < 0.6:
            gone = self.open.pop(self.random.randrange(len(self.open)))
            if gone.state == "ended":
                self.open.append(gone)
            else:
                cancelled(gone)
                self.ends["abandoned"] += 1
        else:
            caller = self.random.choice(self.open)
            if caller.poll() == "sent":
                self.reply(caller, self.random.choice(OUTCOMES))
        for caller in list(self.open):
            caller.poll()
        self.close()

    def reply(self, caller: Caller, outcome: Outcome) -> None:
        caller.reply(outcome)

    def close(self) -> None:
        for caller in [caller for caller in self.open if caller.state == "ended"]:
            self.open.remove(caller)
            assert caller.ended is not None
            attempt = caller.ended.attempt
            if attempt is not None and attempt.outcome.kind is Kind.OK:
                self.ends["answered"] += 1
            elif caller.ended.ending is Ending.EXPIRED or (
                caller.ended.ending is Ending.GIVEN_UP
                and attempt is not None
                and (
                    attempt.outcome.kind in CAPACITY
                    or (attempt.outcome.kind is Kind.TRANSIENT and caller.governed.policy.patient)
                )
            ):
                self.ends["given_up"] += 1
            else:
                self.ends["failed"] += 1


@pytest.mark.parametrize("seed", range(effort(4, 12)))
def test_snapshot_of_a_key_with_calls_of_every_kind_adds_up(seed: int) -> None:
    scene = Scene()
    books = Books(scene, seed)
    for _ in range(300):
        books.step()
        seen = scene.seen
        ends = {
            "answered": seen.answered,
            "given_up": seen.given_up,
            "failed": seen.failed_calls,
            "abandoned": seen.abandoned_calls,
        }
        assert (seen.calls, ends) == (books.calls, books.ends)
        assert seen.unended == len(books.open) == seen.in_flight + seen.waiting
    whole = scene.registry.snapshot()
    parts = whole.answered + whole.given_up + whole.failed_calls + whole.abandoned_calls + whole.unended
    assert whole.calls == books.calls == parts


@pytest.mark.parametrize("seed", range(4))
def test_totals_of_a_run_add_up_as_the_snapshot_does(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "on_new_queue", ProcessCounters(str(tmp_path)).track)
    scene = Scene()
    books = Books(scene, seed)
    for _ in range(200):
        books.step()
    (total,) = Folder(tmp_path).totals().keys.values()
    assert (total.calls, total.abandoned, total.in_flight + total.queued) == (
        books.calls,
        books.ends["abandoned"],
        len(books.open),
    )
    assert total.queued == total.waiting == scene.seen.waiting


def test_stream_that_breaks_after_its_beginning_is_a_failed_call() -> None:
    scene = Scene()
    call = scene.call()
    assert call.permit is not None
    call.governed.settle_stream(call.permit, OVERLOADED)
    seen = scene.seen
    assert (seen.calls, seen.answered, seen.failed_calls, seen.unended) == (1, 0, 1, 0)


def test_permit_of_try_admit_is_a_call_of_its_own() -> None:
    scene = Scene()
    for outcome in (OK, refusal(1.0), INVALID):
        permit = scene.registry.try_admit(KEY)
        assert permit, permit
        scene.registry.settle(permit, outcome)
        scene.clock.advance(5.0)
    seen = scene.seen
    assert (seen.calls, seen.answered, seen.failed_calls, seen.unended) == (3, 1, 2, 0)


def test_calls_never_sent_are_calls() -> None:
    scene = Scene(max_concurrency=1)
    first, *queued = [scene.call() for _ in range(20)]
    assert (scene.seen.calls, scene.seen.unsent, scene.seen.waiting) == (20, 19, 19)
    for each in (first, *queued):
        cancelled(each)
    seen = scene.seen
    assert (seen.calls, seen.unsent, seen.abandoned_calls, seen.unended) == (20, 19, 20, 0)
