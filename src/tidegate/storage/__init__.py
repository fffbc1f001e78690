"""The durable store: experiments, their rows, their results and who runs them, on SQLite or PostgreSQL."""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("sqlalchemy") is None:
    raise ImportError("experiments are kept by SQLAlchemy, which is not installed: pip install 'tidegate[runner]'")

from tidegate.storage.json_codec import decoded, encoded
from tidegate.storage.records import (
    JSON,
    Annotation,
    AnnotationResult,
    Category,
    Claim,
    Counts,
    ExperimentRow,
    ExperimentSummary,
    Failure,
    Level,
    LoggedLine,
    LogLine,
    NewRow,
    PendingEval,
    PendingTask,
    ResultStatus,
    RunResult,
    Score,
    Status,
    StoredRun,
    Toggle,
)
from tidegate.storage.store import Store

__all__ = [
    "JSON",
    "Annotation",
    "AnnotationResult",
    "Category",
    "Claim",
    "Counts",
    "ExperimentRow",
    "ExperimentSummary",
    "Failure",
    "Level",
    "LogLine",
    "LoggedLine",
    "NewRow",
    "PendingEval",
    "PendingTask",
    "ResultStatus",
    "RunResult",
    "Score",
    "Status",
    "Store",
    "StoredRun",
    "Toggle",
    "decoded",
    "encoded",
]
