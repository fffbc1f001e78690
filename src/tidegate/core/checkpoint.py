"""State of a key as a checkpoint: the classes of which it consists, the instants in it, and its plain form.

Theory of operation. The objects of a key's limiters refer to each other, and one charge may be in several lists. The
encoder walks them by their slots. It numbers each object and each list at its first occurrence, and writes the number
from then on, so the decoder builds the same graph. Every class of the modules in `MODULES` may be in the state, so a
new field is in the checkpoint without more. Only these classes are written or read. They are made without their
constructor, and nothing else is called. So a hostile text makes odd state at worst, never a foreign object.

A field that holds an instant says so by its name (`INSTANT`), or is in `INSTANTS`. The decoder moves instants by the
distance between the clocks of the two processes, which is zero on one host. `KEPT` names the fields that belong to one
process and are not shared.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum
from types import ModuleType
from typing import Any, TypeAlias

from tidegate.core import (  # noqa: F401  # `MODULES` has them all
    backoff,
    ceiling,
    chance_odds,
    charging,
    circuit_breaker,
    concurrency_limit,
    cost_estimator,
    fixed_window,
    growth_limit,
    hidden_window,
    limiter_state,
    pacer,
    pacer_phases,
    provenance,
    quota,
    quota_base,
    quota_charges,
    ramp_phase,
    rate_meter,
    refill_meter,
    refusal_cause,
    rejection,
    reset_schedule,
    rolling_window,
    server_clock,
    token_bucket,
    values,
    window_bounds,
    window_inference,
    windowed_phase,
)
from tidegate.core.admission_controller import AdmissionController

Shape: TypeAlias = "int | tuple[Shape, ...] | list[Shape] | None"
"""Place of the instants in a value: `AT`, `BEFORE` or `EITHER` for a number, a tuple of shapes for a tuple, a list with
one shape for each element of a sequence, None without any."""

AT = 1
"""Shape of an instant in monotonic seconds."""

BEFORE = -1
"""Shape of a number from which an instant was subtracted, such as the distance between two clocks."""

EITHER = 2
"""Shape of an instant in monotonic seconds or in seconds since 1970, which are more than `CALENDAR_SECONDS`."""

INSTANT = re.compile(r"(?:^|_)(?:at|since|until|from)$")
"""Names of the fields that hold an instant in monotonic seconds."""

CALENDAR_SECONDS = 1e9
"""Seconds from which on an instant is one of the calendar: monotonic clocks count from the start of a machine."""

UNSET = "u"
"""Tag of a slot that has no value yet."""


class UnknownState(ValueError):
    """A text or an object that is not state of the table."""


def slots_of(cls: type) -> tuple[str, ...]:
    """Return the names of all slots of a class, those of its bases first."""
    found: list[str] = []
    for each in reversed(cls.__mro__):
        slots = each.__dict__.get("__slots__", ())
        found += [name for name in ((slots,) if isinstance(slots, str) else slots) if name not in found]
    return tuple(found)


class StateTable:
    """The classes of which state consists, and the shapes of their fields that hold instants.

    `kept` names fields by class that belong to one process: they are not written. A new object has None in them, a
    named tuple its defaults, and an object that is reused keeps them. `revision` differs between two tables of which
    one cannot read the other's text.
    """

    def __init__(
        self,
        classes: Iterable[type],
        shapes: Mapping[str, Mapping[str, Shape]],
        kept: Mapping[str, Collection[str]],
    ) -> None:
        self.classes = {each.__name__: each for each in classes}
        self.fields = {
            name: tuple(
                (slot, shapes.get(name, {}).get(slot, AT if INSTANT.search(slot) else None))
                for slot in _names_of(each)
                if slot not in kept.get(name, ())
            )
            for name, each in self.classes.items()
        }
        self.kept = {name: tuple(kept.get(name, ())) for name in self.classes}
        text = repr(sorted(self.fields.items()))
        self.revision = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _names_of(cls: type) -> tuple[str, ...]:
    if issubclass(cls, Enum):
        return ()
    if issubclass(cls, tuple):
        fields: tuple[str, ...] = cls._fields  # type: ignore[attr-defined]
        return fields
    return slots_of(cls)


class StateEncoder:
    """Encoder of one graph. `named` gives the names of objects that the reader has already; they are not written.

    `name_of` gives the name of an object that the reader may have already, so that it is filled in place; '' else.
    """

    def __init__(
        self, table: StateTable, named: Mapping[int, str], name_of: Callable[[object], str] = lambda _: ""
    ) -> None:
        self._table = table
        self._named = named
        self._name_of = name_of
        self._numbers: dict[int, int] = {}
        self._alive: list[object] = []

    def encode(self, value: Any) -> Any:
        """Return the plain form of a value. Raise `UnknownState` for an object that no table names."""
        if value is None or value is True or value is False:
            return value
        cls = type(value)
        if cls is float or cls is int or cls is str:
            return value
        if cls is tuple:
            return ["t", *map(self.encode, value)]
        if cls is bytes:
            return ["b", b64encode(value).decode()]
        if cls is frozenset:
            return ["f", *sorted(map(self.encode, value))]
        if cls not in (list, deque, dict, set):
            return self._encode_object(value, cls)
        number = self._number(value)
        if number is not None:
            return ["r", number]
        if cls is list:
            return ["l", *map(self.encode, value)]
        if cls is deque:
            return ["q", value.maxlen, *map(self.encode, value)]
        if cls is dict:
            return ["d", *(self.encode(each) for pair in value.items() for each in pair)]
        return ["s", *sorted(map(self.encode, value))]

    def _number(self, value: object) -> int | None:
        """Return the number of an object that was written before; else give it the next one."""
        number = self._numbers.get(id(value))
        if number is None:
            self._numbers[id(value)] = len(self._numbers)
            # An identity is unique only while its object lives.
            self._alive.append(value)
        return number

    def _encode_object(self, value: Any, cls: type) -> Any:
        known = self._named.get(id(value))
        if known is not None:
            return ["x", known]
        name = cls.__name__
        if self._table.classes.get(name) is not cls:
            raise UnknownState(f"state of {cls.__module__}.{name} unknown: its class is not in the table")
        if isinstance(value, Enum):
            return ["e", name, value.value]
        if isinstance(value, tuple):
            written = _part(value, self._table.fields[name]) if self._table.kept[name] else value
            return ["n", name, *map(self.encode, written)]
        number = self._number(value)
        if number is not None:
            return ["r", number]
        fields = [
            self.encode(getattr(value, slot)) if hasattr(value, slot) else [UNSET]
            for slot, _ in self._table.fields[name]
        ]
        return ["o", name, self._name_of(value), *fields]


class StateDecoder:
    """Decoder of one graph; the reverse of `StateEncoder`.

    `named` gives the objects that were not written, by name. `reuse` returns the object of a name that is filled in
    place, None to make a new one. Instants are moved by `shift` seconds.
    """

    def __init__(
        self,
        table: StateTable,
        named: Mapping[str, object],
        reuse: Callable[[str], object | None] = lambda _: None,
        shift: float = 0.0,
    ) -> None:
        self._table = table
        self._named = named
        self._reuse = reuse
        self._shift = shift
        self._objects: list[object] = []
        # Objects that are reused are filled once all is read, so that a bad text changes nothing.
        self._filled: list[tuple[object, dict[str, Any]]] = []

    def decode(self, plain: Any, shape: Shape = None) -> Any:
        """Return the value of a plain form. Raise `UnknownState` or another error for a text that is none."""
        if not isinstance(plain, list):
            return self._moved(plain, shape) if isinstance(shape, int) and self._shift else plain
        tag, *rest = plain
        if tag == "o":
            return self._decode_object(*rest)
        if tag == "n":
            return self._decode_tuple(*rest)
        if tag == "r":
            return self._objects[rest[0]]
        if tag == "e":
            return self._class_of(rest[0])(rest[1])
        if tag == "x":
            return self._named[rest[0]]
        if tag == "b":
            return b64decode(rest[0])
        return self._decode_container(tag, rest, shape)

    def _moved(self, plain: Any, shape: int) -> Any:
        if type(plain) is not float and type(plain) is not int:
            return plain
        if shape == EITHER:
            return plain if plain > CALENDAR_SECONDS else plain + self._shift
        return plain + shape * self._shift

    def apply(self) -> None:
        """Fill the objects that are reused."""
        for each, fields in self._filled:
            for slot, value in fields.items():
                setattr(each, slot, value)
        self._filled.clear()

    def _decode_container(self, tag: str, rest: list[Any], shape: Shape) -> Any:
        if tag == "t":
            shapes = shape if isinstance(shape, tuple) else (_inner(shape),) * len(rest)
            return tuple(self.decode(each, inner) for each, inner in zip(rest, shapes, strict=True))
        if tag == "f":
            return frozenset(map(self.decode, rest))
        inner = _inner(shape)
        made: Any
        if tag == "l":
            self._objects.append(made := [])
            made += [self.decode(each, inner) for each in rest]
            return made
        if tag == "q":
            self._objects.append(made := deque(maxlen=rest[0]))
            made += [self.decode(each, inner) for each in rest[1:]]
            return made
        if tag == "d":
            self._objects.append(made := {})
            for key, value in zip(rest[::2], rest[1::2], strict=True):
                made[self.decode(key)] = self.decode(value, inner)
            return made
        if tag == "s":
            self._objects.append(made := set())
            made.update(map(self.decode, rest))
            return made
        raise UnknownState(f"state unreadable: tag {tag!r} is unknown")

    def _class_of(self, name: str) -> Any:
        cls = self._table.classes.get(name)
        if cls is None:
            raise UnknownState(f"state unreadable: class {name!r} is unknown")
        return cls

    def _decode_tuple(self, name: str, *fields: Any) -> Any:
        shapes = self._table.fields[name]
        cls = self._class_of(name)
        if not issubclass(cls, tuple):
            raise UnknownState(f"state unreadable: {name} is no tuple")
        return cls(**{slot: self.decode(each, shape) for each, (slot, shape) in zip(fields, shapes, strict=True)})

    def _decode_object(self, name: str, own_name: str, *fields: Any) -> Any:
        cls = self._class_of(name)
        if issubclass(cls, tuple | Enum):
            raise UnknownState(f"state unreadable: {name} is no object")
        found = self._reuse(own_name) if own_name else None
        made = found if type(found) is cls else cls.__new__(cls)
        self._objects.append(made)
        filled = {
            slot: self.decode(each, shape)
            for (slot, shape), each in zip(self._table.fields[name], fields, strict=True)
            if each != [UNSET]
        }
        if made is found:
            self._filled.append((made, filled))
            return made
        for slot in self._table.kept[name]:
            setattr(made, slot, None)
        for slot, value in filled.items():
            setattr(made, slot, value)
        return made


def _part(value: object, fields: Iterable[tuple[str, Shape]]) -> tuple[Any, ...]:
    return tuple(getattr(value, name) for name, _ in fields)


def _inner(shape: Shape) -> Shape:
    if isinstance(shape, list):
        return shape[0]
    return shape if isinstance(shape, int) else None


MODULES = [each for each in [*vars().values()] if isinstance(each, ModuleType) and each.__package__ == __package__]
"""Modules above, whose classes may be in the state of a key."""

INSTANTS: dict[str, dict[str, Shape]] = {
    "CautiousRamp": {"began": AT},
    "ConcurrencyLimit": {"_opens": AT},
    "FixedWindowMirror": {"_named": (AT, AT, AT)},
    "GrowthLimit": {"_sends": [(AT, None)], "_tried": [(AT, None)]},
    "HiddenWindow": {
        "_before": [AT],
        "_begun": [(None, AT, AT)],
        "_calls": [AT],
        "_former": ([(None, AT, AT)], None, None, None),
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
    "ResetSchedule": {"_sign": (AT, AT), "high": AT, "low": AT},
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
    "calm_slots",
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
    "Ceiling": ("_unsent",),
    "Outcome": ("error",),
    "Permit": ("generation", "loop", "place", "seen", "thread", "trace"),
    "QuotaSet": ("_explores",),
}
"""Fields that belong to one process, by class. No text of a provider leaves it. `_explores` is what a look found and
the next admission checks again."""

MAX_CHECKPOINT_BYTES = 128_000
"""Bytes of a checkpoint at most, compressed: less than a quarter of the entries that a host's log keeps."""

MAX_PLAIN_BYTES = 32 << 20
"""Most bytes of a checkpoint, uncompressed: bounds the memory that a hostile checkpoint takes."""

BASES = ("LimiterState", "QuotaCharges", "QuotaMirror", "SharedNames", "AccountQuotas", "TwoLevelQuotas")


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
    return packed if len(text) <= MAX_PLAIN_BYTES and len(packed) <= MAX_CHECKPOINT_BYTES else None


def read_checkpoint(payload: bytes) -> dict[str, Any]:
    """Return the plain form in a checkpoint. Raise an error, `UnknownState` or another, for a payload that is none."""
    if len(payload) > MAX_CHECKPOINT_BYTES:
        raise UnknownState("checkpoint unreadable: it is too long")
    reader = zlib.decompressobj()
    text = reader.decompress(payload, MAX_PLAIN_BYTES)
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
