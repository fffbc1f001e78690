"""Durable experiments: a dataset, a task, evaluators and repetitions. A run survives crashes and outages.

    from tidegate.experiments import Experiment
    experiment = Experiment(name="capitals", dataset="questions.jsonl", task=answer, evaluators=[judge], repetitions=3)
    summary = experiment.run()

The names below are the public interface.
"""

from __future__ import annotations

from tidegate.errors import UnusableAnswer
from tidegate.experiments.engine.batch.task import BatchTask
from tidegate.experiments.engine.budget import Budget
from tidegate.experiments.engine.events import Chunk, Event, Retrying, StateChanged, Subscription
from tidegate.experiments.engine.experiment import Evaluator, Experiment
from tidegate.experiments.engine.experiment_runner import ExperimentRunner
from tidegate.experiments.engine.job import emit
from tidegate.experiments.engine.loader import load
from tidegate.experiments.engine.progress import Progress, StageProgress, Summary, Wait
from tidegate.experiments.engine.settings import RunnerSettings
from tidegate.experiments.storage import AnnotationResult, ResultStatus, RunResult, Status, Toggle

__all__ = [
    "AnnotationResult",
    "BatchTask",
    "Budget",
    "Chunk",
    "Evaluator",
    "Event",
    "Experiment",
    "ExperimentRunner",
    "Progress",
    "ResultStatus",
    "Retrying",
    "RunResult",
    "RunnerSettings",
    "StageProgress",
    "StateChanged",
    "Status",
    "Subscription",
    "Summary",
    "Toggle",
    "UnusableAnswer",
    "Wait",
    "emit",
    "load",
]


def __dir__() -> list[str]:
    return sorted(__all__)
