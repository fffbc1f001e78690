"""Durable experiments: a dataset, a task, evaluators and repetitions, run to the end through whatever happens.

from tidegate.runner import Experiment
experiment = Experiment(name="capitals", dataset="questions.jsonl", task=answer, evaluators=[judge], repetitions=3)
summary = experiment.run()
"""

from __future__ import annotations

from tidegate.errors import UnusableAnswer
from tidegate.runner.chunks import emit
from tidegate.runner.experiment import Evaluator, Experiment
from tidegate.runner.loading import load
from tidegate.runner.progress import Progress, StageProgress, Wait
from tidegate.runner.service import ExperimentRunner
from tidegate.runner.settings import RunnerSettings
from tidegate.runner.subscribers import Chunk, Event, Retrying, StateChanged, Subscription
from tidegate.runner.summary import Summary
from tidegate.storage import AnnotationResult, ResultStatus, RunResult, Status, Toggle

__all__ = [
    "AnnotationResult",
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
