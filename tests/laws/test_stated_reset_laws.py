"""No wait for a quota outlasts the provider's own statement, whatever the table, the charges and the answers say.

Once nothing was charged since the newest reading of a quota, its newest reset (full again), or the time to wait of a
refusal, bounds the wait. The providers here are arbitrary: their readings contradict each other, the table's charging
rule, and the clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.admission_controller import AdmissionController
from tidegate.core.limiter_state import Permit
from tidegate.core.values import Cause, Cost, Key, Kind, Outcome, QuotaReading, Refill, Usage
from tidegate.settings import Settings

KEY = Key("any", "https://provider.test", "0123456789abcdef", "model")

amounts = st.sampled_from([0.0, 1.0, 7.0, 300.0, 20_000.0]) | st.floats(0.0, 30_000.0)
costs = st.builds(
    Cost,
    tokens=amounts,
    input_tokens=amounts,
    output_tokens=amounts,
    produced=amounts,
    held=amounts,
    input_estimate=amounts,
    output_bound=amounts,
    output_estimate=amounts,
    # Only sound costs reach a controller: the registry refuses others.
    requests=st.sampled_from([1.0, 1.0, 0.0]),
    weight=st.sampled_from([1.0, 1.0, 5.0]),
)


@dataclass(frozen=True)
class Answer:
    """The answer to one call: after how many seconds it comes, what it says, and what it used."""

    latency: float
    readings: tuple[QuotaReading, ...]
    refused: bool
    hint: float | None
    output: int | None


@st.composite
def quota_readings(draw: st.DrawFn, name: str, unit: str, refill: Refill) -> QuotaReading:
    limit = draw(st.sampled_from([1.0, 5.0, 60.0, 24_000.0]))
    return QuotaReading(
        name=name,
        unit=unit,
        refill=refill,
        limit=limit,
        remaining=float(round(limit * draw(st.sampled_from([0.0, 0.0, 0.1, 0.5, 0.9, 1.0])))),
        reset_after=draw(st.sampled_from([0.0, 0.001, 0.219, 1.0, 5.995, 42.0, 3600.0]) | st.floats(0.0, 90_000.0)),
        window=draw(st.sampled_from([None, None, None, 1.0, 60.0, 86_400.0])),
        resolution=draw(st.sampled_from([1e-6, 1e-3, 1.0])),
        from_receipt=draw(st.booleans()),
    )


@st.composite
def answers(draw: st.DrawFn) -> tuple[list[tuple[float, Cost, Answer]], float]:
    """A history of calls (seconds since the last one, cost, answer), and the table's window in seconds."""
    quotas = [
        (f"quota {number}", unit, draw(st.sampled_from(["continuous", "continuous", "fixed", "rolling"])))
        for number, unit in enumerate(draw(st.lists(st.sampled_from(UNITS), min_size=1, max_size=3)))
    ]
    history = []
    for _ in range(draw(st.integers(1, 12))):
        answer = Answer(
            draw(st.sampled_from([0.005, 0.5, 4.0]) | st.floats(0.001, 5.0)),
            tuple(draw(quota_readings(*quota)) for quota in quotas),
            draw(st.booleans()),
            draw(st.sampled_from([None, None, 0.5, 9.0])),
            draw(st.sampled_from([None, 0, 3, 5000])),
        )
        history.append((draw(st.sampled_from([0.0, 0.01, 0.3, 2.0])), draw(costs), answer))
    return history, draw(st.sampled_from([1.0, 60.0, 86_400.0]) | st.floats(0.5, 100_000.0))


UNITS = ("requests", "tokens", "input_tokens", "output_tokens")


def played(
    history: list[tuple[float, Cost, Answer]], default_window: float, begins: float
) -> tuple[AdmissionController, float]:
    """Return the key after all calls were answered, and the instant of the last answer; the clock `begins` so."""
    controller = AdmissionController(KEY, Settings(), default_window, begins)
    now, flights = begins, list[tuple[float, int, Permit, Answer]]()
    for after, cost, answer in history:
        now += after
        permit = controller.admit(cost, now, 0.0, None)
        flights.append((now + answer.latency, permit.order, permit, answer))
    for at, _, permit, answer in sorted(flights, key=lambda flight: flight[:2]):
        kind, cause = (Kind.RATE_LIMIT, Cause.RATE) if answer.refused else (Kind.OK, Cause.NONE)
        usage = Usage(1, answer.output) if answer.output is not None else None
        outcome = Outcome(kind, cause, answer.hint if answer.refused else None, answer.readings, usage=usage)
        controller.settle(permit, outcome, at, 0.5, None)
        now = max(now, at)
    return controller, now


@given(
    answers(),
    costs,
    st.sampled_from([None, 0.5, 30.0]),
    st.sampled_from([0.0, 0.1, 3.0, 100.0]),
    st.sampled_from([0.0, 1e6]) | st.floats(0.0, 1e7),
)
def test_no_wait_for_a_quota_outlasts_the_newest_reset_once_nothing_was_charged_since(
    made: tuple[list[tuple[float, Cost, Answer]], float], cost: Cost, hint: float | None, later: float, begins: float
) -> None:
    controller, now = played(*made, begins)
    # One call more, alone, whose answer reads every quota, later than a request can be overtaken on its way.
    newest = made[0][-1][2]
    now += LONGEST_TRANSIT
    permit = controller.admit(Cost(), now, 0.0, None)
    now += newest.latency
    kind = Kind.OK if hint is None else Kind.RATE_LIMIT
    cause = Cause.NONE if hint is None else Cause.RATE
    controller.settle(permit, Outcome(kind, cause, hint, newest.readings, usage=Usage(1, 0)), now, 0.5, None)
    stated = max((reading.reset_after or 0.0) + reading.resolution for reading in newest.readings)
    stated = max(stated, BELIEVED_SECONDS)
    ready, gate = controller.quotas.ready_at(cost, now + later)
    assert ready <= max(now + later, now + stated) + GUARD, f"{gate} waits beyond its newest reset"


def test_the_rounding_of_ended_reserves_holds_no_call_back() -> None:
    def answer(limit: float) -> Answer:
        readings = (
            QuotaReading("quota", "tokens", "continuous", limit, 0.0, 0.0, from_receipt=limit > 1.0),
            QuotaReading("calls", "requests", "continuous", 1.0, 0.0, 0.0),
        )
        return Answer(0.005, readings, False, None, None)

    outputs = [0.0, 0.0, 0.0, 18434.0, 2755.628163588339, 11578.55375832221]
    history = [
        (0.0, Cost(tokens=0.0, produced=each), answer(1.0 if place else 24000.0)) for place, each in enumerate(outputs)
    ]
    controller, now = played(history, 60.0, 0.0)
    now += LONGEST_TRANSIT
    permit = controller.admit(Cost(), now, 0.0, None)
    now += 0.005
    controller.settle(permit, Outcome(Kind.OK, readings=answer(1.0).readings, usage=Usage(1, 0)), now, 0.5, None)
    assert controller.quotas.ready_at(Cost(tokens=0.0, produced=1.0), now)[0] <= now + BELIEVED_SECONDS + GUARD


LONGEST_TRANSIT = 6.0
"""Seconds after which no charge of before can be unseen by the provider (`quota_base.MAX_UNDERWAY_SECONDS` and a
margin)."""

BELIEVED_SECONDS = 1.0
"""Shortest reset that is believed of any bucket; a shorter one only where more than half of the limit was left."""

GUARD = 0.05
"""Seconds that a fixed window's copy stays behind a boundary (`quota_base.RETURN_GUARD_SECONDS`), and rounding."""
