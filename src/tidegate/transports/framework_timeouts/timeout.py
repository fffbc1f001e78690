"""One timeout of a framework, and the two places where it can be set: parameter default and environment variable."""

from __future__ import annotations

import inspect
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

LIFTED = 31_536_000
"""Seconds of a timeout that is as good as off. Derived from the upper bound of `Settings.max_wait`: a year."""


@dataclass(frozen=True)
class FrameworkTimeout:
    """Row of the table: one timeout, with the default `seconds` of the version that `source` names.

    `framework` is the name of the distribution in its metadata. `measures` states the work that the timeout covers, and
    `then` the reaction of the framework when it expires. The length of a timeout of the `whole_run` grows with the
    number of rows: no fixed number of seconds is right for it.
    """

    framework: str
    measures: str
    seconds: float
    then: str
    defaults: tuple[ParameterDefault | EnvironmentDefault, ...]
    source: str
    whole_run: bool = False

    def stretched(self, seconds: float, max_wait: float) -> int:
        """Return the seconds that replace `seconds`, as a whole number: some frameworks read no other.

        The result is the longest wait of a call plus the framework's own value, so that a hung call still ends. A
        timeout of the whole run is lifted to a year: the timeouts of its rows still end them.
        """
        return LIFTED if self.whole_run else math.ceil(max_wait + seconds)


def shown(seconds: float) -> str:
    return "a year" if seconds == LIFTED else f"{seconds:g} s"


Stretch = Callable[[float], int]
"""Function from the old seconds to the new ones."""


class ChangedTimeout(NamedTuple):
    """Change of a timeout from `old` to `new` seconds; `undo` restores it, unless it was changed again since."""

    old: float
    new: int
    undo: Callable[[], None]


class ParameterDefault(NamedTuple):
    """Default of a parameter of public functions and constructors in `module`.

    It is changed in place, so references taken earlier see the change too. An argument in a call still takes
    precedence. `none_means` is the number of seconds that None stands for; without it None means no timeout.
    """

    module: str
    functions: tuple[str, ...]
    parameter: str = "timeout"
    none_means: float | None = None

    def apply(self, module: ModuleType, stretch: Stretch) -> Iterator[ChangedTimeout]:
        """Extend the default in each function that has it as listed in the table; skip the others."""
        for path in self.functions:
            try:
                function = inspect.unwrap(attrgetter(path)(module))
            except AttributeError:
                continue
            holder = _holder(function, self.parameter) if isinstance(function, FunctionType) else None
            if holder is None:
                continue
            current = holder.get()
            old: float | None = self.none_means if current is None else current
            if old is not None and _is_timeout(old):
                new = stretch(old)
                holder.put(new)
                yield ChangedTimeout(old, new, _put_back(holder, new, current))

    def user_setting(self, environ: Mapping[str, str]) -> str | None:
        """Return None: no environment variable of the user overrides a parameter default."""
        return None

    def __str__(self) -> str:
        functions = ", ".join(f"`{path.removesuffix('.__init__')}`" for path in self.functions)
        return f"`{self.parameter}` of {functions} in `{self.module}`"


class EnvironmentDefault(NamedTuple):
    """Environment variable from which the framework `module` reads its timeout; it is set to `seconds`.

    It stays as it is where the user has set it, or one of `rivals`: other variables for the same timeout. Values in
    the framework's own settings object count too; the function `settings` ("module:function") returns that object.
    """

    module: str
    name: str
    seconds: float
    rivals: tuple[str, ...] = ()
    settings: str = ""

    def apply(self, module: ModuleType, stretch: Stretch) -> Iterator[ChangedTimeout]:
        """Set the variable for this process and its children, unless the user set it."""
        if self.user_setting(os.environ) is not None or self._current_values():
            return
        before, new = os.environ.get(self.name), stretch(self.seconds)
        os.environ[self.name] = str(new)
        yield ChangedTimeout(self.seconds, new, lambda: self._put_back(str(new), before))

    def user_setting(self, environ: Mapping[str, str]) -> str | None:
        return next((name for name in (self.name, *self.rivals) if environ.get(name, "").strip()), None)

    def _current_values(self) -> bool:
        home, _, function = self.settings.partition(":")
        if home not in sys.modules:
            return False
        current = getattr(sys.modules[home], function)()
        # A computed setting is not a model field, so it cannot be set by the user.
        names = set(type(current).model_fields) & {self.name, *self.rivals}
        return any(getattr(current, name) is not None for name in names)

    def _put_back(self, ours: str, before: str | None) -> None:
        if os.environ.get(self.name) != ours:
            return
        if before is None:
            del os.environ[self.name]
        else:
            os.environ[self.name] = before

    def __str__(self) -> str:
        return f"`{self.name}`"


class _Holder(NamedTuple):
    """Access to the place where a function keeps the default of one parameter."""

    get: Callable[[], Any]
    put: Callable[[Any], None]


def _holder(function: FunctionType, parameter: str) -> _Holder | None:
    if function.__kwdefaults__ and parameter in function.__kwdefaults__:
        defaults = function.__kwdefaults__
        return _Holder(lambda: defaults[parameter], lambda value: defaults.__setitem__(parameter, value))
    code = function.__code__
    named = code.co_varnames[: code.co_argcount]
    if parameter not in named:
        return None
    place = named.index(parameter) - len(named)
    if not function.__defaults__ or -place > len(function.__defaults__):
        return None

    def put(value: Any) -> None:
        current = list(function.__defaults__ or ())
        current[place] = value
        function.__defaults__ = tuple(current)

    return _Holder(lambda: (function.__defaults__ or ())[place], put)


def _is_timeout(seconds: Any) -> bool:
    """Return whether the value is a timeout at all: frameworks write 0, None or infinity for none."""
    return isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and 0 < seconds < math.inf


def _put_back(holder: _Holder, ours: int, before: Any) -> Callable[[], None]:
    def undo() -> None:
        if holder.get() == ours:
            holder.put(before)

    return undo
