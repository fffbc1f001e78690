"""Commands of `tidegate experiment …`, their options, and their error exits.

Large libraries are imported only when a command runs: `tidegate --help` needs no database library.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from tidegate.cli.common import DATABASE, CommandGroup, Db, stop
from tidegate.cli.run_request import UNUSABLE_CODE
from tidegate.errors import CannotLoad, ConfigurationError, ExperimentError, StoreError, UnknownExperiment

MAX_DIFFERENT_ROWS = 100
"""Most rows of one output that `compare` lists."""

Slots = Annotated[
    int | None,
    typer.Option(
        min=1, max=100_000, help="Execute at most this many functions at once (default: what the keys admit)."
    ),
]
BudgetUsd = Annotated[
    float | None,
    typer.Option("--budget-usd", metavar="USD", help="Start no row that would exceed this cost in all."),
]
BudgetTokens = Annotated[
    int | None,
    typer.Option("--budget-tokens", min=1, metavar="N", help="Start no row that would exceed this many tokens in all."),
]
Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="my_eval.py:experiment, package.module:experiment or experiment.yaml; or the name or number of an "
        "experiment of the database.",
    ),
]
FirstRows = Annotated[int | None, typer.Option("--limit", min=1, help="Take only the first N rows.", metavar="N")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name or number of the experiment.")]


class Format(StrEnum):
    """File formats of `export`."""

    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"


NEEDED = {"sqlalchemy": "sqlalchemy", "aiosqlite": "aiosqlite", "yaml": "pyyaml"}


def run(
    source: Source,
    db: Db = DATABASE,
    max_concurrency: Slots = None,
    limit: FirstRows = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Ask all again, as a new experiment NAME-2; the old one stays.")
    ] = False,
    spread: Annotated[
        bool, typer.Option("--spread", help="Let other machines answer rows of it: `--join` (PostgreSQL only).")
    ] = False,
    join: Annotated[
        bool, typer.Option("--join", help="Answer rows of an experiment that another process runs with `--spread`.")
    ] = False,
    budget_usd: BudgetUsd = None,
    budget_tokens: BudgetTokens = None,
) -> None:
    """Run an experiment to its end, or continue it.

    Finished results are kept, failed and parked ones are tried again. A name runs the code or the YAML file that the
    database names, as it is now. The first Ctrl-C stops it after the work in flight, which has 30 s to finish; the
    second one cancels that work. The exit code is 0 if every row was answered and every answer judged; `tidegate docs
    experiments` lists the others.

    With `--join` the process that runs the experiment judges the answers and ends it. Ctrl-C leaves it after the work
    in flight; its other rows are answered elsewhere. The exit code is 0 if nothing here ended the work early.
    """
    from tidegate.experiments.commands.run import given_settings, join_named, run_source

    given = given_settings(max_concurrency, budget_usd, budget_tokens)
    if join:
        if limit is not None or fresh or spread or budget_usd is not None or budget_tokens is not None:
            raise stop("--join not usable: the process that runs the experiment has its other options", UNUSABLE_CODE)
        raise typer.Exit(join_named(source, db, given))
    raise typer.Exit(run_source(source, db, given, limit, fresh=fresh, spread=spread))


def plan(
    source: Source,
    db: Db = DATABASE,
    max_concurrency: Slots = None,
    limit: FirstRows = None,
) -> None:
    """Print what a run would ask, how long it takes, what it waits for, and what it costs; nothing is sent.

    The time follows from the limits that an earlier run has learned: of an experiment in the same database, or in the
    file of TIDEGATE_INITIAL_STATE. Tokens are those of stored results, or estimates for the first rows of a YAML
    experiment.
    """
    from tidegate.experiments.commands.plan import print_plan

    print_plan(source, db, max_concurrency, limit)


def stop_(name: Name, db: Db = DATABASE) -> None:
    """Stop an experiment, whichever process runs it.

    That process stops at its next heartbeat, within 15 s. Finished results are kept.
    """
    from tidegate.experiments.commands.show import stop_named

    raise typer.Exit(asyncio.run(stop_named(name, db)))


def delete(
    name: Name,
    db: Db = DATABASE,
    yes: Annotated[bool, typer.Option("--yes", help="Delete without asking.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Do not wait for the end of a run elsewhere, whose process may be dead.")
    ] = False,
) -> None:
    """Delete an experiment, with its rows, results and log.

    If a process runs it, stop it first and wait for the end of that run, within a minute.
    """
    from tidegate.experiments.commands.show import delete_named

    raise typer.Exit(asyncio.run(delete_named(name, db, yes=yes, force=force)))


def show(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Name or number of the experiment.")] = None,
    db: Db = DATABASE,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; of the list, one object per line.")] = False,
    lines: Annotated[
        int, typer.Option("--lines", min=0, max=10_000, help="Show this many of the last log lines.")
    ] = 10,
) -> None:
    """List the experiments of a database, newest first; or show the state of one, and the reason.

    Print its counts, scores, failures and last log lines. If it runs on this machine, print also why its calls wait.
    """
    from tidegate.experiments.commands.show import listed, shown

    asyncio.run(listed(db, as_json) if name is None else shown(name, db, as_json, lines))


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="Name or number of the first experiment.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Name or number of the second experiment.")],
    db: Db = DATABASE,
    other_db: Annotated[
        str | None, typer.Option("--other-db", metavar="URL", help="Read B from this database (default: that of A).")
    ] = None,
    confidence: Annotated[
        float, typer.Option("--confidence", help="Probability with which an interval holds the true value.")
    ] = 0.95,
    rows: Annotated[
        int, typer.Option("--rows", min=0, max=MAX_DIFFERENT_ROWS, help="List this many of the most different rows.")
    ] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare two experiments row by row: means with intervals, wins of B, rows that differ most.

    Rows are matched by their id. A mean is over the rows with a score in both; errors and parked rows are counted, and
    are never a score of 0.
    """
    from tidegate.experiments.commands.compare import compared

    asyncio.run(compared(a, b, db, other_db, confidence, rows, as_json))


def export(
    name: Name,
    db: Db = DATABASE,
    format_: Annotated[
        Format | None, typer.Option("--format", help="Write this format (default: the suffix of --output, else jsonl).")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Write to FILE (default: standard output).")
    ] = None,
    attempts: Annotated[
        bool, typer.Option("--attempts", help="Export the kept attempts (RunnerSettings.audit) instead of the runs.")
    ] = False,
) -> None:
    """Export every run with its row and its judgements, or every kept attempt.

    Formats are JSONL, CSV, and Parquet if pyarrow is installed; attempts have no Parquet.
    """
    from tidegate.experiments.commands.export import exported

    exported(name, db, format_.value if format_ is not None else None, output, attempts)


def reported(command: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command: an error of tidegate ends it with one line and an exit code, never a traceback."""

    @functools.wraps(command)
    def run(*positional: Any, **named: Any) -> None:
        if missing := [package for module, package in NEEDED.items() if find_spec(module) is None]:
            raise stop(
                f"command not started: {', '.join(missing)} not installed; run pip install 'tidegate[experiments]'"
            )
        try:
            command(*positional, **named)
        except (UnknownExperiment, ConfigurationError) as error:
            raise stop(str(error), UNUSABLE_CODE) from None
        except CannotLoad as error:
            from tidegate.experiments.commands.common import Code

            raise stop(str(error), Code.BLOCKED) from None
        except (StoreError, ExperimentError) as error:
            raise stop(str(error)) from None

    return run


app = typer.Typer(
    cls=CommandGroup,
    help="Run durable experiments: datasets, tasks and evaluators, with their results in a database.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
_COMMANDS: dict[str, Callable[..., None]] = {
    "run": run,
    "plan": plan,
    "stop": stop_,
    "delete": delete,
    "show": show,
    "compare": compare,
    "export": export,
}
for _name, _command in _COMMANDS.items():
    app.command(_name)(reported(_command))
