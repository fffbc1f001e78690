"""Puts tidegate on when the program first imports something that it governs; until then it costs nearly nothing.

Every Python process under `tidegate run` imports this, most of them never make a call: hence no import but of what the
interpreter has loaded anyway, and a finder of our own (`import wrapt` alone takes longer than Python takes to start).
"""

from __future__ import annotations

import _thread
import os
import sys

from tidegate.admission import key_hook
from tidegate.imports import own_loading, when_loaded
from tidegate.launch import UNGOVERNED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from typing import Any

STACKS = frozenset(
    {
        "aiobotocore.endpoint",
        "aiobotocore.retries.bucket",
        "aiohttp",
        "botocore.endpoint",
        "botocore.retries.bucket",
        "httpx",
        "httpx2",
        "requests",
    }
)
SDKS = frozenset(
    {
        "anthropic.lib.aws._client",
        "anthropic.lib.bedrock._client",
        "anthropic.lib.bedrock._mantle",
        "cohere.core.http_client",
        "google.genai._api_client",
        "google.genai._gaos.utils.retries",
        "huggingface_hub.inference._client",
        "huggingface_hub.inference._generated._async_client",
        "mistralai.azure.client.utils.retries",
        "mistralai.client.utils.retries",
        "mistralai.gcp.client.utils.retries",
        "mistralai.utils.retries",
        "mistralai_azure.utils.retries",
        "mistralai_gcp.utils.retries",
        "openai.providers.bedrock",
    }
)
TELEMETRY = frozenset({"opentelemetry.sdk.metrics", "opentelemetry.sdk.trace"})
CLOCKS = frozenset(
    {
        "deepeval",
        "dspy.predict.parallel",
        "dspy.primitives.module",
        "dspy.utils.parallelizer",
        "mlflow",
        "phoenix.client.experiments",
        "phoenix.client.resources.experiments",
        "phoenix.evals.executors",
        "ragas.run_config",
        "workflows.workflow",
    }
)
"""Modules with settings in `tidegate.framework_timeouts.table`, written out: a process without calls reads no table."""

WATCHED = STACKS | SDKS | TELEMETRY | CLOCKS
"""Every module that `install` waits for."""

STATE_DIR = "TIDEGATE_STATE_DIR"
"""As `tidegate.launch.environment` has it."""

PATIENCE = 10.0
"""Seconds, at most, that a thread's import waits for another thread that is installing (measured: 0.2 to 2)."""

LOOK_EVERY = 0.02
"""Seconds between two looks at whether that other thread waits for an import of this one: an idle wake-up each."""


class InstallHook:
    """An import hook that installs tidegate once the first of `WATCHED` is loaded.

    An attempt is put off while a module of tidegate is half loaded, and is made at the end of that loading; one that
    fails is made again after the next import of `WATCHED`. Nothing is raised into the program. The hook stays in
    `sys.meta_path` after it has installed, without effect: an import may be walking that list.
    """

    def __init__(self, say: Callable[[str], None], run_dir: str | None = None) -> None:
        self._say = say
        self._run_dir = run_dir
        self._done = False
        self._told = ""
        self._looking: set[tuple[int, str]] = set()
        self._renew_lock()
        os.register_at_fork(after_in_child=self._renew_lock)

    def _renew_lock(self) -> None:
        # A thread that was installing at a fork is not in the child.
        self._lock = _thread.allocate_lock()
        self._owner = 0

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec that the other finders find for a watched module; None for any other."""
        looked_for = (_thread.get_ident(), name)
        # Asked again for what it asks the others for, it is among them: somebody may have wrapped it.
        if self._done or name not in WATCHED or looked_for in self._looking:
            return None
        self._looking.add(looked_for)
        try:
            spec = self._find_elsewhere(name, path, target)
        finally:
            self._looking.discard(looked_for)
        if spec is not None and not when_loaded(spec, self.attempt):
            self.attempt()
        return spec

    def _find_elsewhere(self, name: str, path: Any, target: Any) -> ModuleSpec | None:
        for finder in list(sys.meta_path):
            # A finder from before Python 3.4 has no such method (six before 1.16): the import system asks it after us.
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find is not None else None
            if spec is not None:
                return spec
        return None

    def attempt(self) -> None:
        """Install, unless that is done or under way; an attempt that cannot be made now is made later."""
        lock = None if self._done else self._enter()
        if lock is None:
            return
        try:
            if not (self._done or self._postponed()):
                self._install()
        finally:
            self._owner = 0
            lock.release()

    def _enter(self) -> _thread.LockType | None:
        """Take and return the lock; None inside an attempt of this thread, and where waiting would be a deadlock."""
        here, lock = _thread.get_ident(), self._lock
        if self._owner == here:
            return None
        waits = int(PATIENCE / LOOK_EVERY)
        while not lock.acquire(timeout=LOOK_EVERY):
            waits -= 1
            if waits <= 0 or self._waits_for(here):
                return None
        self._owner = here
        return lock

    def _waits_for(self, thread: int) -> bool:
        """Return whether the thread that installs waits for a module that `thread` is loading."""
        frame = sys._current_frames().get(self._owner)
        if frame is None or frame.f_code.co_name != "acquire" or "importlib" not in frame.f_code.co_filename:
            return False
        return getattr(frame.f_locals.get("self"), "owner", None) == thread

    def _postponed(self) -> bool:
        """Return whether a module of tidegate is half loaded; then the attempt is made at the end of that."""
        half_loaded = own_loading()
        for module in half_loaded:
            when_loaded(module.__spec__, self.attempt)
        if half_loaded:
            self._note(f"{half_loaded[0].__name__} was not loaded to its end")
        return bool(half_loaded)

    def _install(self) -> None:
        if not _in_main_interpreter():
            # pydantic-core serves the first interpreter that imports it, and no other: that is the program's choice.
            self._done = True
            self._say(f"{sys.executable} runs a subinterpreter ungoverned: pydantic-core serves one interpreter only")
            return
        try:
            restore = _without_plugins()
            try:
                # Another thread that loads tidegate may load plugins, and so wait for the import that this one is in.
                # From here on it finds the modules with models loaded, or waits for them.
                if self._postponed():
                    return
                import tidegate.settings  # noqa: F401
                from tidegate._install import install
            finally:
                restore()
            install()
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            self._note(text)
            if text != self._told:
                self._told = text
                self._say(
                    f"{sys.executable} runs ungoverned: {text}; tried again at the next import of an HTTP library"
                )
        else:
            self._done = True
            self._clear()

    def _note(self, why: str) -> None:
        """Leave in the run's folder that this process is ungoverned, for as long as it is."""
        if self._run_dir:
            try:
                with open(self._file(), "w", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
                    file.write(f"{sys.executable}: {why}")
            except OSError:
                return

    def _clear(self) -> None:
        if self._run_dir:
            try:
                os.unlink(self._file())  # noqa: PTH108
            except OSError:
                return

    def _file(self) -> str:
        return f"{self._run_dir}{os.sep}{UNGOVERNED}{os.getpid()}"


def _in_main_interpreter() -> bool:
    """Return whether this is the first interpreter of the process, also where that cannot be told."""
    for name in ("_interpreters", "_xxsubinterpreters"):
        try:
            module: Any = __import__(name)
            here, main = module.get_current(), module.get_main()
        except Exception:
            continue
        # From Python 3.13 on these are pairs of a number and where the interpreter comes from.
        return bool(here == main)
    return True


def _without_plugins() -> Callable[[], None]:
    """Keep this thread from loading plugins of pydantic until the returned function is called.

    pydantic loads its plugins for the first model that is made. Here that would be one of tidegate's, perhaps in the
    middle of the import of such a plugin (`import logfire`), which pydantic then drops for good. The program's own
    first model loads them instead (pydantic 2.10 to 2.14 `plugin/_loader.py`).
    """
    # What the modules with models import, now, while no lock of tidegate's is held.
    from pydantic import BaseModel  # noqa: F401
    from pydantic.plugin import _loader

    import tidegate.errors  # noqa: F401

    original, here = _loader.get_plugins, _thread.get_ident()

    def get_plugins() -> Any:
        return () if _thread.get_ident() == here else original()

    def restore() -> None:
        if _loader.get_plugins is get_plugins:
            _loader.get_plugins = original

    _loader.get_plugins = get_plugins
    return restore


def begin(say: Callable[[str], None], run_dir: str | None) -> None:
    """Waits for the first import of something governed; `say` gets what goes wrong then, in one line.

    What the process does with each key it opens is kept in `run_dir`, where there is one.
    """
    sys.meta_path.insert(0, InstallHook(say, run_dir))
    state_dir = os.environ.get(STATE_DIR)
    if run_dir or state_dir:
        openings = KeyRecorder(run_dir, state_dir)
        key_hook.told = openings.told
        if run_dir:
            key_hook.passed = openings.passed


class KeyRecorder:
    """Hears of each key that is opened, and has what happens there kept in a sheet, made for the first of them.

    With a `state_dir` the process leaves there at its end what it has learned.
    """

    def __init__(self, run_dir: str | None, state_dir: str | None = None) -> None:
        self._run_dir = run_dir
        self._state_dir = state_dir
        self._sheets: Any = None
        self._hosts: Any = None
        # Now, before the registries' own: what they clear in a forked child must not be the parent's any more.
        os.register_at_fork(after_in_child=self._forked)

    def told(self, slots: Any) -> None:
        """Keeps what happens at `slots`."""
        if self._state_dir:
            import atexit

            from tidegate.launch.environment import leave

            atexit.register(leave, self._state_dir)
            self._state_dir = None
        if not self._run_dir:
            return
        if self._sheets is None:
            from tidegate.launch.shared_counters import CounterFile

            self._sheets = CounterFile(self._run_dir)
        self._sheets.keep(slots)

    def passed(self, host: str) -> None:
        """Counts a call to `host` that is not governed."""
        if self._hosts is None:
            from tidegate.launch.ungoverned import HostCounts

            # Two threads may both make one: both files count.
            self._hosts = HostCounts(self._run_dir or "")
        self._hosts.count(host)

    def _forked(self) -> None:
        for counts in (self._sheets, self._hosts):
            if counts is not None:
                counts.forked()
