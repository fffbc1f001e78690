"""Import hook that installs tidegate when the program first imports a module that tidegate governs.

Every Python process under `tidegate run` imports this module, and most of them never make a call. It must cost nearly
nothing, so it imports only modules that the interpreter has loaded already. It also has its own finder: `import wrapt`
alone takes longer than Python takes to start.

`environment` puts the folder `site` on the path of each process, and `site/sitecustomize.py` there calls `begin`.
"""

from __future__ import annotations

import _thread
import os
import sys

from tidegate.admission import hooks
from tidegate.admission.thread_states import frame_of
from tidegate.launch import IMPORTED, UNGOVERNED
from tidegate.transports.imports import AT_OWN_HOSTS, UNGOVERNABLE, own_loading, when_loaded

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
"""Modules with timeouts in `transports.framework_timeouts`, repeated: a process without calls never imports it."""

WATCHED = STACKS | CLOCKS
"""Every module whose import starts an installation. SDKs send through a stack, so they need no entry."""

STATE_DIR = "TIDEGATE_STATE_DIR"
"""Same variable as in `tidegate.launch.environment`, repeated to avoid the import."""

MAX_INSTALL_WAIT_SECONDS = 10.0
"""Most seconds that an import waits for a thread that is installing. Measured: that takes 0.2 to 2 s."""

LOOK_SECONDS = 0.02
"""Seconds between two checks whether that thread waits for an import of this one: each is an idle wake-up."""


class InstallHook:
    """Import hook that installs tidegate once the first of `WATCHED` is loaded.

    While a module of tidegate is half loaded, an attempt is postponed to the end of that loading. A failed attempt is
    repeated after the next import of `WATCHED`. The hook raises nothing into the program. After the installation it
    stays in `sys.meta_path` without effect, because an import may be iterating over that list.
    """

    def __init__(self, say: Callable[[str], None], run_dir: str | None = None) -> None:
        self._say = say
        self._run_dir = run_dir
        self._done = False
        self._reported = ""
        self._looking: set[tuple[int, str]] = set()
        self._renew_lock()
        os.register_at_fork(after_in_child=self._renew_lock)

    def _renew_lock(self) -> None:
        # A thread that was installing at a fork does not exist in the child.
        self._lock = _thread.allocate_lock()
        self._owner = 0

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec that the other finders find for a watched module; None for any other."""
        if name in UNGOVERNABLE or name in STACKS or name in AT_OWN_HOSTS:
            self._note_import(name)
        looked_for = (_thread.get_ident(), name)
        # The search below may call this method again, because another tool may have wrapped this finder.
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
            # A finder from before Python 3.4 has no such method (six before 1.16): the import system asks it later.
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find is not None else None
            if spec is not None:
                return spec
        return None

    def attempt(self) -> None:
        """Install, unless that is done or under way; postpone an attempt that cannot be made now."""
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
        waits = int(MAX_INSTALL_WAIT_SECONDS / LOOK_SECONDS)
        while not lock.acquire(timeout=LOOK_SECONDS):
            waits -= 1
            if waits <= 0 or self._waits_for(here):
                return None
        self._owner = here
        return lock

    def _waits_for(self, thread: int) -> bool:
        """Return whether the installing thread waits for a module that `thread` is loading."""
        frame = frame_of(self._owner)
        if frame is None or frame.f_code.co_name != "acquire" or "importlib" not in frame.f_code.co_filename:
            return False
        return getattr(frame.f_locals.get("self"), "owner", None) == thread

    def _postponed(self) -> bool:
        """Return whether a module of tidegate is half loaded; the attempt is then made when its loading ends."""
        half_loaded = own_loading()
        for module in half_loaded:
            when_loaded(module.__spec__, self.attempt)
        if half_loaded:
            self._note(f"the import of {half_loaded[0].__name__} did not finish")
        return bool(half_loaded)

    def _install(self) -> None:
        if not _in_main_interpreter():
            # pydantic-core serves only the first interpreter that imports it. That choice belongs to the program.
            self._done = True
            self._say(
                f"subinterpreter of {sys.executable} not governed: pydantic-core supports only one interpreter of a "
                "process; its calls are sent without tidegate"
            )
            return
        try:
            restore = _without_plugins()
            try:
                # Another thread that loads tidegate may load plugins, and so wait for the import around this call. From
                # here on it finds the modules with models loaded, or waits for them.
                if self._postponed():
                    return
                import tidegate.settings  # noqa: F401
                from tidegate.transports.install import install
            finally:
                restore()
            install()
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            self._note(text)
            if text != self._reported:
                self._reported = text
                self._say(
                    f"{sys.executable} not governed: the installation failed ({text}); it is repeated at the next "
                    "import of an HTTP library"
                )
        else:
            self._done = True
            self._clear()

    def _note_import(self, name: str) -> None:
        """Record in the run's folder that a process imports a way to send calls."""
        if self._run_dir:
            try:
                os.close(os.open(f"{self._run_dir}{os.sep}{IMPORTED}{name}", os.O_CREAT, 0o600))
            except OSError:
                return

    def _note(self, why: str) -> None:
        """Record in the run's folder that this process is ungoverned; `_clear` removes the record."""
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
    """Return whether this is the first interpreter of the process; True where that is unknown."""
    for name in ("_interpreters", "_xxsubinterpreters"):
        try:
            module: Any = __import__(name)
            here, main = module.get_current(), module.get_main()
        except Exception:
            continue
        # From Python 3.13 on these are pairs: a number, and the origin of the interpreter.
        return bool(here == main)
    return True


def _without_plugins() -> Callable[[], None]:
    """Keep this thread from loading plugins of pydantic until the returned function is called.

    pydantic loads its plugins for the first model that is defined, here one of tidegate. In the middle of the import of
    such a plugin (`import logfire`), pydantic drops the plugin for good. The program's own first model loads the
    plugins instead (pydantic 2.10 to 2.14 `plugin/_loader.py`).
    """
    # Import the dependencies of the modules with models now, while this thread holds no lock of tidegate.
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
    """Register the import hook; `say` gets a one-line report of a failure. Counts of keys go to `run_dir`."""
    sys.meta_path.insert(0, InstallHook(say, run_dir))
    state_dir = os.environ.get(STATE_DIR)
    if run_dir or state_dir:
        openings = KeyRecorder(run_dir, state_dir)
        hooks.on_new_queue = openings.on_new_queue
        if run_dir:
            hooks.on_ungoverned = openings.on_ungoverned


class KeyRecorder:
    """Recorder of opened keys: shares the counts of each key with the run's parent, from the first key on.

    With a `state_dir` the process saves its learned limits there when it ends.
    """

    def __init__(self, run_dir: str | None, state_dir: str | None = None) -> None:
        self._run_dir = run_dir
        self._state_dir = state_dir
        self._made: dict[str, Any] = {}

    def on_new_queue(self, queue: Any) -> None:
        if self._state_dir:
            import atexit

            from tidegate.launch.state_file import save_learned_limits

            atexit.register(save_learned_limits, self._state_dir)
            self._state_dir = None
        if self._run_dir:
            self._counters().track(queue)

    def on_ungoverned(self, host: str) -> None:
        """Count an ungoverned call to `host`."""
        self._counters().count_host(host)

    def _counters(self) -> Any:
        made = self._made.get("counters")
        if made is None:
            from tidegate.launch.process_counters import ProcessCounters

            # Of two threads, both get the object of the first one.
            made = self._made.setdefault("counters", ProcessCounters(self._run_dir or ""))
        return made
