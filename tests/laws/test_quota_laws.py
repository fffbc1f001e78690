"""Never above a quota, in any window, as the provider counts it.

The network takes the same time for all, headers are exact and so are costs: nothing is left to chance but when calls
come, how long they take and who goes away. Then a refusal can only befall what was sent before anything was known, or
answer for a call that went away before.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.laws.strategies import Caller, buckets, callers, windows, world, worlds
from tests.laws.world import World
from tidegate.core.concurrency_limit import START_CONCURRENCY
from tidegate.core.exchange import Ending
from tidegate.testing import Limit


def refused_knowingly(played: World) -> list[tuple[int, float]]:
    return [
        (attempt.row, attempt.at)
        for attempt in played.attempts
        if not attempt.admitted and attempt.sent_at > played.first_reading_at
    ]


def gone_unknown(played: World, made: list[Caller]) -> int:
    """How many went away before anything was known: the provider counted them, and nobody here could."""
    return sum(
        caller.gone_after is not None and caller.at + caller.gone_after <= played.first_reading_at for caller in made
    )


def play(limiters: tuple[Limit, ...], made: list[Caller], facts: dict[str, float]) -> World:
    played = world(limiters, made, facts)
    played.run()
    return played


@given(buckets(), callers(), worlds)
def test_no_request_overdraws_a_bucket_once_it_is_known(
    limit: Limit, made: list[Caller], facts: dict[str, float]
) -> None:
    played = play((limit,), made, facts)
    assert len(refused_knowingly(played)) <= gone_unknown(played, made)
    # A refused attempt leaves its slot to another one, which goes before an answer tells the quota.
    assert sum(not attempt.admitted for attempt in played.attempts) <= 2 * START_CONCURRENCY


@given(buckets(lowest=100, highest=200), callers(most=300, stays=True), worlds)
def test_answers_left_unread_while_quota_is_ample_overdraw_nothing(
    limit: Limit, made: list[Caller], facts: dict[str, float]
) -> None:
    played = play((limit,), made, facts)
    assert refused_knowingly(played) == []


@given(windows(), callers(), worlds)
def test_no_request_overdraws_a_window_once_it_is_known(
    limit: Limit, made: list[Caller], facts: dict[str, float]
) -> None:
    played = play((limit,), made, facts)
    assert len(refused_knowingly(played)) <= gone_unknown(played, made)


@given(buckets(), windows(), callers(), worlds)
def test_of_two_quotas_neither_is_overdrawn(
    first: Limit, second: Limit, made: list[Caller], facts: dict[str, float]
) -> None:
    named = Limit(kind="fixed", limit=second.limit, window=second.window, offset=second.offset, name="second")
    played = play((first, named), made, facts)
    assert len(refused_knowingly(played)) <= gone_unknown(played, made)


@given(buckets("tokens", 1000, 5000), callers(tokens=900), worlds)
def test_tokens_of_known_number_are_refused_once_in_a_while_at_most(
    limit: Limit, made: list[Caller], facts: dict[str, float]
) -> None:
    """`remaining` comes rounded, and an estimate is taken for worth a little more or less than it is."""
    played = play((limit,), made, facts)
    assert len(refused_knowingly(played)) <= 2 + len(made) // 10


@given(buckets(lowest=2), callers(most=30, stays=True), worlds, st.integers(1, 30))
def test_what_another_tenant_takes_is_refused_once_a_round_at_most(
    limit: Limit, made: list[Caller], facts: dict[str, float], taken: int
) -> None:
    played = world((limit,), made, facts)

    def take() -> None:
        quota = played.gate.limiters[0]
        quota.charge(min(float(taken), quota.remaining(played.now)), played.now)

    played.after(5.0, take)
    played.run()
    assert len(refused_knowingly(played)) <= START_CONCURRENCY
    assert {ended.ending for ended in played.ended.values()} == {Ending.ANSWERED}
