"""An outage of a few seconds loses no call whose caller repeats it, as the SDKs do, twice more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.laws.strategies import Caller, world, worlds
from tidegate.core.exchange import Ending
from tidegate.core.values import Cause, Kind, Outcome
from tidegate.settings import Settings
from tidegate.testing import Limit
from tidegate.testing.specs import OutageSpan

# Enough calls wait when the outage begins for five of them to fail one after the other.
busy = st.integers(100, 300).map(lambda count: [Caller(at=0.0) for _ in range(count)])
half_a_second = worlds.map(lambda facts: {**facts, "slowest": 0.5})
spans = st.tuples(st.integers(0, 5), st.integers(1, 50)).map(
    lambda tenths: OutageSpan(start=tenths[0] / 10, end=(tenths[0] + tenths[1]) / 10)
)
# Long enough for the breaker to open: until the answers of earlier calls are old, failures may show a limit.
long_spans = st.integers(20, 50).map(lambda tenths: OutageSpan(start=0.7, end=0.7 + tenths / 10))
TWENTY = Settings(max_concurrency=20)
downs = st.sampled_from(
    [
        Outcome(Kind.TRANSIENT, Cause.OUTAGE, status=500),
        Outcome(Kind.OVERLOADED, Cause.UNAVAILABLE, status=503),
        Outcome(Kind.OVERLOADED, Cause.NOT_READY, status=503),
    ]
)


@given(busy, half_a_second, spans, st.booleans(), downs)
def test_a_five_second_outage_loses_no_call_that_may_be_repeated(
    made: list[Caller], facts: dict[str, float], span: OutageSpan, limited: bool, down: Outcome
) -> None:
    limits = (Limit(limit=600, window=60.0),) if limited else ()
    played = world(limits, made, facts, outages=(span,), repeats=2, settings=TWENTY, down=down)
    played.run()
    assert {ended.ending for ended in played.ended.values()} == {Ending.ANSWERED}
    assert len(played.ended) == len(made)


@given(busy, half_a_second, spans, downs)
def test_while_the_breaker_is_open_the_provider_is_asked_by_probes_alone(
    made: list[Caller], facts: dict[str, float], span: OutageSpan, down: Outcome
) -> None:
    played = world((), made, facts, outages=(span,), repeats=2, settings=TWENTY, down=down)
    played.run()
    settled = span.start + 2 * facts["network"] + facts["slowest"]
    during = sorted(attempt.sent_at for attempt in played.attempts if settled < attempt.sent_at < span.end)
    assert len(during) <= 20


@given(busy, half_a_second, spans)
def test_a_model_that_is_loaded_is_waited_for_by_callers_that_repeat_nothing(
    made: list[Caller], facts: dict[str, float], span: OutageSpan
) -> None:
    down = Outcome(Kind.OVERLOADED, Cause.NOT_READY, status=503)
    played = world((), made, facts, outages=(span,), settings=TWENTY, down=down)
    played.run()
    assert {ended.ending for ended in played.ended.values()} == {Ending.ANSWERED}


@given(busy, half_a_second, long_spans)
def test_after_the_first_answer_as_many_calls_are_in_flight_as_before_the_outage(
    made: list[Caller], facts: dict[str, float], span: OutageSpan
) -> None:
    played = world((), made, facts, outages=(span,), repeats=2, settings=TWENTY)
    played.run()
    answered = [attempt for attempt in played.attempts if attempt.admitted]
    after = [attempt.sent_at for attempt in answered if attempt.at >= span.end]
    assert 0 < len(after) < len(answered)
    first_answer = min(after) + 2 * facts["network"] + facts["slowest"]
    assert sum(sent_at <= first_answer + 1e-6 for sent_at in after) >= min(20, len(after))
