"""Model comparison that names the cause of unexplained refusals: a number of slots, a rate, or chance.

Theory of operation. From the first refusal on, `RefusalCause` keeps the last attempts: when each was sent, how many
were in flight then, and whether it was refused. It also keeps the instants of the last answers. Three models predict
which attempts are refused:

- *Slots*: N calls run at once, so an attempt is refused where N run already. An answer on its way to the client has
  left its slot. So the provider ran as many calls as were in flight, except for the answers that the client received
  within a refusal round trip after the attempt was sent. A new connection makes that round trip longer, so it is taken
  from the refusals around the attempt.
- *Bucket*: units come back at a rate, up to a content. The content is known from the calls before the first refusal.
  Several rates are tried, and the best one counts. The level is an interval: a refusal shows that it was below one
  unit, an admitted call that it was not.
- *Chance*: a share of all attempts is refused, whatever is in flight and however fast the calls go.

No outcome is impossible under slots or a bucket: an attempt may have another cause, with the probability
`EXCLUDED_OUTCOME_CHANCE`. `log_odds` compares slots and a bucket of one rate, by the outcomes that each excludes.
`random_odds` compares chance and such a bucket. `ChanceOdds` compares chance with a bucket whose rate may change.

Chance is a hypothesis from the first refusal on. Its odds begin above even where the provider blames its own load, or
where announced quotas are ample. So the first refusals of that kind are believed random, and a few that slots or a
bucket explain better refute that.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from math import log

from tidegate.core.backoff import FIRST_GRACE_SECONDS
from tidegate.core.chance_odds import (
    BELIEVED_LOG_ODDS,
    EXCLUDED_OUTCOME_CHANCE,
    MAX_RANDOM_SHARE,
    PROVEN_LOG_ODDS,
    REMEMBERED_ATTEMPTS,
    ChanceOdds,
    SentAttempt,
)
from tidegate.core.rate_meter import Burst
from tidegate.core.values import INFINITY

COMPARED_ATTEMPTS = 4 * REMEMBERED_ATTEMPTS
"""Newest attempts by which chance and slots are compared. Chosen: slots show within a few refusals."""

JITTER_ROUND_TRIPS = 0.25
"""Share of a round trip by which travel times may differ: attempts sent that close to an answer prove nothing."""

TRIED_RATES = 16
RATE_STEP = 1.3
FIRST_TRIED_RATE_SHARE = 0.5
"""Rates that are tried for the bucket, ratio of each to the next, and share of the mean rate that is the first."""

LIKELY_STRAY_CHANCE = 0.5
"""Probability from which a refusal counts as one that the bucket has no part in."""

LIKELY_CHANCE_LOG_ODDS = PROVEN_LOG_ODDS
"""Logarithm of the first and best odds of chance against a bucket, where chance is likely: announced quotas are ample,
or the provider blames its own load. A rate limiter blames its client. Measured over 60 drawn streams of 2,000 attempts
that are refused at random: their clusters lower the odds by 11 at most, and chance is believed down to 3."""

SLOTS_CHANCE_LOG_ODDS = 5.0
"""Logarithm of the odds of chance against slots there: full slots too are refused as load. Raising it meets more
refusals at slots. Measured (even seeds): with 12, `hidden-slots` has 0.044 refusals a call instead of 0.034."""


LATE_BOUNDS_LATENCIES = (0.4, 2.5)
QUICK_LATENCIES = 0.1
"""Mean latencies within which a refusal takes as long as an answer (`LATE_BOUNDS_LATENCIES`), and below which it comes
at once (`QUICK_LATENCIES`). Measured, 8 odd seeds: late ones taken for no limit's take `bucket-and-chance` from 1.28 of
the ideal to 1.16 and `slots-and-chance` from 1.33 to 1.12. Without `QUICK_LATENCIES` a window that refuses within 0.1
to 1 s had 2.9 refusals a call instead of 0.4."""


class RefusalCause:
    """Last attempts of one key. The first refusal came after `run`.

    Where it came with nothing else in flight (`alone`), the run does not show the content of a bucket.
    """

    __slots__ = (
        "_alone",
        "_ample",
        "_answers",
        "_attempts",
        "_blamed",
        "_chance",
        "_fitted",
        "_fitted_at",
        "_quick_ones",
        "_round_trip",
        "_run",
        "believes_chance",
        "was_late",
    )

    def __init__(self, run: Burst, alone: bool = False) -> None:
        self._run = run
        self._alone = alone
        self._ample = self._blamed = self.believes_chance = False
        # Both kinds of odds need the same fits at each refusal.
        self._fitted: tuple[list[int], list[float]] = ([], [])
        self._fitted_at = -INFINITY
        self._round_trip = INFINITY
        # The newest refusal came as late as an answer, where another one came at once: no limit sent it.
        self.was_late = False
        # Refusals that came at once, less those that came neither so nor as late as an answer.
        self._quick_ones = 0
        self._chance = ChanceOdds(run, alone)
        self._attempts: deque[SentAttempt] = deque()
        self._answers: deque[float] = deque(maxlen=2 * REMEMBERED_ATTEMPTS)

    def expect_chance(self, ample: bool, blamed: bool) -> None:
        """Take in whether announced quotas are `ample` at a refusal, and whether the refusal `blamed` the client.

        Blame of the client ends what blame of the provider's load had shown, but ample quotas count for good.
        """
        self._ample = self._ample or ample
        self._blamed = self._blamed or (blamed and not ample)
        self._chance.expect(LIKELY_CHANCE_LOG_ODDS if self._ample or not self._blamed else 0.0)

    def sent(self, order: int, in_flight: int, now: float) -> None:
        """Record an attempt; attempts come in their order. Of those in flight, the outcome is still to come."""
        self._attempts.append(SentAttempt(order, in_flight, now))
        while len(self._attempts) > REMEMBERED_ATTEMPTS + in_flight:
            forgotten = self._attempts.popleft()
            if forgotten.order > self._chance.newest:
                self._chance.skip(forgotten)
        self._fitted_at = -INFINITY

    def answered(self, now: float) -> None:
        """Record an answer, which freed a slot; one of another process may come late."""
        later: list[float] = []
        while self._answers and self._answers[-1] > now:
            later.append(self._answers.pop())
        self._answers.append(now)
        self._answers.extend(reversed(later))

    def order_last(self, in_flight: int) -> None:
        """Put the last attempt in its place, where another process sent it before the ones that are recorded."""
        attempts = self._attempts
        last = attempts.pop()
        last.in_flight, place = in_flight, len(attempts)
        while place and attempts[place - 1].sent_at > last.sent_at:
            place -= 1
            attempts[place].in_flight += 1
        attempts.insert(place, last)

    def end_before(self, at: float) -> None:
        """Count an attempt that ended at `at` no longer among those in flight with the ones that were sent since."""
        for each in reversed(self._attempts):
            if each.sent_at <= at:
                break
            each.in_flight -= 1

    def refused(self, order: int, sent_at: float, now: float, latency: float = INFINITY) -> None:
        """Record a refusal; answers take `latency` seconds."""
        travel = now - sent_at
        self._round_trip = min(self._round_trip, travel)
        low, high = LATE_BOUNDS_LATENCIES
        late = low * latency < travel < high * latency
        if travel < QUICK_LATENCIES * latency:
            self._quick_ones += 1
        elif not late:
            self._quick_ones -= 1
        self.was_late = late and self._quick_ones > 0
        self._fitted_at = -INFINITY
        for attempt in reversed(self._attempts):
            if attempt.order == order:
                attempt.refused, attempt.travel = True, travel
                return

    def met(self, order: int, in_flight: int) -> int:
        """Return `in_flight` of a refused attempt without the earlier ones known to be refused: they held no slot."""
        attempt, vain = None, 0
        for each in reversed(self._attempts):
            if each.order == order:
                attempt = each
            elif attempt is not None and each.refused:
                vain += each.sent_at + each.travel > attempt.sent_at
        return max(1, in_flight - vain)

    def withdrawn(self, order: int) -> None:
        self._fitted_at = -INFINITY
        self._attempts = deque(each for each in self._attempts if each.order != order)

    def forget(self) -> None:
        """Forget all attempts, whose numbers in flight were wrong; the answers and the round trip still hold."""
        for each in self._attempts:
            if each.order > self._chance.newest:
                self._chance.skip(each)
        self._attempts.clear()
        self._fitted_at = -INFINITY

    def slots(self, now: float) -> int:
        """Return the number of slots that explains most outcomes."""
        return self._best_slots(self._known(now), self._overtakers(now))[1]

    def is_stray(self, in_flight: int, now: float) -> bool:
        """Return whether at least `in_flight` slots explain more outcomes than fewer slots do.

        A stray refusal may take as long as an answer, but to take it for a delay would let few slots explain all. No
        refusal of a lone call is stray, and none where slots leave many unexplained: that is a rate.
        """
        known = self._known(now)
        unexplained, number = self._best_slots(known, (), delayed=False, beyond=True)
        return number >= in_flight > 1 and unexplained <= MAX_RANDOM_SHARE * len(known)

    def slots_explain(self, now: float) -> bool:
        return self._best_slots(self._known(now), self._overtakers(now))[0] == 0

    def shows_slots(self, now: float) -> bool:
        """Return whether slots explain all outcomes without a delay, and an admitted call used one of them again.

        The calls of a window that is spent in one burst look like slots, too, until calls go after them.
        """
        known = self._known(now)
        unexplained, number = self._best_slots(known, (), delayed=False)
        return not unexplained and sum(not each.refused for each in known) > number

    def log_odds(self, now: float) -> float:
        """Return the logarithm of the odds that a bucket refused, and not the slots; 0 without a refusal.

        An attempt without a refusal counts as admitted after two refusal round trips.
        """
        known = self._known(now)
        if not any(each.refused for each in known):
            return 0.0
        misfits = self._best_slots(known, self._overtakers(now))[0]
        return (misfits - self._bucket_misfits(known, now)) * -log(EXCLUDED_OUTCOME_CHANCE)

    def random_odds(self, now: float) -> float:
        """Return the logarithm of the odds that attempts are refused at random, and not by a bucket of one rate."""
        known = self._known(now)
        refused = sum(each.refused for each in known)
        if not refused or refused == len(known):
            return -INFINITY
        share = refused / len(known)
        random = refused * log(share) + (len(known) - refused) * log(1.0 - share)
        misfits = self._bucket_misfits(known, now)
        return (
            random
            - misfits * log(EXCLUDED_OUTCOME_CHANCE)
            - (len(known) - misfits) * log(1.0 - EXCLUDED_OUTCOME_CHANCE)
        )

    def chance_odds(self, now: float) -> float:
        """Return the logarithm of the odds that attempts are refused at random, and by no bucket that may change.

        It is bounded, so a cause that begins later is believed soon. An attempt counts as admitted when the slowest
        refusal should have come.
        """
        last = max((each.order for each in self._attempts if each.refused), default=-1)
        # A refusal that arrives later than expected cannot be taken in any more: the first one may come early.
        slowest = self._slowest()
        for each in self._attempts:
            settled = now - (slowest if each.order < last else max(slowest, FIRST_GRACE_SECONDS))
            if not each.refused and each.order > self._chance.newest and each.sent_at > settled:
                break
            if each.order > self._chance.newest:
                self._chance.add(each)
        return self._chance.odds

    def is_random(self, now: float, new_wave: bool) -> bool:
        """Return whether neither slots nor a bucket refuse; what was once refuted in a wave stays so."""
        if new_wave or self.believes_chance:
            likely = self.chance_odds(now) > BELIEVED_LOG_ODDS or (
                self._chance.prior > 0.0 and self._chance.stray > LIKELY_STRAY_CHANCE
            )
            self.believes_chance = likely and self._beats_slots(now)
        return self.believes_chance

    def _beats_slots(self, now: float) -> bool:
        known = self._settled(self._attempts, now)[-COMPARED_ATTEMPTS:]
        refused = sum(each.refused for each in known)
        likely = self._chance.prior > 0.0
        if refused == len(known) and not likely:
            return False
        share = min(MAX_RANDOM_SHARE, refused / len(known)) if refused else EXCLUDED_OUTCOME_CHANCE
        random = refused * log(share) + (len(known) - refused) * log(1.0 - share)
        return random + SLOTS_CHANCE_LOG_ODDS * likely > self._slots_likelihood(known)

    def _slots_likelihood(self, known: list[SentAttempt]) -> float:
        """Return the logarithm of the probability of these outcomes under the best number of slots.

        Refusals at random may take as long as answers; counting them as delays would let slots explain all.
        """
        number, likelihood = self._best_slots(known, (), delayed=False)[1], 0.0
        for each, (least, running) in zip(known, self._running(known, (), delayed=False), strict=True):
            full = max(
                EXCLUDED_OUTCOME_CHANCE,
                min(1.0 - EXCLUDED_OUTCOME_CHANCE, (running - number + 1.0) / max(1.0, running - least + 1.0)),
            )
            likelihood += log(full if each.refused else 1.0 - full)
        return likelihood

    def _known(self, now: float) -> list[SentAttempt]:
        return self._settled(list(self._attempts)[-REMEMBERED_ATTEMPTS:], now)

    def _settled(self, attempts: Iterable[SentAttempt], now: float) -> list[SentAttempt]:
        settled = now - 2.0 * self._round_trip
        return [each for each in attempts if each.refused or each.sent_at <= settled]

    def _slowest(self) -> float:
        """Return the seconds after which an attempt without a refusal was admitted, by the slowest kept refusal."""
        longest = max((each.travel for each in self._attempts if each.refused), default=0.0)
        return max(2.0 * self._round_trip, (1.0 + JITTER_ROUND_TRIPS) * longest)

    def _overtakers(self, now: float) -> list[float]:
        """Return when the attempts were sent whose refusal would be here, but of which it is not certain."""
        certain, likely = now - 2.0 * self._round_trip, now - (1.0 - JITTER_ROUND_TRIPS) * self._round_trip
        return [each.sent_at for each in self._attempts if not each.refused and certain < each.sent_at <= likely]

    def _best_slots(
        self, known: list[SentAttempt], overtakers: Sequence[float], delayed: bool = True, beyond: bool = False
    ) -> tuple[int, int]:
        """Return the fewest outcomes that slots exclude, and their number, which explains the newest refusal."""
        ran = list(self._running(known, overtakers, delayed))
        newest = next((place for place in reversed(range(len(known))) if known[place].refused), None)
        # An attempt that was overtaken met more calls than were in flight when it was sent.
        most = 1 if newest is None else max(1, known[newest].in_flight - 1, ran[newest][1])
        if beyond:
            most = max([most, *(running + 1 for _, running in ran)])
        # Changes of the excluded outcomes from one number to the next.
        changes = [0] * (most + 2)
        for each, (least, running) in zip(known, ran, strict=True):
            # An admitted attempt excludes as many slots as ran already, a refused one all numbers above that.
            low, high = (max(0, running + 1), most) if each.refused else (0, max(0, least))
            if low <= (high := min(high, most)):
                changes[low] += 1
                changes[high + 1] -= 1
        excluded = list(accumulate(changes))
        return min((excluded[number], number) for number in range(1, most + 1))

    def _running(
        self, known: list[SentAttempt], overtakers: Sequence[float], delayed: bool
    ) -> Iterator[tuple[int, int]]:
        """Yield for each attempt the least and the most calls that the provider ran when it arrived there.

        Refusals under way with `delayed` attempts show the delay, and the attempts overtake each other by its spread.
        Attempts that were refused never ran.
        """
        refused = [(place, each) for place, each in enumerate(known) if each.refused] if delayed else []
        sent = [each.sent_at for each in known]
        for place, each in enumerate(known):
            shortest = travel = each.travel if each.refused and delayed else self._round_trip
            if not each.refused:
                near = (other.travel for _, other in refused if abs(other.sent_at - each.sent_at) <= other.travel)
                travel = max(near, default=shortest)
            before = bisect_right(self._answers, each.sent_at)
            soon = bisect_right(self._answers, each.sent_at + (1.0 - JITTER_ROUND_TRIPS) * shortest) - before
            late = bisect_right(self._answers, each.sent_at + (1.0 + JITTER_ROUND_TRIPS) * travel) - before
            vain = sum(its < place and other.sent_at + other.travel > each.sent_at for its, other in refused)
            running = each.in_flight - 1 - vain
            if not each.refused:
                yield running - late, running - soon
                continue
            # It was overtaken by attempts whose round trips are shorter.
            arrived = each.sent_at + travel - (1.0 - JITTER_ROUND_TRIPS) * self._round_trip
            last = bisect_right(sent, arrived)
            overtaking = sum(not other.refused for other in known[place + 1 : last])
            overtaking += sum(each.sent_at < other <= arrived for other in overtakers)
            yield running - late, running - soon + overtaking

    def rate(self, now: float) -> float:
        """Return the slowest rate in calls a second of a bucket that explains nearly all outcomes; 0: not known."""
        known = self._known(now)
        if not any(each.refused for each in known):
            return 0.0
        misfits, rates = self._fits(known, now)
        return next(rate for rate, count in zip(rates, misfits, strict=True) if count <= min(misfits) + 1)

    def _bucket_misfits(self, known: list[SentAttempt], now: float) -> int:
        return min(self._fits(known, now)[0])

    def _fits(self, known: list[SentAttempt], now: float) -> tuple[list[int], list[float]]:
        """Return the outcomes that buckets of several rates do not explain, and these rates."""
        if self._fitted_at == now:
            return self._fitted
        # Before the first refusal that is still kept, the level is not known.
        known = known[next(place for place, each in enumerate(known) if each.refused) :]
        seconds = max(known[-1].sent_at - known[0].sent_at, 1e-3)
        slowest = FIRST_TRIED_RATE_SHARE * max(1, sum(not each.refused for each in known)) / seconds
        rates = [slowest * RATE_STEP**step for step in range(TRIED_RATES)]
        self._fitted, self._fitted_at = ([self._misfits(known, rate) for rate in rates], rates), now
        return self._fitted

    def _misfits(self, known: list[SentAttempt], rate: float) -> int:
        content = INFINITY if self._alone else max(1.0, self._run.calls - rate * self._run.seconds)
        least, most, at, misfits = 0.0, 1.0, known[0].sent_at, 0
        for each in known:
            back, at = rate * (each.sent_at - at), each.sent_at
            least, most = min(content, least + back), min(content, most + back)
            if each.refused:
                if least >= 1.0:
                    misfits, least = misfits + 1, 0.0
                most = min(most, 1.0)
            elif most >= 1.0:
                least, most = max(least, 1.0) - 1.0, most - 1.0
            else:
                misfits, least, most = misfits + 1, 0.0, content - 1.0
        return misfits
