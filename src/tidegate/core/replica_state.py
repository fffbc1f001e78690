"""State of a key as a checkpoint: the classes of which it consists, and the instants in it.

Theory of operation. Every class of the modules in `MODULES` may be in the state of a key; its fields are found by its
slots, so a new field is in the checkpoint without more. A field with an instant of the monotonic clock says so by its
name, or is in `INSTANTS`. `KEPT` names the fields that belong to one process and are not shared.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from enum import Enum
from types import ModuleType
from typing import Any

from tidegate.core import (  # noqa: F401  # `MODULES` has them all
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
from tidegate.core.admission_controller import AdmissionController
from tidegate.core.state_codec import AT, BEFORE, EITHER, EITHER_BEFORE, Shape, StateTable, UnknownState, slots_of

MODULES = [each for each in [*vars().values()] if isinstance(each, ModuleType) and each.__package__ == __package__]
"""Modules above, whose classes may be in the state of a key."""

INSTANTS: dict[str, dict[str, Shape]] = {
    "CautiousRamp": {"began": AT},
    "ConcurrencyLimit": {"_opens": AT},
    "FixedWindowMirror": {"_empty": (AT, None, None), "_named": (AT, AT, AT), "_silent": (AT, AT, None)},
    "GrowthLimit": {"_sends": [(AT, None)], "_tried": [(AT, None)]},
    "HiddenWindow": {
        "_before": [AT],
        "_begun": [(None, AT, AT)],
        "_calls": [AT],
        "_high": AT,
        "_low": AT,
        "_seen": AT,
    },
    "HintTrust": {"_begun": (AT, None), "ends": AT},
    "OutageClock": {"_down": (AT, None), "_since": (AT, None)},
    "Pacer": {"_instead": (None, None, AT, None), "_next": AT, "_stated_before": (AT, AT), "stated": (AT, AT)},
    "QuotaSet": {"_tab": [(None, None, None, AT, None)]},
    "RateMeter": {"_sends": [(None, AT)], "_zero_stated": (AT, AT), "stated": (AT, AT)},
    "RefusalCause": {"_answers": [AT]},
    "ResetSlope": {"_points": {"": (None, EITHER_BEFORE)}},
    "ResetSchedule": {"_before": (AT, AT, (AT, AT), None), "_sign": (AT, AT), "high": AT, "low": AT},
    "ServerClock": {"_high": BEFORE, "_low": BEFORE},
    "WindowInference": {
        "_first": (AT, None),
        "_instant": (EITHER, EITHER),
        "_passes": AT,
        "_soonest": BEFORE,
        "_stood": (None, AT),
        "_taken": [(None, AT, AT)],
    },
}
"""Fields that hold instants without a name that says so (`state_codec.INSTANT`), by class; a subclass names those of
its bases too."""

CONTROLLER: dict[str, Shape] = {"_began": AT}
"""The fields of a controller that hold instants."""

ACCOUNT = ("order", "pause", "quotas", "slow_start")
"""The fields of an account that its processes share."""

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

SHARED = (*(name for name in slots_of(AdmissionController) if name not in OWN), "tally")
"""The fields of a controller that its processes share; its quotas are written before them."""

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
