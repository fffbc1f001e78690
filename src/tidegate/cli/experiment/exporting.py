"""`tidegate experiment export`: every run with its row and its judgements, page by page, in bounded memory."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import IO, Any

from tidegate.cli.experiment.database import existing, found
from tidegate.cli.experiment.formats import FORMATS, Writer, columns
from tidegate.errors import ConfigurationError, StoreError
from tidegate.storage import Store, StoredRun
from tidegate.storage.paging import PageSizer

PAGE = 500
"""Runs that are read at once, at the most: fewer where their rows and answers are large (`storage.paging`)."""


def exported(name: str, url: str, form: str | None, output: Path | None) -> None:
    """Writes an experiment's runs to a file, or to standard output; a file is there whole, or not at all."""
    chosen = form if form is not None else _form_of(output)
    make = FORMATS[chosen]
    if chosen == "parquet" and output is None and sys.stdout.isatty():
        raise ConfigurationError("output", None, "Parquet is not for a terminal: --output FILE")
    asyncio.run(_write(name, url, make, output))


async def _write(name: str, url: str, make: type[Writer], output: Path | None) -> None:
    async with existing(url, to_read=True) as store:
        row = await found(store, name)
        known = columns(await store.scores(row.id))
        with _opened(output) as file:
            writer = make(file, known)
            try:
                async for page in _pages(store, row.id):
                    writer.write(page)
                writer.close()
            except BaseException:
                writer.abandon()
                raise


async def _pages(store: Store, number: int) -> AsyncIterator[list[StoredRun]]:
    after, sizer = None, PageSizer()
    while page := await store.results(number, after=after, limit=sizer.limit(PAGE)):
        yield page
        after = page[-1].cursor
        sizer.saw([run.size for run in page])


@contextlib.contextmanager
def _opened(output: Path | None) -> Iterator[IO[Any]]:
    if output is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        if output.exists() and not output.is_file():
            # A pipe or a device: it cannot be put in place of another.
            with output.open("wb") as file:
                yield file
            return
        with _beside(output) as file:
            yield file
    except OSError as error:
        raise StoreError(f"{output} cannot be written: {error.strerror or error}") from error


@contextlib.contextmanager
def _beside(output: Path) -> Iterator[IO[bytes]]:
    """A file that takes the place of `output` once it has been written whole."""
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
        raise ConfigurationError("output", str(output), f"ends in .{', .'.join(FORMATS)}, or --format says what it is")
    return suffix
