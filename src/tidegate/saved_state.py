"""The knowledge of a registry, as a frozen value for a file: `export_state` makes it, `initial_state` begins with it.

No secret is in it, nor anything made from one, except where `digest_key` was given: then it has the digests of
credentials, which only a process with the same key can compare. Without them a key is found by provider, base URL,
model and endpoint family, as long as only one credential goes with these.
"""

from __future__ import annotations

import json
import logging
import os
import stat
import tempfile
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from tidegate.core import saved_state as core
from tidegate.core.credentials import masked, without_digests
from tidegate.core.values import Key, Refill

VERSION = 1
"""Of what is written; a state of another version is left alone."""

KEPT_FOR = timedelta(days=7)
"""What is older says nothing of today (TLS 1.3 session tickets, RFC 8446 section 4.6.1: seven days at most)."""

LONGEST = 31 * 86_400.0
MOST = 1e15
MOST_KEYS = 10_000
MOST_BYTES = 64 * 1024 * 1024
"""Bytes of a state that are read: `MOST_KEYS` keys take some 10 MB. Parsing takes about five times as much memory."""

logger = logging.getLogger("tidegate")
Name = Annotated[str, Field(max_length=2048)]
Amount = Annotated[float, Field(ge=0.0, le=MOST)]
Seconds = Annotated[float, Field(ge=0.0, le=LONGEST)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class LearnedQuota(_Frozen):
    """A quota: `level` of `limit` units were left; all come back in `window` seconds, at once in `back_in` seconds."""

    name: Name
    unit: Name
    refill: Refill
    limit: Annotated[float, Field(ge=1.0, le=MOST)]
    window: Annotated[float, Field(ge=1e-3, le=LONGEST)]
    level: Amount
    back_in: Seconds | None = None
    stated: bool = False
    said: Refill = "continuous"


class LearnedKey(_Frozen):
    """One key as it was known on `taken_on`: its quotas, and the plain numbers of its other gates by name."""

    provider: Name
    base_url: Name
    credential: Name = ""
    scope: Name = ""
    family: Name = ""
    taken_on: AwareDatetime
    quotas: Annotated[tuple[LearnedQuota, ...], Field(max_length=64)] = ()
    gates: dict[Name, dict[Name, float]] = Field(default_factory=dict)

    @property
    def key(self) -> Key:
        """The key."""
        return Key(self.provider, self.base_url, self.credential, self.scope, self.family)

    def named(self, key: Key) -> LearnedKey:
        """Return the same of another key."""
        return self if key == self.key else self.model_copy(update=key._asdict())

    @property
    def learned(self) -> core.SavedKey:
        """Return what its admission begins with."""
        return core.SavedKey(tuple(core.SavedQuota(**dict(quota)) for quota in self.quotas), self.gates)

    @classmethod
    def of(cls, key: Key, learned: core.SavedKey, taken_on: datetime, with_digest: bool) -> LearnedKey:
        """Return what is carried of a key."""
        named = _masked(key) if with_digest else _at(key)
        quotas = tuple(LearnedQuota(**quota._asdict()) for quota in learned.quotas)
        gates = {name: dict(plain) for name, plain in learned.gates.items()}
        return cls(**named._asdict(), taken_on=taken_on, quotas=quotas, gates=gates)


class LearnedState(_Frozen):
    """Everything that one registry has learned, key by key.

    `digests` tells whether two states have digests of the same `digest_key`; empty where there are none.
    """

    version: int = VERSION
    digests: Name = ""
    keys: Annotated[tuple[LearnedKey, ...], Field(max_length=MOST_KEYS)] = ()

    def to_json(self) -> str:
        """The state as JSON."""
        return self.model_dump_json(indent=1)

    @classmethod
    def from_json(cls, text: str | bytes) -> LearnedState:
        """The state that was written; raises `ValueError` in one line where it is none.

        Of another version nothing is read but its number.
        """
        try:
            return cls.of(json.loads(text))
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"is no JSON: {error}") from None

    @classmethod
    def of(cls, plain: Any) -> LearnedState:
        """The same of what `json.loads` makes of it."""
        version = plain.get("version") if isinstance(plain, Mapping) else None
        if not isinstance(version, int):
            raise ValueError("is no learned state: it names no version")
        if version != VERSION:
            return cls(version=version)
        try:
            return cls.model_validate(plain)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise ValueError(f"is no learned state: {where}: {first['msg']}") from None

    @classmethod
    def read(cls, path: str | Path) -> LearnedState:
        """The state in a file; raises `ValueError` in one line where there is none."""
        try:
            return cls.from_json(_content(Path(path)))
        except OSError as error:
            raise ValueError(f"cannot be read: {error.strerror}") from None

    def write(self, path: str | Path) -> None:
        """Put the state into a file that only its owner can read, whole or not at all; raises `OSError`."""
        path = Path(path)
        # A name that nobody can know, made by us alone (O_EXCL, O_NOFOLLOW), mode 0600: see `tempfile.mkstemp`.
        descriptor, name = tempfile.mkstemp(prefix=".tidegate-", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(self.to_json().encode())
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    def over(self, earlier: LearnedState) -> LearnedState:
        """This state, and of `earlier` what it says nothing of."""
        if earlier.version != self.version or not self.keys:
            return earlier if earlier.version == self.version else self
        same = {each.key for each in self.keys}
        # An earlier version may have kept a credential in the path of an address.
        rest = [each.named(_masked(each.key)) for each in earlier.keys]
        if earlier.digests != self.digests:
            # Whose they are cannot be told any more: what goes to the same model is taken for the same.
            same = {_at(key) for key in same}
            rest = [each.named(_at(each.key)) for each in rest]
        rest = [each for each in rest if each.key not in same]
        return LearnedState(digests=self.digests, keys=(*rest, *self.keys)[-MOST_KEYS:])


def _content(path: Path) -> bytes:
    """Return what a regular file holds. Raises `ValueError` for any other, and for one of more than `MOST_BYTES`."""
    # A pipe that nobody writes to would be waited for: it is opened without blocking, and not read.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("is no regular file")
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"is larger than {MOST_BYTES} bytes")
    return content


class Seeds:
    """The knowledge of an earlier run: each entry is taken by one key, once.

    `digests` is what the registry's own would be called, `today` an aware time.
    """

    def __init__(self, state: LearnedState | None, digests: str, today: datetime) -> None:
        self._today = today
        self._left: dict[Key, LearnedKey | None] = {}
        if state is None:
            return
        if state.version != VERSION:
            logger.warning("the initial state is of version %d, not %d: it is ignored", state.version, VERSION)
            return
        self._comparable = bool(digests) and digests == state.digests
        self._sow([each for each in state.keys if today - each.taken_on <= KEPT_FOR], len(state.keys))

    def _sow(self, fresh: Iterable[LearnedKey], given: int) -> None:
        count = doubles = 0
        for each in fresh:
            count += 1
            place = self._place(each.key)
            doubles += place in self._left
            # Two credentials, and nothing to tell by which is which: neither is taken for the other.
            self._left[place] = None if place in self._left else each
        if count < given:
            what = f"{given - count} of its {given} keys are"
            logger.warning("the initial state is stale: %s older than %d days, and ignored", what, KEPT_FOR.days)
        elif doubles:
            what = "keys that differ in their credential alone, which only a digest_key tells apart"
            logger.warning("the initial state has %s: they are ignored", what)

    def __bool__(self) -> bool:
        return bool(self._left)

    def _place(self, key: Key) -> Key:
        return _masked(key) if self._comparable else _at(key)

    def take(self, key: Key) -> tuple[core.SavedKey, float] | None:
        """Return what was learned of `key`, and how many seconds before the beginning of this run."""
        found = self._left.pop(self._place(key), None)
        if found is None:
            return None
        return found.learned, max(0.0, (self._today - found.taken_on).total_seconds())


def _masked(key: Key) -> Key:
    """Return the key without a credential in the path of its address."""
    return key._replace(base_url=masked(key.base_url))


def _at(key: Key) -> Key:
    """Return the key without anything that was made from a credential, be it in a header or in the path."""
    return key._replace(credential="", base_url=without_digests(masked(key.base_url)))
