"""One timeout of a framework, and the two places where one can be set.

The two kinds of place where a framework lets a clock be set: a parameter's default, an environment variable.

One clock of a framework: what it measures, how long it is, where it can be set, how far it is stretched.
"""

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
"""Seconds of a clock that is as good as off: a year, the bound of `Settings.max_wait`."""


@dataclass(frozen=True)
class FrameworkTimeout:
    """A row of the table; `seconds` is the default of the version that `source` names.

    `framework` is the distribution, as its metadata has it; `measures` is what the clock runs over, and `then` what
    the framework does when it has run out. One of the `whole_run` is as long as the run has rows: no number of seconds
    is right for it.
    """

    framework: str
    measures: str
    seconds: float
    then: str
    dials: tuple[ParameterDefault | EnvironmentDefault, ...]
    source: str
    whole_run: bool = False

    def stretched(self, seconds: float, max_wait: float) -> int:
        """Return how many seconds it gets in place of `seconds`, a whole number: some frameworks read no other.

        The longest a call may wait, and what the framework found long enough for a call that does not: so a hung call
        still ends. A clock of the whole run is lifted, for its rows end by clocks of their own.
        """
        return LIFTED if self.whole_run else math.ceil(max_wait + seconds)


def shown(seconds: float) -> str:
    """A clock's length as people read it."""
    return "a year" if seconds == LIFTED else f"{seconds:g} s"


Stretch = Callable[[float], int]
"""The new seconds for the old ones."""


class ChangedTimeout(NamedTuple):
    """A dial that was turned: from `old` to `new` seconds; `undo` puts it back, unless somebody turned it since."""

    old: float
    new: int
    undo: Callable[[], None]


class ParameterDefault(NamedTuple):
    """The default of a parameter of public functions and constructors in `module`.

    It is changed in place, so that references which somebody took before see it too, and an argument that is given
    goes before it, as ever. `none_means` are the seconds that None stands for; without them None is no clock.
    """

    module: str
    functions: tuple[str, ...]
    parameter: str = "timeout"
    none_means: float | None = None

    def turn(self, module: ModuleType, stretch: Stretch) -> Iterator[ChangedTimeout]:
        """Stretches the default wherever the module has it as the table says, and skips the rest."""
        for path in self.functions:
            try:
                function = inspect.unwrap(attrgetter(path)(module))
            except AttributeError:
                continue
            holder = _holder(function, self.parameter) if isinstance(function, FunctionType) else None
            if holder is None:
                continue
            held = holder.get()
            old: float | None = self.none_means if held is None else held
            if old is not None and _runs(old):
                new = stretch(old)
                holder.put(new)
                yield ChangedTimeout(old, new, _put_back(holder, new, held))

    def given(self, environ: Mapping[str, str]) -> str | None:
        """Return which variable of the user's decides: none can."""
        return None

    def __str__(self) -> str:
        functions = ", ".join(f"`{path.removesuffix('.__init__')}`" for path in self.functions)
        return f"`{self.parameter}` of {functions} in `{self.module}`"


class EnvironmentDefault(NamedTuple):
    """An environment variable that the framework `module` reads when it needs the clock.

    It is left alone where the user set it or one of `rivals`, in the environment or on the framework's own settings
    object, which the function `settings` ("module:function") returns.
    """

    module: str
    name: str
    seconds: float
    rivals: tuple[str, ...] = ()
    settings: str = ""

    def turn(self, module: ModuleType, stretch: Stretch) -> Iterator[ChangedTimeout]:
        """Sets the variable, for this process and those it starts, where nobody else did."""
        if self.given(os.environ) is not None or self._held():
            return
        before, new = os.environ.get(self.name), stretch(self.seconds)
        os.environ[self.name] = str(new)
        yield ChangedTimeout(self.seconds, new, lambda: self._put_back(str(new), before))

    def given(self, environ: Mapping[str, str]) -> str | None:
        """Return which variable of the user's decides over this clock; None: none is set."""
        return next((name for name in (self.name, *self.rivals) if environ.get(name, "").strip()), None)

    def _held(self) -> bool:
        home, _, function = self.settings.partition(":")
        if home not in sys.modules:
            return False
        held = getattr(sys.modules[home], function)()
        # What is computed has no field of its own to be set.
        names = set(type(held).model_fields) & {self.name, *self.rivals}
        return any(getattr(held, name) is not None for name in names)

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
    """Where a function keeps the default of one parameter."""

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
        held = list(function.__defaults__ or ())
        held[place] = value
        function.__defaults__ = tuple(held)

    return _Holder(lambda: (function.__defaults__ or ())[place], put)


def _runs(seconds: Any) -> bool:
    """Return whether it is a clock at all: frameworks write 0, None or infinity for none."""
    return isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and 0 < seconds < math.inf


def _put_back(holder: _Holder, ours: int, before: Any) -> Callable[[], None]:
    def undo() -> None:
        if holder.get() == ours:
            holder.put(before)

    return undo
