"""Durable experiments: a dataset, a task, evaluators and repetitions. A run survives crashes and outages.

    from tidegate.runner import Experiment
    experiment = Experiment(name="capitals", dataset="questions.jsonl", task=answer, evaluators=[judge], repetitions=3)
    summary = experiment.run()

The names below are the public interface.
"""

from __future__ import annotations

from tidegate.errors import UnusableAnswer
from tidegate.runner.batch.task import BatchTask
from tidegate.runner.budget import Budget
from tidegate.runner.events import Chunk, Event, Retrying, StateChanged, Subscription
from tidegate.runner.experiment import Evaluator, Experiment
from tidegate.runner.experiment_runner import ExperimentRunner
from tidegate.runner.job import emit
from tidegate.runner.loader import load
from tidegate.runner.progress import Progress, StageProgress, Summary, Wait
from tidegate.runner.settings import RunnerSettings
from tidegate.storage import AnnotationResult, ResultStatus, RunResult, Status, Toggle

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
