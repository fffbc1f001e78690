"""Timeouts of eval frameworks that also count the time a call waits in the queue, and their extension.

A framework that gives a row 60 s counts the wait in the queue too. It cancels rows before they are sent, queues them
again, and may never end. `TIMEOUTS` lists these timeouts, one entry each. A framework lets its timeout be set in two
places: the default of a parameter, and an environment variable. `stretch` extends the timeouts of imported modules at
`install()` and those of later imports; `restore` restores all at `uninstall()`.

A value that the user set is never changed: an argument takes precedence over a default, and a set variable stays.
"""

from __future__ import annotations

import inspect
import logging
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

from tidegate.settings import Settings
from tidegate.transports.imports import is_loading
from tidegate.transports.patches import when_imported

LIFTED_TIMEOUT_SECONDS = 31_536_000
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
        return LIFTED_TIMEOUT_SECONDS if self.whole_run else math.ceil(max_wait + seconds)


def shown(seconds: float) -> str:
    return "a year" if seconds == LIFTED_TIMEOUT_SECONDS else f"{seconds:g} s"


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
                current = _default(function, self.parameter)
            except (AttributeError, LookupError):
                continue
            old: float | None = self.none_means if current is None else current
            if old is not None and _is_timeout(old):
                new = stretch(old)
                _set_default(function, self.parameter, new)
                yield ChangedTimeout(old, new, partial(_restore_default, function, self.parameter, new, current))

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


def _default(function: Any, parameter: str) -> Any:
    """Return the default of a parameter; raise `LookupError` where there is none."""
    if not isinstance(function, FunctionType):
        raise LookupError(parameter)
    default = inspect.signature(function).parameters[parameter].default
    if default is inspect.Parameter.empty:
        raise LookupError(parameter)
    return default


def _set_default(function: FunctionType, parameter: str, value: Any) -> None:
    if function.__kwdefaults__ and parameter in function.__kwdefaults__:
        function.__kwdefaults__[parameter] = value
        return
    named = function.__code__.co_varnames[: function.__code__.co_argcount]
    defaults = list(function.__defaults__ or ())
    defaults[named.index(parameter) - len(named)] = value
    function.__defaults__ = tuple(defaults)


def _restore_default(function: FunctionType, parameter: str, ours: int, before: Any) -> None:
    if _default(function, parameter) == ours:
        _set_default(function, parameter, before)


def _is_timeout(seconds: Any) -> bool:
    """Return whether the value is a timeout at all: frameworks write 0, None or infinity for none."""
    return isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and 0 < seconds < math.inf


PHOENIX_RUNS = ("run_experiment", "resume_experiment", "evaluate_experiment", "resume_evaluation")
DEEPEVAL_SETTINGS = "deepeval.config.settings:get_settings"

TIMEOUTS: tuple[FrameworkTimeout, ...] = (
    FrameworkTimeout(
        "arize-phoenix-evals",
        "one task",
        60,
        "cancels it and queues it again: nothing is ever answered",
        (
            ParameterDefault(
                "phoenix.evals.executors", ("AsyncExecutor.__init__", "get_executor_on_sync_context"), none_means=60
            ),
        ),
        "arize-phoenix-evals 3.9.4 phoenix/evals/executors.py: AsyncExecutor, `timeout or 60`",
    ),
    FrameworkTimeout(
        "arize-phoenix-client",
        "one task of an experiment",
        60,
        "cancels it and queues it again",
        (
            ParameterDefault(
                "phoenix.client.experiments", (*PHOENIX_RUNS, *(f"async_{name}" for name in PHOENIX_RUNS))
            ),
            ParameterDefault(
                "phoenix.client.resources.experiments",
                tuple(f"{each}.{name}" for each in ("Experiments", "AsyncExperiments") for name in PHOENIX_RUNS),
            ),
        ),
        "arize-phoenix-client 3.5.0 phoenix/client/experiments/__init__.py: DEFAULT_TIMEOUT_IN_SECONDS",
    ),
    FrameworkTimeout(
        "deepeval",
        "one attempt, and by it one case",
        88.5,
        "fails the attempt, then the case",
        (
            EnvironmentDefault(
                "deepeval",
                "DEEPEVAL_PER_ATTEMPT_TIMEOUT_SECONDS_OVERRIDE",
                88.5,
                (
                    "DEEPEVAL_PER_ATTEMPT_TIMEOUT_SECONDS",
                    "DEEPEVAL_PER_TASK_TIMEOUT_SECONDS_OVERRIDE",
                    "DEEPEVAL_PER_TASK_TIMEOUT_SECONDS",
                    "DEEPEVAL_DISABLE_TIMEOUTS",
                ),
                DEEPEVAL_SETTINGS,
            ),
        ),
        "deepeval 4.3.1 config/settings.py: DEEPEVAL_PER_ATTEMPT_TIMEOUT_SECONDS, (180 - 2 - 1) / 2 attempts; a case "
        "gets attempts times that and the back-off",
    ),
    FrameworkTimeout(
        "deepeval",
        "all cases together",
        207,
        "cancels every case that has not ended",
        (
            EnvironmentDefault(
                "deepeval",
                "DEEPEVAL_TASK_GATHER_BUFFER_SECONDS_OVERRIDE",
                207,
                ("DEEPEVAL_TASK_GATHER_BUFFER_SECONDS", "DEEPEVAL_DISABLE_TIMEOUTS"),
                DEEPEVAL_SETTINGS,
            ),
        ),
        "deepeval 4.3.1 utils.py: get_gather_timeout_seconds, 180 s of a case + 27 s, around the gather of all cases",
        whole_run=True,
    ),
    FrameworkTimeout(
        "dspy",
        "one row, among the last three",
        120,
        "sends the row a second time",
        (
            ParameterDefault("dspy.utils.parallelizer", ("ParallelExecutor.__init__",)),
            ParameterDefault("dspy.predict.parallel", ("Parallel.__init__",)),
            ParameterDefault("dspy.primitives.module", ("Module.batch",)),
        ),
        "dspy 3.4.1 utils/parallelizer.py: ParallelExecutor(timeout=120, straggler_limit=3)",
    ),
    FrameworkTimeout(
        "ragas",
        "one metric of one row, in `evaluate`",
        180,
        "scores it nan",
        (ParameterDefault("ragas.run_config", ("RunConfig.__init__",)),),
        "ragas 0.4.3 run_config.py: RunConfig(timeout=180), evaluation.py",
    ),
    FrameworkTimeout(
        "mlflow",
        "one row of an async `predict_fn`, in `genai.evaluate`",
        300,
        "fails the row",
        (EnvironmentDefault("mlflow", "MLFLOW_GENAI_EVAL_ASYNC_TIMEOUT", 300),),
        "mlflow 3.18.0 environment_variables.py: MLFLOW_GENAI_EVAL_ASYNC_TIMEOUT, genai/utils/trace_utils.py",
    ),
    FrameworkTimeout(
        "llama-index-workflows",
        "one run of a workflow",
        45,
        "raises WorkflowTimeoutError",
        (ParameterDefault("workflows.workflow", ("Workflow.__init__",)),),
        "llama-index-workflows 2.26.1 workflows/workflow.py: Workflow(timeout=45.0)",
    ),
)


logger = logging.getLogger("tidegate")

_lock = threading.RLock()
_max_wait: float | None = None
_level = logging.WARNING
_hooked = False
_changes: dict[tuple[FrameworkTimeout, ParameterDefault | EnvironmentDefault], list[ChangedTimeout]] = {}
_logged: set[FrameworkTimeout] = set()


def stretch(settings: Settings) -> None:
    """Extend the timeouts of imported frameworks now and of others at their import, after restoring earlier changes.

    Change nothing with `framework_clocks="keep"`, with `max_wait` 0, and where tidegate is disabled.
    """
    global _max_wait, _level, _hooked
    with _lock:
        restore()
        if not stretches(settings):
            return
        _max_wait = settings.max_wait
        # A warning is visible without any configuration of logging. It is needed: the user's program now behaves
        # differently from its documentation.
        _level = logging.WARNING if settings.log else logging.INFO
        for timeout in TIMEOUTS:
            for default in timeout.defaults:
                module = sys.modules.get(default.module)
                if module is not None and not is_loading(module):
                    _apply(timeout, default, module)
                if not _hooked:
                    when_imported(default.module, partial(_apply, timeout, default))
        _hooked = True


def stretches(settings: Settings) -> bool:
    return settings.framework_clocks == "stretch" and not settings.disabled and settings.max_wait > 0


def restore() -> None:
    """Restore every timeout that still has the value set here."""
    global _max_wait
    with _lock:
        _max_wait = None
        for changes in _changes.values():
            for each in changes:
                each.undo()
        _changes.clear()


def _apply(timeout: FrameworkTimeout, default: ParameterDefault | EnvironmentDefault, module: ModuleType) -> None:
    with _lock:
        if _max_wait is None or (timeout, default) in _changes:
            return
        max_wait = _max_wait
        changes = _changes[timeout, default] = []
        try:
            for each in default.apply(module, lambda seconds: timeout.stretched(seconds, max_wait)):
                changes.append(each)
        except Exception as error:
            # This runs inside an import of the user's program: the import continues, and the timeout stays as it is.
            text = "timeout of %s not extended: %s was raised; its present value stays"
            logger.exception(text, timeout.framework, type(error).__name__)
        if changes and timeout not in _logged:
            _logged.add(timeout)
            _log_change(timeout, changes[0])


def _log_change(timeout: FrameworkTimeout, changes: ChangedTimeout) -> None:
    logger.log(
        _level,
        "tidegate: %s timeout of %g s (%s) extended: it also runs while calls wait in the queue; it is %s now "
        "(TIDEGATE_FRAMEWORK_CLOCKS=keep leaves it unchanged)",
        timeout.framework,
        changes.old,
        timeout.measures,
        shown(changes.new),
    )
