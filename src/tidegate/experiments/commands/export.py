"""`tidegate experiment export`: every run with its row and judgements, or every kept attempt, as JSONL, CSV or Parquet.

Runs are read and written page by page: memory holds at most some pages.
"""

from __future__ import annotations

import asyncio
import contextlib
import csv
import io
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from tidegate.errors import ConfigurationError, StoreError
from tidegate.experiments.commands.common import existing, found
from tidegate.experiments.storage import Store, StoredRun
from tidegate.experiments.storage.export_formats import (
    FORMATS,
    GROUP_ROWS,
    Csv,
    Jsonl,
    Parquet,
    harmless,
    layout_of,
    pages,
)
from tidegate.experiments.storage.records import AttemptCursor


def exported(name: str, url: str, form: str | None, output: Path | None, attempts: bool = False) -> None:
    """Write an experiment's runs, or its kept attempts, to a file or to standard output.

    A file appears complete, or not at all.
    """
    chosen = form if form is not None else _form_of(output)
    if attempts:
        if chosen == "parquet":
            raise ConfigurationError("format", chosen, "attempts are exported as jsonl or csv")
        asyncio.run(_write_attempts(name, url, chosen, output))
        return
    make = FORMATS[chosen]
    if chosen == "parquet" and output is None and sys.stdout.isatty():
        raise ConfigurationError("output", None, "Parquet is binary and not for a terminal; name a file with --output")
    asyncio.run(_write(name, url, make, output))


async def _write(name: str, url: str, make: type[Jsonl | Csv | Parquet], output: Path | None) -> None:
    async with existing(url, to_read=True) as store:
        row = await found(store, name)
        read = pages(store, row.id)
        first: list[StoredRun] = await anext(read, [])
        layout = await layout_of(store, row.id, first)
        with _opened(output) as file:
            writer = make(file, layout)
            try:
                writer.write(first)
                async for page in read:
                    writer.write(page)
                writer.close()
            except BaseException:
                writer.abandon()
                raise


ATTEMPT = (
    "ordinal", "repetition", "stage", "run_epoch", "call_index", "started_at", "waited", "latency", "status", "kind",
    "cause", "http_status", "key", "retry_after", "input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens",
)  # fmt: skip
"""Columns of an exported attempt. The first five identify it within its experiment."""


async def _write_attempts(name: str, url: str, form: str, output: Path | None) -> None:
    async with existing(url, to_read=True) as store:
        row = await found(store, name)
        with _opened(output) as file:
            text = io.TextIOWrapper(file, "utf-8", "backslashreplace", newline="", write_through=True)
            table = csv.DictWriter(text, ATTEMPT)
            if form == "csv":
                table.writeheader()
            try:
                async for each in _attempts(store, row.id):
                    told = {
                        **{column: each[column] for column in ATTEMPT},
                        "started_at": each["started_at"].isoformat(),
                    }
                    if form == "csv":
                        table.writerow({column: harmless(value) for column, value in told.items()})
                    else:
                        text.write(json.dumps(told, ensure_ascii=False) + "\n")
            finally:
                text.detach()


async def _attempts(store: Store, number: int) -> AsyncIterator[Mapping[str, Any]]:
    after: AttemptCursor | None = None
    while page := await store.reports.attempts(number, after=after, limit=GROUP_ROWS):
        for each in page:
            yield each
        after = tuple(page[-1][column] for column in ATTEMPT[:5])


@contextlib.contextmanager
def _opened(output: Path | None) -> Iterator[IO[Any]]:
    if output is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        if output.exists() and not output.is_file():
            # A pipe or a device: a new file cannot replace it.
            with output.open("wb") as file:
                yield file
            return
        with _beside(output) as file:
            yield file
    except OSError as error:
        raise StoreError(f"export to {output} failed: {error.strerror or error}; no file was replaced") from error


@contextlib.contextmanager
def _beside(output: Path) -> Iterator[IO[bytes]]:
    """Yield a temporary file that replaces `output` once it is complete."""
    descriptor, name = tempfile.mkstemp(prefix=f".{output.name}.", dir=output.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
        mask = os.umask(0)
        os.umask(mask)
        Path(name).chmod(0o666 & ~mask)
        Path(name).replace(output)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _form_of(output: Path | None) -> str:
    suffix = output.suffix.lower().removeprefix(".") if output is not None else ""
    if not suffix:
        return "jsonl"
    if suffix not in FORMATS:
        raise ConfigurationError(
            "output", str(output), f"its suffix is not .{', .'.join(FORMATS)}; name the format with --format"
        )
    return suffix
