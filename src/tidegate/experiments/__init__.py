"""Durable experiments: a dataset, a task, evaluators and repetitions. A run survives crashes and outages.

    from tidegate.experiments import Experiment
    experiment = Experiment(name="capitals", dataset="questions.jsonl", task=answer, evaluators=[judge], repetitions=3)
    summary = experiment.run()

The names below are the public interface. They are loaded on first use: the help of the commands needs no database
library.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tidegate.errors import UnusableAnswer as UnusableAnswer
    from tidegate.experiments.engine.batch import BatchTask as BatchTask
    from tidegate.experiments.engine.budget import Budget as Budget
    from tidegate.experiments.engine.events import Chunk as Chunk
    from tidegate.experiments.engine.events import Event as Event
    from tidegate.experiments.engine.events import Retrying as Retrying
    from tidegate.experiments.engine.events import StateChanged as StateChanged
    from tidegate.experiments.engine.events import Subscription as Subscription
    from tidegate.experiments.engine.experiment import Evaluator as Evaluator
    from tidegate.experiments.engine.experiment import Experiment as Experiment
    from tidegate.experiments.engine.experiment_runner import ExperimentRunner as ExperimentRunner
    from tidegate.experiments.engine.job import emit as emit
    from tidegate.experiments.engine.loader import load as load
    from tidegate.experiments.engine.progress import Progress as Progress
    from tidegate.experiments.engine.progress import StageProgress as StageProgress
    from tidegate.experiments.engine.progress import Summary as Summary
    from tidegate.experiments.engine.progress import Wait as Wait
    from tidegate.experiments.engine.settings import RunnerSettings as RunnerSettings
    from tidegate.experiments.storage import AnnotationResult as AnnotationResult
    from tidegate.experiments.storage import ResultStatus as ResultStatus
    from tidegate.experiments.storage import RunResult as RunResult
    from tidegate.experiments.storage import Status as Status
    from tidegate.experiments.storage import Toggle as Toggle

_HOMES = {
    "AnnotationResult": "tidegate.experiments.storage",
    "BatchTask": "tidegate.experiments.engine.batch",
    "Budget": "tidegate.experiments.engine.budget",
    "Chunk": "tidegate.experiments.engine.events",
    "Evaluator": "tidegate.experiments.engine.experiment",
    "Event": "tidegate.experiments.engine.events",
    "Experiment": "tidegate.experiments.engine.experiment",
    "ExperimentRunner": "tidegate.experiments.engine.experiment_runner",
    "Progress": "tidegate.experiments.engine.progress",
    "ResultStatus": "tidegate.experiments.storage",
    "Retrying": "tidegate.experiments.engine.events",
    "RunResult": "tidegate.experiments.storage",
    "RunnerSettings": "tidegate.experiments.engine.settings",
    "StageProgress": "tidegate.experiments.engine.progress",
    "StateChanged": "tidegate.experiments.engine.events",
    "Status": "tidegate.experiments.storage",
    "Subscription": "tidegate.experiments.engine.events",
    "Summary": "tidegate.experiments.engine.progress",
    "Toggle": "tidegate.experiments.storage",
    "UnusableAnswer": "tidegate.errors",
    "Wait": "tidegate.experiments.engine.progress",
    "emit": "tidegate.experiments.engine.job",
    "load": "tidegate.experiments.engine.loader",
}

__all__ = [*sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'tidegate.experiments' has no attribute {name!r}")
    # It gives `Experiment` its runner.
    import_module("tidegate.experiments.engine.experiment_runner")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
