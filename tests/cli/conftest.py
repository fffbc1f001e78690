"""Folders of runs for each test."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cli.runs import OfARun, held
from tidegate.launch.runs import COMMAND, PREFIX
from tidegate.shared_file import FileKind, packed


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def of_a_run(temporary: Path) -> Iterator[OfARun]:
    """Makes the folder of a run; the lock of a run under way is held until the test ends."""
    with ExitStack() as stack:

        def made(pid: int, command: str = "python", under_way: bool = True) -> Path:
            folder = temporary / f"{PREFIX}{pid}"
            folder.mkdir()
            known = {"pid": pid, "command": command, "began_at": time.monotonic() - 192.0}
            (folder / COMMAND).write_bytes(packed(FileKind.COMMAND, json.dumps(known).encode()))
            if under_way:
                stack.enter_context(held(folder))
            return folder

        yield made
