"""Puts tidegate on when the program first imports something that it governs; until then it costs nearly nothing.

Every Python process under `tidegate run` imports this, most of them never make a call: hence no import but of what the
interpreter has loaded anyway, and a finder of our own (`import wrapt` alone takes longer than Python takes to start).
"""

from __future__ import annotations

import _thread
import os
import sys

from tidegate import opening

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from typing import Any

STACKS = frozenset({"aiohttp", "botocore.endpoint", "botocore.retries.bucket", "httpx", "httpx2", "requests"})
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
"""Where `tidegate.clocks.table` has its dials, written out: no table is read in a process that makes no calls."""

WATCHED = STACKS | SDKS | TELEMETRY | CLOCKS
"""Every module that `install` waits for; it must be told before one of them is half loaded."""

STATE_DIR = "TIDEGATE_STATE_DIR"
"""As `tidegate.launch.environment` has it."""

PATIENCE = 10.0
"""Seconds that an import in one thread waits for another that is putting tidegate on."""


class Arrivals:
    """A finder that finds nothing: when one of `WATCHED` is looked for, it installs tidegate and takes itself away."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._lock = _thread.RLock()
        self._arrived = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """What the other finders find, tidegate's own hooks among them; None for what is not watched."""
        if name not in WATCHED or not self._lock.acquire(timeout=PATIENCE):
            return None
        try:
            if self._arrived:
                return None
            self._arrived = True
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            self._install()
        finally:
            self._lock.release()
        for finder in list(sys.meta_path):
            # One of before Python 3.4 has no such method (six before 1.16): the import system sees to it after us.
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find is not None else None
            if spec is not None:
                return spec
        return None

    def _install(self) -> None:
        try:
            from tidegate.installing import install

            install()
        except Exception as error:
            self._say(f"{sys.executable} runs ungoverned: {type(error).__name__}: {error}")


def begin(say: Callable[[str], None], run_dir: str | None) -> None:
    """Waits for the first import of something governed; `say` gets what goes wrong then, in one line.

    What the process does with each key it opens is kept in `run_dir`, where there is one.
    """
    sys.meta_path.insert(0, Arrivals(say))
    state_dir = os.environ.get(STATE_DIR)
    if run_dir or state_dir:
        opening.told = Openings(run_dir, state_dir).told


class Openings:
    """Hears of each key that is opened, and has what happens there kept in a sheet, made for the first of them.

    With a `state_dir` the process leaves there at its end what it has learned.
    """

    def __init__(self, run_dir: str | None, state_dir: str | None = None) -> None:
        self._run_dir = run_dir
        self._state_dir = state_dir
        self._sheets: Any = None
        # Now, before the registries' own: what they clear in a forked child must not be the parent's any more.
        os.register_at_fork(after_in_child=self._forked)

    def told(self, slots: Any) -> None:
        """Keeps what happens at `slots`."""
        if self._state_dir:
            import atexit

            from tidegate.launch.learning import leave

            atexit.register(leave, self._state_dir)
            self._state_dir = None
        if not self._run_dir:
            return
        if self._sheets is None:
            from tidegate.launch.sheets import Sheets

            self._sheets = Sheets(self._run_dir)
        self._sheets.keep(slots)

    def _forked(self) -> None:
        if self._sheets is not None:
            self._sheets.forked()
