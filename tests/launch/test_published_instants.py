"""What a process publishes of the next call at a key comes true: the call goes within a second of that instant."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.core.scene import Caller, Scene
from tests.core.values import OK, OUTAGE, REFUSED, answer, bucket, fixed, refusal
from tidegate.admission import hooks
from tidegate.core.values import Cause, Kind, Outcome
from tidegate.core.wait_text import HeadWait
from tidegate.launch.process_counters import ProcessCounters
from tidegate.launch.totals import Folder

TICK_SECONDS = 0.2


class Watched:
    """A key in virtual time whose row is read as `tidegate status` reads it."""

    def __init__(self, folder: Path, draw: Random, **settings: float) -> None:
        self.folder, self.draw = folder, draw
        self.scene = Scene(**settings)
        self.scene.clock.advance(100.0)
        self.scene.call().reply(OK)
        self.calls: list[Caller] = []
        self.latency: float | None = None
        self.sent_at: dict[Caller, float] = {}

    def send(self, number: int = 1) -> list[Caller]:
        self.calls += [self.scene.call() for _ in range(number)]
        return [each for each in self.calls if each.poll() == "sent"]

    def play(self, seconds: float) -> bool:
        """Answer calls when their latency is over, until one goes or the time is over; return whether one goes."""
        clock = self.scene.clock
        end = clock() + seconds
        while True:
            sent = self.send(0)
            new = [each for each in sent if each not in self.sent_at]
            self.sent_at |= dict.fromkeys(new, clock())
            for each in sent:
                if self.latency is not None and clock() >= self.sent_at[each] + self.latency:
                    each.reply(OK)
            if new or clock() >= end:
                return bool(new)
            clock.advance(TICK_SECONDS)

    def head(self) -> HeadWait:
        (total,) = Folder(self.folder).totals().keys.values()
        return total.head_wait(total.outlook(self.scene.clock()))


def empty_bucket(key: Watched) -> None:
    key.send()[0].reply(answer(bucket(key.draw.choice([20.0, 60.0, 300.0]), 0.0)))


def empty_window(key: Watched) -> None:
    key.send()[0].reply(answer(fixed(60.0, 0.0, reset_after=key.draw.uniform(3.0, 50.0))))


def stated_pause(key: Watched) -> None:
    key.send()[0].reply(refusal(key.draw.uniform(2.0, 60.0)))


def silent_pause(key: Watched) -> None:
    """Overloaded answers of the provider's own name no wait."""
    refuse(key, Outcome(Kind.OVERLOADED, Cause.OTHERS_CAPACITY), key.draw.randint(2, 8))


def open_breaker(key: Watched) -> None:
    refuse(key, OUTAGE._replace(error="ConnectError"), 5 + key.draw.randint(0, 6))


def learned_rate(key: Watched) -> None:
    refuse(key, REFUSED, key.draw.randint(5, 40))


def refuse(key: Watched, outcome: Outcome, most: int) -> None:
    """Answer so many attempts with `outcome`, each as soon as it goes."""
    while most > 0:
        sent = key.send(0 if len(key.calls) > 20 else 1)
        for each in sent[:most]:
            each.reply(outcome)
        most -= len(sent)
        key.scene.clock.advance(TICK_SECONDS if most > 0 else 0.0)


SITUATIONS: dict[str, tuple[Callable[[Watched], None], str]] = {
    "bucket": (empty_bucket, "quota requests"),
    "window": (empty_window, "quota requests"),
    "stated": (stated_pause, "pause"),
    "silent": (silent_pause, "pause"),
    "outage": (open_breaker, "breaker"),
    "rate": (learned_rate, "pace"),
}
"""What closes a key, and the gate that is closed then."""


@pytest.fixture(autouse=True)
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "on_new_queue", ProcessCounters(str(tmp_path)).track)


def said_until_one_goes(key: Watched) -> list[tuple[float, HeadWait]]:
    """Return what the row said at each instant until a call goes."""
    said: list[tuple[float, HeadWait]] = []
    while not key.play(0.0):
        said.append((key.scene.clock(), key.head()))
        key.scene.clock.advance(TICK_SECONDS)
    return said


@pytest.mark.constants(START_CONCURRENCY=50)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", SITUATIONS)
def test_the_next_call_goes_when_the_row_says_so(name: str, seed: int, tmp_path: Path) -> None:
    key = Watched(tmp_path, Random(seed))
    close, gate = SITUATIONS[name]
    close(key)
    key.send(8)
    said = said_until_one_goes(key)
    went_at = key.scene.clock()
    assert len(said) > 1
    assert said[0][1].gate == gate
    for at, head in said:
        assert head.seconds is not None
        assert at + head.seconds == pytest.approx(went_at, abs=1.0)


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_said_of_the_instant_of_the_next_answer(seed: int, tmp_path: Path) -> None:
    draw = Random(seed)
    key = Watched(tmp_path, draw, max_concurrency=3)
    key.latency = draw.uniform(2.0, 20.0)
    for _ in range(12):
        key.play(draw.uniform(0.0, key.latency / 3))
        key.send()
    said = said_until_one_goes(key)
    assert said
    assert {head[:2] for _, head in said[:-1]} == {("concurrency", None)}
