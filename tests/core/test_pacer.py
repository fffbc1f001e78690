from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tidegate.core.backoff import PROGRESS
from tidegate.core.pacer import DROP, Pacer
from tidegate.core.pacer_phases import (
    FIRST_WAIT_SHARE,
    FIRST_WAITS,
    MARGIN,
    OUTAGE_SECONDS,
    OUTAGE_WAITS,
    PATIENCE_KNOWN,
    PacerPhase,
)
from tidegate.core.ramp_phase import CLIMB_FROM
from tidegate.core.rate_meter import Burst
from tidegate.core.values import Cause

INFINITY = float("inf")
TRIP = 0.01


@dataclass
class Provider:
    """A bucket of `size` that gets back `rate` calls a second, and a client that sends whatever the pacer lets go."""

    rate: float
    size: float = 1.0
    pacer: Pacer = field(default_factory=Pacer)
    now: float = 0.0
    cause: Cause = Cause.RATE
    let_in: int = 0
    refused: int = 0

    def __post_init__(self) -> None:
        self._level, self._at = 0.0, 0.0
        self._due: list[tuple[float, int, float]] = []
        self._wave = -1.0

    def begin(self, count: int = 20, seconds: float = 0.2) -> None:
        """The first refusal of all, at 0."""
        self.pacer.begin(Burst(count, seconds), self.now, self.now + TRIP, self.cause, 3 * TRIP)
        self.now += TRIP

    def run(self, until: float) -> None:
        while (opens := max(self.now, self.pacer.spacing.opens_at(self.now))) <= until and self.pacer.active:
            if self._due and self._due[0][0] <= opens:
                self._tell()
                continue
            self.now = opens
            self._send()
        self.now = max(self.now, until)

    def _send(self) -> None:
        mark = self.pacer.mark
        self.pacer.sent(self.now)
        self._level = min(self.size, self._level + self.rate * (self.now - self._at))
        self._at = self.now
        if self._level >= 1.0:
            self._level -= 1.0
            self.let_in += 1
        else:
            self.refused += 1
            self._due.append((self.now + TRIP, mark, self.now))

    def _tell(self) -> None:
        at, mark, sent_at = self._due.pop(0)
        self.now = max(self.now, at)
        new_wave = sent_at >= self._wave
        if new_wave:
            self._wave = self.now
        self.pacer.refused(mark, sent_at, self.now, new_wave, self.cause, 3 * TRIP)


@pytest.fixture
def pacer() -> Pacer:
    """Active since a refusal at 0 of the 21st call within a fifth of a second."""
    pacer = Pacer()
    pacer.begin(Burst(20, 0.2), 0.0, TRIP, Cause.RATE, 3 * TRIP)
    return pacer


def send(pacer: Pacer, *instants: float) -> list[int]:
    marks = []
    for at in instants:
        marks.append(pacer.mark)
        pacer.sent(at)
    return marks


def refuse(pacer: Pacer, sent_at: float, mark: int, new_wave: bool = True, cause: Cause = Cause.RATE) -> None:
    pacer.refused(mark, sent_at, sent_at + TRIP, new_wave, cause, 3 * TRIP)


def held(pacer: Pacer, rate: float = 10.0) -> float:
    """Lets the pacer measure `rate`; returns the instant of the refusal that did it."""
    count = int(3 * rate)
    for number in range(count):
        pacer.sent(TRIP + number / rate)
    at = count / rate
    refuse(pacer, at, *send(pacer, at))
    assert pacer.phase is PacerPhase.CRUISE
    return at


def test_before_any_refusal_it_paces_nothing() -> None:
    pacer = Pacer()
    assert (pacer.active, pacer.mark) == (False, -1)


def test_two_refusals_and_what_was_let_in_between_them_give_the_rate(pacer: Pacer) -> None:
    held(pacer, 10.0)
    assert pacer.gauge.rate == pytest.approx(10.0, rel=0.02)
    assert pacer.rate == pytest.approx(MARGIN * 10.0, rel=0.04)


@pytest.mark.parametrize("rate", [2.0, 20.0, 150.0])
@pytest.mark.parametrize("seconds", [1.0, 6.0, 60.0])
def test_whatever_the_size_of_the_bucket_its_rate_is_found_and_held(rate: float, seconds: float) -> None:
    size = max(4.0, rate * seconds)
    provider = Provider(rate, size)
    provider.begin(int(size), 0.2)
    provider.run(60.0 + 100.0 / rate)
    began, let_in, refused = provider.now, provider.let_in, provider.refused
    provider.run(began + 60.0)
    assert provider.let_in - let_in >= 0.9 * 60.0 * rate
    assert provider.refused - refused <= 0.02 * 60.0 * rate + 1


def test_while_the_rate_is_sought_the_pace_does_not_run_far_ahead_of_what_was_let_in() -> None:
    provider = Provider(30.0, size=180.0)
    provider.begin(200, 0.9)
    fastest = 0.0
    while provider.pacer.phase is PacerPhase.STARTUP and provider.now < 20.0:
        fastest = provider.pacer.rate
        provider.run(provider.now + 0.05)
    assert provider.pacer.phase is PacerPhase.CRUISE
    assert fastest <= 3.0 * 30.0
    assert provider.pacer.gauge.rate == pytest.approx(30.0, rel=0.05)


def test_where_a_lone_attempt_is_refused_too_the_count_begins_there(pacer: Pacer) -> None:
    alone = pacer.spacing.opens_at(TRIP)
    refuse(pacer, alone, *send(pacer, alone))
    again = pacer.spacing.opens_at(alone + TRIP)
    for number in range(20):
        pacer.sent(again + 0.1 * number)
    refuse(pacer, again + 2.0, *send(pacer, again + 2.0))
    assert pacer.gauge.rate == pytest.approx(20.0 / (again + 2.0 - alone), rel=0.01)


@pytest.mark.parametrize(("wave", "seconds"), [(0, 2.5), (2, 7.5)])
def test_what_the_first_wave_cost_is_paid_by_the_calls_before_the_next_rise(wave: int, seconds: float) -> None:
    pacer = Pacer()
    pacer.begin(Burst(80, 0.5), 0.0, TRIP, Cause.RATE, 3 * TRIP)
    for _ in range(wave):
        refuse(pacer, 0.001, -1, new_wave=False)
    now = began = held(pacer, 60.0)
    while pacer.phase is PacerPhase.CRUISE:
        now = pacer.spacing.opens_at(now)
        pacer.sent(now)
    assert now - began == pytest.approx(seconds, rel=0.05)


def test_a_bucket_that_saves_nothing_is_used_nearly_as_well() -> None:
    provider = Provider(20.0, size=1.0)
    provider.begin(1, 0.0)
    provider.run(60.0)
    let_in = provider.let_in
    provider.run(120.0)
    assert provider.let_in - let_in >= 0.85 * 60.0 * 20.0


def test_capacity_that_went_is_found_again_in_a_few_refusals_and_its_return_too() -> None:
    provider = Provider(20.0, size=20.0)
    provider.begin()
    provider.run(20.0)
    provider.rate, refused = 5.0, provider.refused
    provider.run(25.0)
    assert provider.refused - refused <= 8
    assert 4.0 <= provider.pacer.gauge.rate <= 6.0
    provider.rate, let_in = 20.0, provider.let_in
    provider.run(29.0)
    assert provider.let_in - let_in >= 55


def test_the_other_refusals_of_a_wave_change_no_rate(pacer: Pacer) -> None:
    at = held(pacer)
    marks = send(pacer, at + 1.0, at + 1.0, at + 1.0)
    refuse(pacer, at + 1.0, marks[0])
    rate, phase = pacer.rate, pacer.phase
    refuse(pacer, at + 1.0, marks[1], new_wave=False)
    refuse(pacer, at + 1.0, marks[2], new_wave=False)
    assert (pacer.rate, pacer.phase) == (rate, phase)


def test_what_was_sent_before_it_began_is_no_part_of_any_count(pacer: Pacer) -> None:
    refuse(pacer, 0.005, -1, new_wave=False)
    held(pacer, 10.0)
    assert pacer.gauge.rate == pytest.approx(10.0, rel=0.02)


def test_after_the_first_refusal_one_attempt_goes_alone() -> None:
    pacer = Pacer()
    pacer.begin(Burst(300, 0.2), 0.0, TRIP, Cause.RATE, 3 * TRIP)
    opens = pacer.spacing.opens_at(TRIP)
    assert opens > TRIP
    pacer.sent(opens)
    assert pacer.spacing.alone(opens + TRIP)
    assert pacer.spacing.opens_at(opens) >= opens + 3 * TRIP


def test_while_nothing_is_let_in_the_lone_attempts_come_ever_later(pacer: Pacer) -> None:
    now, waits = TRIP, []
    for _ in range(6):
        opens = pacer.spacing.opens_at(now)
        waits.append(opens - now)
        refuse(pacer, opens, *send(pacer, opens))
        now = opens + TRIP
    assert waits == sorted(waits)
    assert waits[-1] > 5 * waits[0]


def test_it_holds_for_a_while_and_then_rises(pacer: Pacer) -> None:
    at = held(pacer)
    pace = pacer.rate
    now = at + TRIP
    while now < at + PATIENCE_KNOWN:
        now = pacer.spacing.opens_at(now)
        pacer.sent(now)
        assert pacer.rate == pace or now >= at + PATIENCE_KNOWN
    pacer.sent(pacer.spacing.opens_at(now))
    assert pacer.rate > pace
    assert pacer.phase is PacerPhase.PROBE_UP


def test_a_refusal_where_the_pace_had_held_is_a_drop(pacer: Pacer) -> None:
    at = held(pacer)
    pace, now = pacer.rate, at + TRIP
    for _ in range(15):
        now = pacer.spacing.opens_at(now)
        pacer.sent(now)
    now = pacer.spacing.opens_at(now)
    refuse(pacer, now, *send(pacer, now))
    assert (pacer.phase, pacer.rate) == (PacerPhase.STARTUP, pytest.approx(DROP * pace))


def test_a_refusal_too_soon_for_the_held_pace_is_a_drop_after_a_few_calls(pacer: Pacer) -> None:
    at = held(pacer)
    pace = pacer.rate
    send(pacer, at + 0.11, at + 0.22)
    refuse(pacer, at + 0.5, *send(pacer, at + 0.5))
    # Three calls in half a second are six a second at most.
    assert (pacer.phase, pacer.rate) == (PacerPhase.STARTUP, pytest.approx(DROP * pace))


def test_an_idle_key_raises_no_pace_and_sends_at_once_what_the_bucket_holds(pacer: Pacer) -> None:
    at = held(pacer)
    pace, content = pacer.sustained_rate, int(pacer.gauge.burst)
    for hour in range(1, 5):
        now = at + 3600.0 * hour
        for _ in range(content):
            assert pacer.spacing.opens_at(now) == now
            pacer.sent(now)
        assert pacer.sustained_rate == pace
        assert pacer.spacing.opens_at(now) > now


@pytest.mark.parametrize(
    ("rate", "size", "later"),
    [(20.0, 5.0, 20.0), (20.0, 5.0, 25.0), (20.0, 40.0, 22.0), (2.0, 30.0, 2.2), (5.0, 10.0, 6.0)],
)
def test_refusals_after_an_idle_time_measure_the_content_and_the_rate_is_found_all_the_same(
    rate: float, size: float, later: float
) -> None:
    """The content is known from the first burst on, also where a burst is refused long after its begin."""
    provider = Provider(rate, size)
    provider.begin(int(size) + 5, 0.2)
    provider.run(60.0)
    for minute in range(2, 7):
        provider.now = 60.0 * minute
        if minute > 3:
            provider.rate = later
        admitted, refused = provider.let_in, provider.refused
        provider.run(provider.now + 30.0)
        assert provider.pacer.gauge.burst == pytest.approx(size, abs=max(1.0, 0.05 * size))
        assert provider.let_in - admitted >= 0.9 * (size + 30.0 * provider.rate)
        assert provider.refused - refused <= 10


def test_few_calls_between_two_refusals_are_an_estimate_and_no_measurement(pacer: Pacer) -> None:
    now = pacer.spacing.opens_at(TRIP)
    pacer.sent(now)
    for _ in range(PROGRESS - 2):
        now = pacer.spacing.opens_at(now)
        pacer.sent(now)
    now = pacer.spacing.opens_at(now)
    refuse(pacer, now, *send(pacer, now))
    assert pacer.gauge.rate == 0.0
    assert pacer.phase is PacerPhase.STARTUP


def test_a_server_that_is_overloaded_is_asked_twice_a_second_and_all_is_as_before_when_it_is_back() -> None:
    provider = Provider(0.0, cause=Cause.OVERLOAD)
    provider.begin()
    provider.run(5.0)
    assert OUTAGE_WAITS < provider.refused <= 15
    provider.rate, provider.size = 1000.0, 1000.0
    provider.run(5.0 + 3 * OUTAGE_SECONDS)
    assert not provider.pacer.active


def test_a_refused_rate_is_not_taken_for_an_outage() -> None:
    provider = Provider(0.0)
    provider.begin()
    provider.run(20.0)
    provider.rate = 1.0
    provider.run(60.0)
    assert provider.pacer.active


def test_no_pace_is_ever_slower_than_one_call_a_minute() -> None:
    provider = Provider(0.0)
    provider.begin()
    for _ in range(50):
        opens = provider.pacer.spacing.opens_at(provider.now)
        assert opens - provider.now <= 60.0 + 1e-6
        provider.run(opens)


def test_what_the_admitted_calls_prove_is_held_where_the_rate_is_known_well() -> None:
    """A share of 0.97 would leave units unused until the next rise."""
    provider = Provider(20.0, 20.0)
    provider.begin(24)
    provider.run(15.0)
    assert provider.pacer.phase is PacerPhase.CRUISE
    assert 0.98 * 20.0 < provider.pacer.rate <= 20.0


def test_a_rate_that_was_measured_twice_is_held_at_its_lower_bound() -> None:
    provider = Provider(8.0, 4.0)
    provider.begin(5)
    provider.run(12.0)
    assert provider.pacer.sustained_rate >= provider.pacer.gauge.low > 0.95 * 8.0


def test_the_first_pace_spreads_the_run_over_its_waits() -> None:
    pacer = Pacer()
    pacer.begin(Burst(20, 0.2), 0.2, 0.2 + TRIP, Cause.RATE, 3 * TRIP)
    assert pacer.rate == pytest.approx(20.0 / (0.2 + FIRST_WAITS * FIRST_WAIT_SHARE * 0.2))


def test_under_a_slope_limit_the_pace_grows_from_what_was_let_in_and_a_refusal_takes_nothing_back() -> None:
    pacer = Pacer()
    pacer.begin(Burst(10, 0.2), 0.2, 0.2 + TRIP, Cause.SLOPE, 3 * TRIP)
    assert pacer.rate == pytest.approx(CLIMB_FROM * 10.0)
    now = 0.2 + TRIP
    while now < 3.0:
        now = pacer.spacing.opens_at(now)
        (mark,) = send(pacer, now)
    before = pacer.rate
    assert before > 2.0 * CLIMB_FROM * 10.0
    refuse(pacer, now, mark, cause=Cause.SLOPE)
    assert (pacer.phase, pacer.rate) == (PacerPhase.RAMP, before)


def test_a_refusal_that_may_be_chance_lets_two_calls_go_at_once(pacer: Pacer) -> None:
    at = held(pacer)
    rate = pacer.rate
    for number in range(1, 11):
        pacer.sent(at + number / rate)
    at += 11 / rate
    pacer.chance_odds = 0.0
    refuse(pacer, at, *send(pacer, at))
    assert pacer.rate == rate
    now = at + 2 * TRIP
    for _ in range(2):
        assert pacer.spacing.opens_at(now) == now
        pacer.sent(now)
    assert pacer.spacing.opens_at(now) > now


def test_a_refusal_at_random_makes_nothing_slower(pacer: Pacer) -> None:
    held(pacer)
    rate = pacer.rate
    pacer.ignore(pacer.mark, 5.0)
    assert pacer.rate > rate


def stated_refusal(pacer: Pacer, at: float, low: float, high: float) -> None:
    """Refuse an attempt of that instant, whose hint states between which instants the next call is admitted."""
    pacer.timed, pacer.hint, pacer.stated = True, high - at, (low, high)
    refuse(pacer, at, *send(pacer, at))


@pytest.mark.parametrize(("wait", "window"), [(4.0, True), (0.2, False)])
def test_a_stated_wait_that_no_bucket_explains_shows_a_window(pacer: Pacer, wait: float, window: bool) -> None:
    """Twenty calls in the five seconds since the zero: a bucket has the next one in 0.27 seconds."""
    for number in range(20):
        pacer.sent(4.0 + 0.05 * number)
    stated_refusal(pacer, 5.0, 5.0 + wait, 5.0 + wait + 0.2)
    assert (pacer.phase is PacerPhase.WINDOWED) is window
    if window:
        assert pacer.spacing.opens_at(5.0 + TRIP) == pytest.approx(5.0 + wait + 0.2, abs=0.01)


def test_the_calls_of_a_stated_window_go_at_once_and_no_call_beyond_them(pacer: Pacer) -> None:
    for number in range(20):
        pacer.sent(4.0 + 0.005 * number)
    stated_refusal(pacer, 4.2, 9.0, 9.2)
    pacer.stated = None
    count, now = 0, 4.2 + TRIP
    while (now := max(now, pacer.spacing.opens_at(now))) < 10.0:
        pacer.sent(now)
        count += 1
        now += 1e-6
    assert count == 20


@pytest.mark.parametrize("earlier", [0.0, 0.05])
def test_refusal_of_what_was_sent_before_the_zero_measures_no_rate(earlier: float) -> None:
    # Another process may hear late of a refusal, and count a later call as refused first.
    provider = Provider(rate=10.0, size=5.0)
    provider.begin()
    provider.run(20.0)
    pacer = provider.pacer
    for _ in range(3):
        pacer.refused(pacer.mark - 1, pacer.gauge.zero_at - earlier, provider.now, True, Cause.RATE, 3 * TRIP)
    assert 1.0 < pacer.rate < 20.0
    before = provider.let_in
    provider.run(40.0)
    assert provider.let_in - before > 150
