"""Snapshot of the state of keys, accounts and a registry, for people and programs; an unknown value is None."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import NamedTuple

from tidegate.core.admission_controller import AccountController, AdmissionController, ModelController
from tidegate.core.backoff import Pause
from tidegate.core.circuit_breaker import BreakerState
from tidegate.core.held_time import BindingShare, HeldTime, binding_shares, binding_text, program_use
from tidegate.core.provenance import LearnedValue, QuotaProvenance
from tidegate.core.quota import KeyQuotas
from tidegate.core.quota_base import QuotaMirror
from tidegate.core.rejection import DAY
from tidegate.core.token_totals import TokenTotals
from tidegate.core.values import INFINITY, Cost, Key
from tidegate.core.wait_text import QueueForecast, QuotaForecast, estimate_eta, failure_text, never_answered, per


def last_failure(admission: AdmissionController, gate: str) -> str:
    """Return what a key answered last in words, where that is why `gate` holds its calls; else ''."""
    last = admission.unavailability.last
    return failure_text(last) if last is not None and gate == "breaker" else ""


def cause_of(admission: AdmissionController, gate: str) -> str:
    """Return why `gate` holds the calls of a key, and whether the key ever answered one."""
    return "; ".join(filter(None, (last_failure(admission, gate), unanswered(admission))))


def unanswered(admission: AdmissionController) -> str:
    """Return in words that a key answered no call of any process that shares it; '' where it did."""
    counts = admission.all_counts
    return never_answered(counts.answered, counts.refused)


@dataclass(frozen=True, slots=True)
class QuotaSnapshot:
    """Mirrored quota: `limit` units of `unit` per `window` seconds, of which `level` are left as far as is known.

    A window that only the answers to a first burst suggest is not reported: until later requests confirm it, `window`
    is the provider's usual one.

    `charging` is the rule by which calls are charged: `table`, the provider table's, or the one that predicts the
    provider's own `remaining` better. It holds for `charging_for` seconds, and `charging_spans` spans of the limit have
    confirmed it. The newest one contradicts the rules in `charging_refuted`.
    """

    name: str
    unit: str
    limit: float
    window: float
    level: float
    charging: str = "table"
    charging_for: float = 0.0
    charging_spans: int = 0
    charging_refuted: tuple[str, ...] = ()


class Sharing(NamedTuple):
    """Sharing of a key's limits by `members` processes, this one included, through a `carrier` ('': not shared).

    `lost` is the reason why this process does not share now, empty while it does.
    """

    members: int = 1
    carrier: str = ""
    lost: str = ""


UNSHARED = Sharing()

NO_TOKENS = TokenTotals()


@dataclass(frozen=True, slots=True)
class KeySnapshot:
    """State of one key. Durations are in seconds.

    A call is any number of `attempts`: `unsent` calls had none so far. The `absorbed` refusals were retried, so the
    caller never saw them. `calls` counts all calls, `given_up` those that ended for lack of capacity. `failed` and
    `abandoned` count attempts. `failed_calls` counts calls that ended with a failure. `abandoned_calls` counts calls
    that their callers ended, in flight or in the queue.
    `retried` counts the attempts that followed a transient failure, `retried_calls` the calls with several attempts.

    Each of the `calls` is `answered`, `given_up`, one of the `failed_calls` or of the `abandoned_calls`, or `unended`:
    it is `in_flight`, `waiting`, or in a backoff.

    `ready_in` is the time until the next call could go (the first waiting one, else one request). It is 0 for now, and
    infinity when an attempt in flight must end first. `gate` is the limiter that holds it back until then. `eta` is the
    time until the last call waiting now is admitted, if no call goes before them. It is 0 where none waits, and None
    where it is unknown. `eta_gate` is the gate that determines it. `learnt` has the provenance of each gate's state,
    and how far to trust it.

    While a pause runs, `stated_wait` is the wait that the provider asked for, and `stated_for` the time until its end
    (both 0 where it named none). One call tries after `ready_in`, which may be much earlier.

    While the provider rejects the whole key, `rejected` is the cause (`auth`, `money`, `day`). `rejected_for` is the
    time for which calls wait for the one that asks, or until the reset that the provider named.

    `pace` is the calls per second that a learned rate admits now, 0 where none paces the key.

    The limits are those of `members` processes, this one included. They share them through a carrier, whose kind is
    `shared_through`; it is empty for a key that is not shared. `share_lost` is the reason why this process does
    not share now. The counts are of this process alone.

    `pool` is the number of connections of the client's pool, where one client with a known pool uses the key. At most
    so many attempts are in flight.

    `tokens` has the tokens and the cost of the answers whose usage is known.

    The key is in use since `elapsed` seconds, up to the end of its last attempt where none is in flight and no call
    waits. `held` has the part of them in which each gate held the first waiting call; `binding` gives their shares.

    `ignored` counts unusable values in responses. Latencies are of the last hundred answered attempts, None before the
    first. Costs are estimated by `chars_per_token` and `mean_output` (tokens an answer). `at` is the instant of the
    snapshot, in seconds of the registry's clock.
    """

    key: Key
    at: float
    limit: int
    in_flight: int
    waiting: int
    ready_in: float
    gate: str
    eta: float | None
    eta_gate: str
    learnt: tuple[LearnedValue, ...]
    breaker: str
    paused_for: float
    quotas: tuple[QuotaSnapshot, ...]
    attempts: int
    answered: int
    refused: int
    failed: int
    abandoned: int
    ignored: int
    calls: int
    given_up: int
    absorbed: int
    latency_mean: float | None
    latency_p50: float | None
    latency_p99: float | None
    chars_per_token: float
    mean_output: float
    failed_calls: int = 0
    retried: int = 0
    rejected: str = ""
    rejected_for: float = 0.0
    pool: int | None = None
    stated_wait: float = 0.0
    stated_for: float = 0.0
    abandoned_calls: int = 0
    unsent: int = 0
    retried_calls: int = 0
    latency_p95: float | None = None
    pace: float = 0.0
    members: int = 1
    shared_through: str = ""
    share_lost: str = ""
    tokens: TokenTotals = NO_TOKENS
    elapsed: float = 0.0
    held: Mapping[str, float] = field(default_factory=dict)

    @property
    def completed_calls(self) -> int:
        return self.answered

    @property
    def unended(self) -> int:
        return self.calls - self.answered - self.given_up - self.failed_calls - self.abandoned_calls

    @property
    def binding(self) -> list[BindingShare]:
        """Return what bound the calls of this key, largest first: shares (0 to 1) of the time by gate, or `program`."""
        return binding_shares(self.held, self.elapsed)

    @property
    def binding_text(self) -> str:
        """Return what bound the calls of this key in words; empty for a short use."""
        names = {quota.name: per(quota.name, quota.window) for quota in self.quotas}
        use = program_use(self.answered, self.latency_mean or 0.0, self.elapsed)
        return binding_text(self.held, self.elapsed, names, use)

    @property
    def ready_at(self) -> float:
        """Return when the next call could go, in seconds of the registry's clock."""
        return self.at + self.ready_in


@dataclass(frozen=True, slots=True)
class AccountSnapshot:
    """State of the quotas that the keys in `models` share: `waiting` calls, and `in_flight` attempts of all of them."""

    key: Key
    at: float
    quotas: tuple[QuotaSnapshot, ...]
    models: tuple[Key, ...]
    waiting: int
    in_flight: int
    paused_for: float


def account_snapshot(account: AccountController, waiting: int, now: float) -> AccountSnapshot:
    return AccountSnapshot(
        key=account.key,
        at=now,
        quotas=tuple(_quota_snapshots(account.quotas, now)),
        models=tuple(model.key for model in account.models),
        waiting=waiting,
        in_flight=account.in_flight,
        paused_for=max(0.0, account.pause.until - now),
    )


class _Sum:
    """Sum of one number over all keys of a snapshot."""

    def __set_name__(self, owner: object, name: str) -> None:
        self._name = name

    def __get__(self, snapshot: RegistrySnapshot, owner: object) -> int:
        return sum(getattr(each, self._name) for each in snapshot.keys.values())


@dataclass(frozen=True, slots=True)
class RegistrySnapshot:
    """State of every key that the registry knows, least recently used first.

    `accounts` are those whose keys share quotas, which are also among those of each key. The properties are sums over
    all keys, as `KeySnapshot` describes them. Each state is that of its own instant `at`, one shortly after the other.
    """

    keys: Mapping[Key, KeySnapshot]
    accounts: Mapping[Key, AccountSnapshot] = field(default_factory=dict)

    calls = _Sum()
    attempts = _Sum()
    answered = _Sum()
    given_up = _Sum()
    completed_calls = _Sum()
    retried_calls = _Sum()
    failed_calls = _Sum()
    abandoned_calls = _Sum()
    unended = _Sum()
    refused = _Sum()
    in_flight = _Sum()
    waiting = _Sum()

    @property
    def tokens(self) -> TokenTotals:
        return reduce(TokenTotals.plus, (each.tokens for each in self.keys.values()), NO_TOKENS)


def _quota_snapshots(quotas: KeyQuotas, now: float) -> Iterator[QuotaSnapshot]:
    provenance = quotas.provenance
    for name, mirror in quotas.mirrors.items():
        yield _quota_snapshot(mirror, provenance[name], now)


def _quota_snapshot(mirror: QuotaMirror, provenance: QuotaProvenance, now: float) -> QuotaSnapshot:
    known = QuotaSnapshot(mirror.name, mirror.unit, mirror.limit, provenance.reported_window, mirror.level(now))
    if mirror.charging is None:
        return known
    rule, since, spans, refuted = mirror.charging.evidence
    return replace(
        known,
        charging=rule,
        charging_for=now - since,
        charging_spans=spans,
        charging_refuted=refuted,
    )


def key_snapshot(
    admission: AdmissionController,
    waiting: int,
    head: Cost,
    mean: Cost,
    now: float,
    sharing: Sharing = UNSHARED,
    tokens: TokenTotals = NO_TOKENS,
    held: HeldTime | None = None,
) -> KeySnapshot:
    """Return the state of one key at `now`, with `waiting` calls: the first costs `head`, each `mean` on average."""
    ready, gate = admission.ready_at(head, now)
    rejection = admission.rejection
    opens = now if rejection is None else rejection.opens_at(now)
    if rejection is not None and opens > ready:
        ready, gate = opens, rejection.gate
    foreseen = estimate_eta(queue_forecast(admission, waiting, mean, now))
    pause = latest_pause(admission)
    stated = pause.stated_for(now)
    counts = admission.counts
    used_until = now if admission.in_flight or waiting else admission.used_at
    latencies = sorted(counts.latencies)
    return KeySnapshot(
        key=admission.key,
        at=now,
        limit=min(admission.concurrency.limit, admission.bound.highest),
        pool=admission.bound.pool,
        in_flight=admission.in_flight,
        waiting=waiting,
        ready_in=max(0.0, ready - now),
        gate=gate,
        eta=foreseen.seconds,
        eta_gate=foreseen.gate,
        learnt=tuple(_learnt(admission, now)),
        breaker=admission.breaker.state.value,
        paused_for=max(0.0, admission.pause.until - now),
        quotas=tuple(each for quotas in admission.shown_quotas for each in _quota_snapshots(quotas, now)),
        attempts=counts.attempts,
        answered=counts.answered,
        refused=counts.refused,
        failed=counts.failed,
        abandoned=counts.abandoned,
        ignored=counts.ignored,
        calls=counts.calls,
        given_up=counts.given_up,
        absorbed=counts.absorbed,
        latency_mean=sum(latencies) / len(latencies) if latencies else None,
        latency_p50=_percentile(latencies, 0.5),
        latency_p99=_percentile(latencies, 0.99),
        chars_per_token=admission.estimate.chars_per_token,
        mean_output=admission.estimate.mean_output,
        failed_calls=counts.failed_calls,
        retried=counts.resent - counts.absorbed,
        abandoned_calls=counts.abandoned + counts.left,
        unsent=counts.unsent,
        retried_calls=counts.retried_calls,
        latency_p95=_percentile(latencies, 0.95),
        pace=admission.pacer.sustained_rate if admission.pacer.active else 0.0,
        rejected=rejection.outcome.cause.value if rejection is not None and rejection.in_force else "",
        rejected_for=max(0.0, opens - now),
        stated_wait=pause.stated if stated else 0.0,
        stated_for=stated,
        members=sharing.members,
        shared_through=sharing.carrier,
        share_lost=sharing.lost,
        tokens=tokens,
        elapsed=0.0 if held is None else max(0.0, used_until - held.began_at),
        held={} if held is None else held.until(now),
    )


def latest_pause(admission: AdmissionController) -> Pause:
    """Return the pause of a key, or that of its account where it ends later."""
    if isinstance(admission, ModelController) and admission.account.pause.until > admission.pause.until:
        return admission.account.pause
    return admission.pause


def day_reset(admission: AdmissionController) -> float:
    """Return when a spent quota of the day returns, as the provider says; -infinity where it named no reset."""
    rejection = admission.rejection
    return -INFINITY if rejection is None or rejection.reset_at is None else rejection.reset_at


def queue_forecast(admission: AdmissionController, waiting: int, mean: Cost, now: float) -> QueueForecast:
    """Return the forecast of one key at `now` for `waiting` calls that cost `mean` on average."""
    pause = latest_pause(admission)
    tried, by = max(
        (pause.opens_at(now), "pause"), (admission.breaker.opens_at(now), "breaker"), (day_reset(admission), DAY)
    )
    stated = pause.stated_for(now)
    latencies = admission.counts.latencies
    return QueueForecast(
        waiting=waiting,
        closed_for=max(tried - now, stated),
        closed_by=by if tried > now else "",
        slots=admission.concurrency.limit,
        flights=tuple(now - permit.sent_at for permit in admission.permits_in_flight.values()),
        latency=sum(latencies) / len(latencies) if latencies else None,
        quotas=tuple(
            _quota_outlook(admission, mirror, mean, now)
            for quotas in admission.shown_quotas
            for mirror in quotas.mirrors.values()
        ),
        pace=admission.pacer.sustained_rate if admission.pacer.active else 0.0,
        tried_in=tried - now,
        stated=pause.stated if stated and by == "pause" else 0.0,
        paced_for=max(0.0, paced_until(admission) - now),
        cause=cause_of(admission, by if tried > now else ""),
    )


def paced_until(admission: AdmissionController) -> float:
    """Return when the learned rate lets the next call go; 0 where none paces."""
    pacer = admission.pacer
    return pacer.spacing.opened_at() if pacer.active and pacer.rate > 0.0 else 0.0


def _quota_outlook(admission: AdmissionController, mirror: QuotaMirror, mean: Cost, now: float) -> QuotaForecast:
    back = mirror.resets_at(now)
    amount = mean.amount(mirror.unit) + mean.reserve(mirror.unit)
    boundary = None if back is None else back - now
    return QuotaForecast(
        mirror.name,
        mirror.level(now),
        mirror.limit,
        mirror.window,
        boundary,
        amount,
        admission.waiting_with(mirror.name),
        mirror.margin,
    )


def _learnt(admission: AdmissionController, now: float) -> Iterator[LearnedValue]:
    quotas, provenance = admission.quotas, admission.provenance
    for mirror in quotas.mirrors.values():
        quota_provenance = quotas.provenance[mirror.name]
        yield quota_provenance.learnt(f"quota {mirror.name}", now, mirror.window)
        yield quota_provenance.learnt_window(f"window of {mirror.name}", now, mirror.window)
    yield provenance.limit.learnt("concurrency", now)
    if admission.pacer.active:
        yield provenance.pace.learnt("pace", now)
    if admission.pause.until > now:
        yield provenance.pause.learnt("pause", now)
    if admission.breaker.state is not BreakerState.CLOSED:
        yield provenance.breaker.learnt("breaker", now)


def _percentile(ascending: list[float], share: float) -> float | None:
    return ascending[int((len(ascending) - 1) * share)] if ascending else None
