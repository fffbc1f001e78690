"""Tables, one schema for both databases.

Theory of operation. A dataset's rows have ordinals from 0 up; equal contents are stored once, by digest. Pending work
is never stored: it is whatever `runs` and `annotations` lack. Most of their rows are ok, so the others have a small
partial index. `attempts` has what audits keep, `run_stats` the sums of each claim. `usages` has the
tokens and costs of items, `spend` their sums by stage. `answered_by` has the choices of
fallbacks, and is empty for most. `chunks` has the ranges of rows of an experiment that several replicas run at once.
`batches` has the rows that a provider's Batch API answers.
`tallies` has the counts of each stage, which every batch of results changes (`stage_sums`).
`deleted` keeps numbers from a second use. The owner and the epoch of an experiment are one row of
`execution_configs`. Every claim is one UPDATE of it, and every batch of results holds a lock on it while it is written.
"""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ColumnElement,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
    and_,
    literal_column,
    text,
)

from tidegate.core.token_totals import TokenTotals
from tidegate.experiments.storage.stored_forms import Instant, now

PREFIX = "tidegate_"
"""Prefix of every table: the database may have other tables called `runs` (procrastinate prefixes its own too)."""

HEAD = "0010"
"""Newest version of the schema."""

VERSION_TABLE = f"{PREFIX}version"
version = Table(
    VERSION_TABLE,
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name=f"{VERSION_TABLE}_pkc"),
)

metadata = MetaData(
    naming_convention={
        "ix": "%(table_name)s_%(column_0_N_name)s_index",
        "uq": "%(table_name)s_%(column_0_N_name)s_unique",
        "ck": "%(table_name)s_%(constraint_name)s_check",
        "fk": "%(table_name)s_%(column_0_N_name)s_reference",
        "pk": "%(table_name)s_key",
    }
)

Number = BigInteger().with_variant(Integer(), "sqlite")
"""64 bits on both: SQLite generates a key only where its type is called INTEGER."""

Name = Text().with_variant(Text(collation="C"), "postgresql")
"""Text in the order of its bytes, which is the order of SQLite and Python as well."""

OK: ColumnElement[str] = literal_column("'ok'")
NOT_OK = text("status <> 'ok'")
BY_CHOICE = text("answered_by IS NOT NULL")
RUNNING = text("status = 'RUNNING'")
"""Literal SQL in every query that is to use a partial index: a parameter would not match the index."""


def _created() -> Column[datetime]:
    return Column("created_at", Instant(), nullable=False, default=now())


contents = Table(
    f"{PREFIX}contents",
    metadata,
    Column("digest", LargeBinary, primary_key=True),
    Column("body", Text, nullable=False),
)

datasets = Table(
    f"{PREFIX}datasets",
    metadata,
    Column("id", Number, primary_key=True),
    Column("source", Text, nullable=False),
    Column("rows", Number, nullable=False, default=0),
    Column("complete", Boolean, nullable=False, default=False),
    _created(),
)

dataset_rows = Table(
    f"{PREFIX}dataset_rows",
    metadata,
    Column("dataset_id", ForeignKey(datasets.c.id, ondelete="CASCADE"), primary_key=True),
    Column("ordinal", Number, primary_key=True, autoincrement=False),
    Column("name", Name, nullable=False),
    Column("digest", ForeignKey(contents.c.digest)),
    Column("invalid", Text),
    Column("line", Number),
    UniqueConstraint("dataset_id", "name"),
    CheckConstraint("(digest IS NULL) = (invalid IS NOT NULL)", name="content"),
    sqlite_with_rowid=False,
)
# PostgreSQL finds the rows of a content that is to be deleted by it. On SQLite it would double the time of an import,
# and a deletion needs none there.
Index(f"{PREFIX}dataset_rows_digest", dataset_rows.c.digest).ddl_if(dialect="postgresql")

experiments = Table(
    f"{PREFIX}experiments",
    metadata,
    Column("id", Number, primary_key=True),
    Column("name", Name, nullable=False, unique=True),
    Column("dataset_id", ForeignKey(datasets.c.id), nullable=False),
    Column("repetitions", Integer, nullable=False),
    Column("spec", Text, nullable=False),
    _created(),
    CheckConstraint("repetitions >= 1", name="repetitions"),
)

execution_configs = Table(
    f"{PREFIX}execution_configs",
    metadata,
    Column("experiment_id", ForeignKey(experiments.c.id, ondelete="CASCADE"), primary_key=True),
    Column("status", Text, nullable=False, default="READY"),
    Column("claimed_at", Instant),
    Column("claimed_by", Text),
    Column("epoch", Number, nullable=False, default=0),
    Column("cooldown_until", Instant),
    Column("last_error", Text),
    _created(),
    CheckConstraint("status IN ('READY', 'RUNNING', 'COMPLETED', 'STOPPED', 'ERROR', 'BLOCKED')", name="status"),
    CheckConstraint("(status = 'RUNNING') = (claimed_by IS NOT NULL)", name="claimed_by"),
    CheckConstraint("(status = 'RUNNING') = (claimed_at IS NOT NULL)", name="claimed_at"),
)
Index(
    f"{PREFIX}execution_configs_running",
    execution_configs.c.claimed_at,
    postgresql_where=RUNNING,
    sqlite_where=RUNNING,
)

RESULT_STATUS = "status IN ('ok', 'error', 'parked', 'invalid')"

runs = Table(
    f"{PREFIX}runs",
    metadata,
    Column("experiment_id", ForeignKey(experiments.c.id, ondelete="CASCADE"), primary_key=True),
    Column("ordinal", Number, primary_key=True, autoincrement=False),
    Column("repetition", Integer, primary_key=True, autoincrement=False),
    Column("status", Text, nullable=False),
    Column("output", Text),
    Column("error_kind", Text),
    Column("error", Text),
    Column("attempts", Integer, nullable=False),
    Column("seconds", Float, nullable=False),
    Column("epoch", Number, nullable=False),
    Column("finished_at", Instant, nullable=False),
    Column("answered_by", Text),
    CheckConstraint(RESULT_STATUS, name="status"),
)
Index(
    f"{PREFIX}runs_not_ok",
    runs.c.experiment_id,
    runs.c.ordinal,
    runs.c.repetition,
    runs.c.status,
    postgresql_where=NOT_OK,
    sqlite_where=NOT_OK,
)
Index(
    f"{PREFIX}runs_answered_by",
    runs.c.experiment_id,
    runs.c.answered_by,
    postgresql_where=BY_CHOICE,
    sqlite_where=BY_CHOICE,
)

annotation_rows = Table(
    f"{PREFIX}annotations",
    metadata,
    Column("experiment_id", Number, primary_key=True, autoincrement=False),
    Column("ordinal", Number, primary_key=True, autoincrement=False),
    Column("repetition", Integer, primary_key=True, autoincrement=False),
    Column("evaluator", Name, primary_key=True),
    Column("output", Name, primary_key=True),
    Column("status", Text, nullable=False),
    Column("score", Float),
    Column("label", Text),
    Column("value", Text),
    Column("error_kind", Text),
    Column("error", Text),
    Column("attempts", Integer, nullable=False),
    Column("seconds", Float, nullable=False),
    Column("epoch", Number, nullable=False),
    Column("finished_at", Instant, nullable=False),
    Column("answered_by", Text),
    ForeignKeyConstraint(
        ["experiment_id", "ordinal", "repetition"],
        [runs.c.experiment_id, runs.c.ordinal, runs.c.repetition],
        ondelete="CASCADE",
    ),
    CheckConstraint(RESULT_STATUS, name="status"),
    CheckConstraint("status = 'ok' OR score IS NULL", name="score"),
    sqlite_with_rowid=False,
)
Index(
    f"{PREFIX}annotations_not_ok",
    annotation_rows.c.experiment_id,
    annotation_rows.c.ordinal,
    annotation_rows.c.repetition,
    annotation_rows.c.evaluator,
    annotation_rows.c.status,
    postgresql_where=NOT_OK,
    sqlite_where=NOT_OK,
)
Index(
    f"{PREFIX}annotations_answered_by",
    annotation_rows.c.experiment_id,
    annotation_rows.c.evaluator,
    annotation_rows.c.answered_by,
    annotation_rows.c.ordinal,
    annotation_rows.c.repetition,
    postgresql_where=BY_CHOICE,
    sqlite_where=BY_CHOICE,
)

logs = Table(
    f"{PREFIX}logs",
    metadata,
    Column("id", Number, primary_key=True),
    Column("experiment_id", ForeignKey(experiments.c.id, ondelete="CASCADE"), nullable=False),
    Column("at", Instant, nullable=False),
    Column("level", Text, nullable=False),
    Column("category", Text, nullable=False),
    Column("detail", Text, nullable=False),
    CheckConstraint("category IN ('TASK', 'EVAL', 'EXPERIMENT')", name="category"),
)
Index(f"{PREFIX}logs_experiment", logs.c.experiment_id, logs.c.id)

attempts = Table(
    f"{PREFIX}attempts",
    metadata,
    Column("experiment_id", ForeignKey(experiments.c.id, ondelete="CASCADE"), primary_key=True),
    Column("ordinal", Number, primary_key=True, autoincrement=False),
    Column("repetition", Integer, primary_key=True, autoincrement=False),
    Column("stage", Name, primary_key=True),
    Column("run_epoch", Number, primary_key=True, autoincrement=False),
    Column("call_index", Integer, primary_key=True, autoincrement=False),
    Column("started_at", Instant, nullable=False),
    Column("latency", Float, nullable=False),
    Column("waited", Float, nullable=False),
    Column("status", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("cause", Text, nullable=False),
    Column("http_status", Integer),
    Column("key", Text, nullable=False),
    Column("retry_after", Float),
    Column("input_tokens", Number),
    Column("output_tokens", Number),
    Column("cached_tokens", Number),
    Column("reasoning_tokens", Number),
    CheckConstraint("status IN ('success', 'failure', 'capacity_retry')", name="status"),
    sqlite_with_rowid=False,
)


def _token_counts() -> list[Column[int]]:
    return [Column(name, Number, nullable=False, default=0) for name in TokenTotals._fields]


usages = Table(
    f"{PREFIX}usages",
    metadata,
    Column("experiment_id", ForeignKey(experiments.c.id, ondelete="CASCADE"), primary_key=True),
    Column("ordinal", Number, primary_key=True, autoincrement=False),
    Column("repetition", Integer, primary_key=True, autoincrement=False),
    Column("stage", Name, primary_key=True),
    Column("run_epoch", Number, primary_key=True, autoincrement=False),
    *_token_counts(),
    Column("model", Text),
    Column("finish_reason", Text),
    Column("request_id", Text),
    Column("waited", Float, nullable=False, default=0.0),
    sqlite_with_rowid=False,
)

spend = Table(
    f"{PREFIX}spend",
    metadata,
    Column("experiment_id", ForeignKey(experiments.c.id, ondelete="CASCADE"), primary_key=True),
    Column("stage", Name, primary_key=True),
    *_token_counts(),
    sqlite_with_rowid=False,
)

NOT_ENDED = datetime(1970, 1, 1, tzinfo=UTC)
"""Value of `run_stats.ended_at` for a claim under way, and for one whose process was killed."""

run_stats = Table(
    f"{PREFIX}run_stats",
    metadata,
    Column("experiment_id", ForeignKey(experiments.c.id, ondelete="CASCADE"), primary_key=True),
    Column("epoch", Number, primary_key=True, autoincrement=False),
    Column("ended_at", Instant, nullable=False),
    Column("stats", Text, nullable=False),
)

chunks = Table(
    f"{PREFIX}chunks",
    metadata,
    Column("experiment_id", ForeignKey(experiments.c.id, ondelete="CASCADE"), primary_key=True),
    Column("first", Number, primary_key=True, autoincrement=False),
    Column("end", Number, nullable=False),
    Column("epoch", Number, nullable=False, default=0),
    Column("claimed_by", Text),
    Column("claimed_at", Instant),
    Column("done", Boolean, nullable=False, default=False),
    CheckConstraint('"first" < "end"', name="end"),
)

batches = Table(
    f"{PREFIX}batches",
    metadata,
    Column("experiment_id", ForeignKey(experiments.c.id, ondelete="CASCADE"), primary_key=True),
    Column("number", Number, primary_key=True, autoincrement=False),
    Column("provider", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("tag", Text, nullable=False),
    Column("items", Text, nullable=False),
    Column("count", Number, nullable=False),
    Column("epoch", Number, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("file_id", Text),
    Column("provider_id", Text),
    Column("detail", Text),
    CheckConstraint("state IN ('intent', 'submitted', 'ended', 'fetched')", name="state"),
)

tallies = Table(
    f"{PREFIX}tallies",
    metadata,
    Column("experiment_id", ForeignKey(experiments.c.id, ondelete="CASCADE"), primary_key=True),
    Column("stage", Name, primary_key=True),
    Column("tally", Text, nullable=False),
    sqlite_with_rowid=False,
)

# SQLite gives the greatest number to a new row again, and a process that still runs the deleted experiment would write
# its results there.
deleted = Table(
    f"{PREFIX}deleted",
    metadata,
    Column("experiment_id", Number, primary_key=True, autoincrement=False),
    Column("dataset_id", Number, nullable=False),
    Column("deleted_at", Instant, nullable=False),
)


def not_ok(table: Table) -> ColumnElement[bool]:
    """Return the condition of a table's partial index: results that are not ok."""
    return table.c.status != OK


def wanted_again(table: Table) -> ColumnElement[bool]:
    """Return the condition for results that a resume may repeat: those that failed or were parked."""
    return and_(not_ok(table), table.c.status != literal_column("'invalid'"))
