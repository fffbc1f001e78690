"""State of a key as a checkpoint: the classes of which it consists, and the instants in it.

Theory of operation. Every class of the modules in `MODULES` may be in the state of a key; its fields are found by its
slots, so a new field is in the checkpoint without more. `INSTANTS` names the fields that hold instants of the monotonic
clock. `KEPT` names the fields that belong to one process and are not shared.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from enum import Enum
from types import ModuleType
from typing import Any

from tidegate.core import (
    backoff,
    charge_steps,
    charging,
    circuit_breaker,
    concurrency_limit,
    cost_estimator,
    fixed_window,
    growth_limit,
    hidden_window,
    input_charging,
    limiter_state,
    pacer,
    pacer_phases,
    provenance,
    quota,
    quota_base,
    ramp_phase,
    rate_meter,
    refill_check,
    refusal_cause,
    rejection,
    retry_hint,
    rolling_window,
    server_clock,
    token_bucket,
    unavailability,
    values,
    window_inference,
)
from tidegate.core.state_codec import AT, BEFORE, EITHER, EITHER_BEFORE, Shape, StateTable, UnknownState

MODULES: tuple[ModuleType, ...] = (
    backoff,
    charge_steps,
    charging,
    circuit_breaker,
    concurrency_limit,
    cost_estimator,
    fixed_window,
    growth_limit,
    hidden_window,
    input_charging,
    limiter_state,
    pacer,
    pacer_phases,
    provenance,
    quota,
    quota_base,
    ramp_phase,
    rate_meter,
    refill_check,
    refusal_cause,
    rejection,
    retry_hint,
    rolling_window,
    server_clock,
    token_bucket,
    unavailability,
    values,
    window_inference,
)
"""Modules whose classes may be in the state of a key."""

PAIR: Shape = (AT, AT)

INSTANTS: dict[str, dict[str, Shape]] = {
    "ChanceOdds": {"_at": AT},
    "ChargingModel": {"since": AT},
    "CautiousRamp": {"_at": AT, "began": AT},
    "CircuitBreaker": {"_closed_at": AT, "_failing_since": AT, "_silent_at": AT, "gives_up_at": AT, "ready_at": AT},
    "ConcurrencyLimit": {"_filled_at": AT, "_listens_until": AT, "_opens": AT, "_test_at": AT},
    "DrainDelay": {"_drained_at": AT},
    "FixedWindowMirror": {
        "since": AT,
        "stated_at": AT,
        "_anchor_at": AT,
        "_began_at": AT,
        "_empty": (AT, None, None),
        "_named": (AT, AT, AT),
        "_probe_at": AT,
        "_silent": (AT, AT, None),
        "_tried_at": AT,
    },
    "FoundLevel": {"sent_at": AT},
    "GrowthLimit": {
        "_begun_at": AT,
        "_delayed_at": AT,
        "_heard_at": AT,
        "_refused_at": AT,
        "_sends": [(AT, None)],
        "_tried": [(AT, None)],
        "_tried_at": AT,
    },
    "HiddenWindow": {
        "_before": [AT],
        "_begun": [(None, AT, AT)],
        "_calls": [AT],
        "_high": AT,
        "_low": AT,
        "_seen": AT,
    },
    "HintTrust": {"_begun": (AT, None), "_until": AT, "ends": AT},
    "KeyRejection": {"_probed_at": AT, "_rejected_at": AT, "reset_at": AT, "since": AT},
    "LatencyKnee": {"_again_at": AT, "_cut_at": AT},
    "LoggedCharge": {"charged_at": AT},
    "OutageClock": {"_down": (AT, None), "_since": (AT, None), "_stated_from": AT, "stated_until": AT},
    "PaceFloor": {"since": AT},
    "Pacer": {
        "_instead": (None, None, AT, None),
        "_lone_at": AT,
        "_next": AT,
        "_refused_at": AT,
        "_stated_before": (AT, AT),
        "_window_begun_at": AT,
        "stated": (AT, AT),
    },
    "PacingBucket": {"_at": AT, "_judged_at": AT},
    "Pause": {
        "_grace_until": AT,
        "opened_at": AT,
        "stated_until": AT,
        "until": AT,
    },
    "Permit": {"sent_at": AT},
    "Provenance": {"at": AT},
    "QuotaProvenance": {"_inferred_at": AT, "at": AT},
    "QuotaSet": {"_explore_at": AT, "_tab": [(None, None, None, AT, None)]},
    "RampPhase": {"_lone_at": AT},
    "RateMeter": {
        "_full_at": AT,
        "_sends": [(None, AT)],
        "_zero_at": AT,
        "_zero_stated": (AT, AT),
        "first_at": AT,
        "stated": (AT, AT),
    },
    "RefillCheck": {"_at": AT, "since": AT},
    "RefusalCause": {"_answers": [AT], "_fitted_at": AT},
    "ResetSlope": {"_points": {"": (None, EITHER_BEFORE)}},
    "ResetSchedule": {"_before": (AT, AT, PAIR, None), "_sign": PAIR, "high": AT, "low": AT},
    "RollingWindowMirror": {
        "_arrived_at": AT,
        "_back_at": AT,
        "_late_from": AT,
        "_late_until": AT,
        "since": AT,
        "stated_at": AT,
    },
    "SamplingBudget": {"until": AT},
    "SentAttempt": {"sent_at": AT},
    "ServerClock": {"_at": AT, "_high": BEFORE, "_low": BEFORE},
    "StartupPhase": {"_lead_until": AT},
    "TokenBucketMirror": {"_anchor_at": AT, "_ceiling_at": AT, "_waits_until": AT, "since": AT, "stated_at": AT},
    "WindowInference": {
        "_first": (AT, None),
        "_instant": (EITHER, EITHER),
        "_passes": AT,
        "_soonest": BEFORE,
        "_stood": (None, AT),
        "_taken": [(None, AT, AT)],
    },
}
"""Fields that hold instants, by class; a subclass names those of its bases too."""

CONTROLLER: dict[str, Shape] = {"_began": AT}
"""The fields of a controller that hold instants."""

ACCOUNT = ("order", "pause", "quotas", "slow_start")
"""The fields of an account that its processes share."""

SHARED = (
    "_attempts_before",
    "_began",
    "_refused_before",
    "answered_order",
    "breaker",
    "cause",
    "concurrency",
    "epoch",
    "estimate",
    "hints",
    "latency_knee",
    "order",
    "pacer",
    "pause",
    "permits_in_flight",
    "provenance",
    "rejection",
    "resumes",
    "tally",
    "unavailability",
)
"""The fields of a controller that its processes share; its quotas are written before them."""

OWN = (
    "admitted_at",
    "admitted_cost",
    "admitted_order",
    "aside",
    "bound",
    "counts",
    "failing",
    "generation",
    "given_at",
    "home",
    "key",
    "quotas",
    "refusal",
    "scarce",
    "untaken",
    "used_at",
)
"""The fields of a controller that belong to one process, and its quotas, which two levels may have."""

KEPT: dict[str, tuple[str, ...]] = {
    "Outcome": ("error",),
    "Permit": ("generation", "loop", "place", "thread", "trace"),
    "QuotaSet": ("_explores",),
    "ReplayableRefusal": ("body", "code", "credential"),
}
"""Fields that belong to one process, by class. No text of a provider leaves it. `_explores` is what a look found and
the next admission checks again."""

MAX_CHECKPOINT = 1 << 20
"""Bytes of a checkpoint at most, compressed. Chosen: the charges of a hundred thousand calls in one window."""

MAX_PLAIN = 32 << 20
"""Most bytes of a checkpoint, uncompressed: bounds the memory that a hostile checkpoint takes."""

BASES = ("LimiterState", "QuotaMirror")


def _classes() -> list[type]:
    found = {}
    for module in MODULES:
        for each in vars(module).values():
            if isinstance(each, type) and each.__module__ == module.__name__ and _is_state(each):
                found[each.__name__] = each
    return [found[name] for name in sorted(found)]


def _is_state(cls: type) -> bool:
    if cls.__name__ in BASES or getattr(cls, "_is_protocol", False):
        return False
    return issubclass(cls, Enum) or hasattr(cls, "_fields") or "__slots__" in vars(cls)


TABLE = StateTable(_classes(), INSTANTS, KEPT)


def write_checkpoint(plain: Mapping[str, Any]) -> bytes | None:
    """Return the payload of a checkpoint; None where it is too long."""
    text = json.dumps({"revision": TABLE.revision, **plain}, separators=(",", ":")).encode()
    packed = zlib.compress(text, 1)
    return packed if len(text) <= MAX_PLAIN and len(packed) <= MAX_CHECKPOINT else None


def read_checkpoint(payload: bytes) -> dict[str, Any]:
    """Return the plain form in a checkpoint. Raise an error, `UnknownState` or another, for a payload that is none."""
    if len(payload) > MAX_CHECKPOINT:
        raise UnknownState("checkpoint unreadable: it is too long")
    reader = zlib.decompressobj()
    text = reader.decompress(payload, MAX_PLAIN)
    if not reader.eof:
        raise UnknownState("checkpoint unreadable: it is truncated or too long")
    plain = json.loads(text)
    if plain["revision"] != TABLE.revision:
        raise UnknownState("checkpoint unreadable: another version of the state wrote it")
    if not isinstance(plain, dict):
        raise UnknownState("checkpoint unreadable: it is no object")
    return plain


def require(loaded: dict[str, Any], account: list[Any] | None, flights: dict[tuple[int, int], Any]) -> None:
    """Raise an error where the objects of a checkpoint are of other classes than the state has."""
    for quotas, fields in loaded.values():
        state = dict(zip(SHARED, fields, strict=True))
        if type(quotas) is not quota.QuotaSet or type(state["tally"]) is not limiter_state.KeyCounts:
            raise ValueError("checkpoint unreadable: its state is incomplete")
    if any(type(permit) is not limiter_state.Permit for permit in flights.values()):
        raise ValueError("checkpoint unreadable: an attempt is none")
    if account is not None and type(account[ACCOUNT.index("quotas")]) is not quota.QuotaSet:
        raise ValueError("checkpoint unreadable: its account is none")
