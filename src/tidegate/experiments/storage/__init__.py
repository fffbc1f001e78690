"""Durable store of experiments, their rows, their results and their claims, on SQLite or PostgreSQL."""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("sqlalchemy") is None:
    raise ImportError(
        "tidegate.experiments.storage not imported: SQLAlchemy is missing; pip install 'tidegate[experiments]'"
    )

from tidegate.experiments.storage.records import JSON as JSON
from tidegate.experiments.storage.records import Annotation as Annotation
from tidegate.experiments.storage.records import AnnotationResult as AnnotationResult
from tidegate.experiments.storage.records import AttemptRecord as AttemptRecord
from tidegate.experiments.storage.records import BatchRecord as BatchRecord
from tidegate.experiments.storage.records import BatchState as BatchState
from tidegate.experiments.storage.records import Category as Category
from tidegate.experiments.storage.records import ChoiceCount as ChoiceCount
from tidegate.experiments.storage.records import Claim as Claim
from tidegate.experiments.storage.records import ClaimStats as ClaimStats
from tidegate.experiments.storage.records import ExperimentRow as ExperimentRow
from tidegate.experiments.storage.records import Failure as Failure
from tidegate.experiments.storage.records import ItemAttempts as ItemAttempts
from tidegate.experiments.storage.records import ItemUsage as ItemUsage
from tidegate.experiments.storage.records import LoggedLine as LoggedLine
from tidegate.experiments.storage.records import LogLevel as LogLevel
from tidegate.experiments.storage.records import LogLine as LogLine
from tidegate.experiments.storage.records import NewRow as NewRow
from tidegate.experiments.storage.records import PendingEval as PendingEval
from tidegate.experiments.storage.records import PendingTask as PendingTask
from tidegate.experiments.storage.records import ResultCounts as ResultCounts
from tidegate.experiments.storage.records import ResultStatus as ResultStatus
from tidegate.experiments.storage.records import RowChunk as RowChunk
from tidegate.experiments.storage.records import RunResult as RunResult
from tidegate.experiments.storage.records import Score as Score
from tidegate.experiments.storage.records import Status as Status
from tidegate.experiments.storage.records import StoredRun as StoredRun
from tidegate.experiments.storage.records import Toggle as Toggle
from tidegate.experiments.storage.store import Store as Store
from tidegate.experiments.storage.stored_forms import decoded as decoded
from tidegate.experiments.storage.stored_forms import encoded as encoded
