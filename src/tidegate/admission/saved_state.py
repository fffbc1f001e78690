"""Knowledge of a registry as a frozen value for a file: `export_state` makes it, `initial_state` starts from it.

It holds no secret. With `digest_key` it holds digests of credentials, which only a process with the same key can
compare. Without digests a key is found by provider, base URL, model and endpoint family, while only one credential goes
with these.

A later tidegate may write fields that this one does not know, within the same version of the format: they are left out.
A state of another version is ignored as a whole.
"""

from __future__ import annotations

import json
import logging
import os
import stat
import tempfile
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

import tidegate.admission.log_redaction  # noqa: F401  # its filter precedes every record
from tidegate.core import saved_state as core
from tidegate.core.safe_text import masked, without_digests
from tidegate.core.values import Key, Refill

VERSION = 1
"""Version of the written format; a state of another version is ignored."""

MAX_AGE = timedelta(days=7)
"""Age above which knowledge is ignored, as that of TLS 1.3 session tickets (RFC 8446, section 4.6.1)."""

MAX_SECONDS = 31 * 86_400.0
"""Seconds of the longest window or reset that is accepted. Derived from the longest month."""

MAX_AMOUNT = 1e15
"""Units of the largest limit or level that is accepted. Derived from `core.values.MAX_AMOUNT`."""

MAX_KEYS = 10_000
"""Keys of one state; an export keeps the last ones. Chosen: far above the keys of one program."""

MAX_BYTES = 64 * 1024 * 1024
"""Bytes of a state that are read. Chosen: `MAX_KEYS` keys take some 10 MB."""

logger = logging.getLogger("tidegate")
Name = Annotated[str, Field(max_length=2048)]
Amount = Annotated[float, Field(ge=0.0, le=MAX_AMOUNT)]
Seconds = Annotated[float, Field(ge=0.0, le=MAX_SECONDS)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class LearnedQuota(_Frozen):
    """Quota with `level` of `limit` units left; all return in `window` seconds, at once in `back_in` seconds."""

    name: Name
    unit: Name
    refill: Refill
    limit: Annotated[float, Field(ge=1.0, le=MAX_AMOUNT)]
    window: Annotated[float, Field(ge=1e-3, le=MAX_SECONDS)]
    level: Amount
    back_in: Seconds | None = None
    stated: bool = False
    said: Refill = "continuous"


class LearnedKey(_Frozen):
    """One key as known on `taken_on`: its quotas, and the plain numbers of its other gates (limiters) by name."""

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
        return Key(self.provider, self.base_url, self.credential, self.scope, self.family)

    def named(self, key: Key) -> LearnedKey:
        return self if key == self.key else self.model_copy(update=key._asdict())

    @property
    def learned(self) -> core.SavedKey:
        """Return the knowledge as the admission controller takes it."""
        return core.SavedKey(tuple(core.SavedQuota(**dict(quota)) for quota in self.quotas), self.gates)

    @classmethod
    def of(cls, key: Key, learned: core.SavedKey, taken_on: datetime, with_digest: bool) -> LearnedKey:
        """Return the entry of a key; without `with_digest` it holds no digest."""
        named = _masked(key) if with_digest else _at(key)
        quotas = tuple(LearnedQuota(**quota._asdict()) for quota in learned.quotas)
        gates = {name: dict(plain) for name, plain in learned.gates.items()}
        return cls(**named._asdict(), taken_on=taken_on, quotas=quotas, gates=gates)


class LearnedState(_Frozen):
    """All knowledge of one registry, key by key.

    `digests` is equal for states with the same `digest_key`, and empty without digests.
    """

    version: int = VERSION
    digests: Name = ""
    keys: Annotated[tuple[LearnedKey, ...], Field(max_length=MAX_KEYS)] = ()

    def to_json(self) -> str:
        return self.model_dump_json(indent=1)

    @classmethod
    def from_json(cls, text: str | bytes) -> LearnedState:
        """Return the state in a JSON text; raise a one-line `ValueError` for any other text or version."""
        try:
            return cls.of(json.loads(text))
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"learned state not read: it is not JSON: {error}") from None

    @classmethod
    def of(cls, plain: Any) -> LearnedState:
        """Return the state in decoded JSON; raise `ValueError` as `from_json`."""
        version = plain.get("version") if isinstance(plain, Mapping) else None
        if not isinstance(version, int):
            raise ValueError("learned state not read: it has no version")
        if version != VERSION:
            return cls(version=version)
        try:
            return cls.model_validate(plain)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise ValueError(f"learned state not read: {where} is invalid: {first['msg']}") from None

    @classmethod
    def read(cls, path: str | Path) -> LearnedState:
        """Return the state in a file; raise a one-line `ValueError` if there is none."""
        try:
            return cls.from_json(_content(Path(path)))
        except OSError as error:
            raise ValueError(f"learned state not read: {error.strerror}") from None

    def write(self, path: str | Path) -> None:
        """Write the state to a file that only its owner can read, whole or not at all; raise `OSError`."""
        path = Path(path)
        # An unpredictable name, created only by this process (O_EXCL, O_NOFOLLOW), mode 0600: see `tempfile.mkstemp`.
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
        """Return this state, with the entries of `earlier` for keys that it does not have."""
        if earlier.version != self.version or not self.keys:
            return earlier if earlier.version == self.version else self
        same = {each.key for each in self.keys}
        # An earlier version may have kept a credential in the path of an address.
        rest = [each.named(_masked(each.key)) for each in earlier.keys]
        if earlier.digests != self.digests:
            # The credentials cannot be compared: keys of the same model count as the same.
            same = {_at(key) for key in same}
            rest = [each.named(_at(each.key)) for each in rest]
        rest = [each for each in rest if each.key not in same]
        return LearnedState(digests=self.digests, keys=(*rest, *self.keys)[-MAX_KEYS:])

    def of_providers(self, names: Collection[str]) -> LearnedState:
        """Return the keys of some providers, without any value made from a credential."""
        return LearnedState(keys=tuple(each.named(_at(each.key)) for each in self.keys if each.provider in names))


def _content(path: Path) -> bytes:
    """Return the content of a regular file. Raise `ValueError` for any other, and for more than `MAX_BYTES`."""
    # A pipe without a writer would block: it is opened without blocking, and not read.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("learned state not read: it is not a regular file")
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"learned state not read: it is larger than {MAX_BYTES} bytes")
    return content


class Seeds:
    """The knowledge of an earlier run: each entry is taken by one key, once.

    `digests` is the registry's own value for `LearnedState.digests`; `today` is an aware time.
    """

    def __init__(self, state: LearnedState, digests: str, today: datetime) -> None:
        self._today = today
        self._left: dict[Key, LearnedKey | None] = {}
        self._comparable = bool(digests) and digests == state.digests
        if state.version != VERSION:
            text = "initial state ignored: it has version %d, and this tidegate reads version %d; every key starts anew"
            logger.warning(text, state.version, VERSION)
            return
        self._sow([each for each in state.keys if today - each.taken_on <= MAX_AGE], len(state.keys))

    def _sow(self, fresh: Iterable[LearnedKey], given: int) -> None:
        count = doubles = 0
        for each in fresh:
            count += 1
            place = self._place(each.key)
            doubles += place in self._left
            # Two credentials that cannot be distinguished: neither entry is used.
            self._left[place] = None if place in self._left else each
        if count < given:
            text = "initial state stale: %d of its %d keys are older than %d days; they are ignored"
            logger.warning(text, given - count, given, MAX_AGE.days)
        elif doubles:
            logger.warning(
                "initial state ambiguous: some of its keys differ only in their credential, which only a digest_key "
                "distinguishes; they are ignored"
            )

    def _place(self, key: Key) -> Key:
        return _masked(key) if self._comparable else _at(key)

    def take(self, key: Key) -> tuple[core.SavedKey, float] | None:
        """Return the knowledge of `key`, and its age in seconds at the start of this run; None without an entry."""
        found = self._left.pop(self._place(key), None)
        if found is None:
            return None
        return found.learned, max(0.0, (self._today - found.taken_on).total_seconds())


def _masked(key: Key) -> Key:
    return key._replace(base_url=masked(key.base_url))


def _at(key: Key) -> Key:
    """Return the key without any value made from a credential, in a header or in the path."""
    return key._replace(credential="", base_url=without_digests(masked(key.base_url)))
