"""Modules with the public clocks of the real frameworks, name by name, without anything behind them.

Each stands for the file and version that its row in `tidegate.transports.framework_timeouts` gives as its source.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from types import ModuleType
from typing import Any


def phoenix_evals() -> ModuleType:
    """arize-phoenix-evals 3.9.4, phoenix/evals/executors.py."""
    module = ModuleType("phoenix.evals.executors")

    class AsyncExecutor:
        def __init__(self, generation_fn: Any, concurrency: int = 3, timeout: int | None = None, *, dynamic: int = 1):
            self.timeout = timeout or 60

    def get_executor_on_sync_context(sync_fn: Any, async_fn: Any, timeout: int | None = None) -> AsyncExecutor:
        return AsyncExecutor(async_fn, timeout=timeout)

    module.AsyncExecutor = AsyncExecutor  # type: ignore[attr-defined]
    module.get_executor_on_sync_context = get_executor_on_sync_context  # type: ignore[attr-defined]
    return module


def phoenix_client() -> ModuleType:
    """arize-phoenix-client 3.5.0, phoenix/client/experiments/__init__.py: `timeout` is keyword-only."""
    module = ModuleType("phoenix.client.experiments")

    def run_experiment(*, dataset: Any, timeout: int | None = 60) -> int | None:
        return timeout

    module.run_experiment = run_experiment  # type: ignore[attr-defined]
    return module


def dspy_parallelizer() -> ModuleType:
    """dspy 3.4.1, utils/parallelizer.py."""
    module = ModuleType("dspy.utils.parallelizer")

    class ParallelExecutor:
        def __init__(self, num_threads: int | None = None, timeout: float = 120, straggler_limit: int = 3) -> None:
            self.timeout = timeout
            self.straggler_limit = straggler_limit

    module.ParallelExecutor = ParallelExecutor  # type: ignore[attr-defined]
    return module


def ragas_run_config() -> ModuleType:
    """ragas 0.4.3, run_config.py: a dataclass."""
    module = ModuleType("ragas.run_config")

    @dataclass
    class RunConfig:
        timeout: int = 180
        max_retries: int = 10
        max_wait: int = 60

    module.RunConfig = RunConfig  # type: ignore[attr-defined]
    return module


def workflows() -> ModuleType:
    """llama-index-workflows 2.26.1, workflows/workflow.py."""
    module = ModuleType("workflows.workflow")

    class Workflow:
        def __init__(self, timeout: float | None = 45.0, verbose: bool = False) -> None:
            self.timeout = timeout

    module.Workflow = Workflow  # type: ignore[attr-defined]
    return module


def mlflow() -> ModuleType:
    """mlflow 3.18.0, environment_variables.py: the variable is read when a predict function is made ready."""
    module = ModuleType("mlflow")
    module.timeout = lambda: int(os.environ.get("MLFLOW_GENAI_EVAL_ASYNC_TIMEOUT", 300))  # type: ignore[attr-defined]
    return module


class DeepevalSettings:
    """deepeval 4.3.1, config/settings.py: a pydantic model of the environment, made anew when that changes."""

    model_fields = {
        "DEEPEVAL_PER_ATTEMPT_TIMEOUT_SECONDS_OVERRIDE": ...,
        "DEEPEVAL_PER_TASK_TIMEOUT_SECONDS_OVERRIDE": ...,
        "DEEPEVAL_TASK_GATHER_BUFFER_SECONDS_OVERRIDE": ...,
        "DEEPEVAL_DISABLE_TIMEOUTS": ...,
    }

    def __init__(self) -> None:
        for name in self.model_fields:
            setattr(self, name, None)


def deepeval(settings: DeepevalSettings) -> dict[str, ModuleType]:
    """deepeval 4.3.1: the package, and the module with `get_settings`."""
    home = ModuleType("deepeval.config.settings")
    home.get_settings = lambda: settings  # type: ignore[attr-defined]
    return {"deepeval": ModuleType("deepeval"), "deepeval.config.settings": home}
