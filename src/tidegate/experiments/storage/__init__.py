"""Durable store of experiments, their rows, their results and their claims, on SQLite or PostgreSQL."""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("sqlalchemy") is None:
    raise ImportError(
        "tidegate.experiments.storage not imported: SQLAlchemy is missing; pip install 'tidegate[runner]'"
    )

from tidegate.experiments.storage.records import (
    JSON,
    Annotation,
    AnnotationResult,
    AttemptRecord,
    BatchRecord,
    BatchState,
    Category,
    ChoiceCount,
    Claim,
    ClaimStats,
    ExperimentRow,
    Failure,
    ItemAttempts,
    ItemUsage,
    LoggedLine,
    LogLevel,
    LogLine,
    NewRow,
    PendingEval,
    PendingTask,
    ResultCounts,
    ResultStatus,
    RowChunk,
    RunResult,
    Score,
    Status,
    StoredRun,
    Toggle,
)
from tidegate.experiments.storage.store import Store
from tidegate.experiments.storage.stored_forms import decoded, encoded

__all__ = [
    "JSON",
    "Annotation",
    "AnnotationResult",
    "AttemptRecord",
    "BatchRecord",
    "BatchState",
    "Category",
    "ChoiceCount",
    "Claim",
    "ClaimStats",
    "ExperimentRow",
    "Failure",
    "ItemAttempts",
    "ItemUsage",
    "LogLevel",
    "LogLine",
    "LoggedLine",
    "NewRow",
    "PendingEval",
    "PendingTask",
    "ResultCounts",
    "ResultStatus",
    "RowChunk",
    "RunResult",
    "Score",
    "Status",
    "Store",
    "StoredRun",
    "Toggle",
    "decoded",
    "encoded",
]
