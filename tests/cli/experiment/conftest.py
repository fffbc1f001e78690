"""A working directory for each test."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli.experiment.commands import Place


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A new directory, which is the working one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    # A test may rewrite its program within the second by which bytecode is told to be old.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delenv("TIDEGATE_DB", raising=False)
    return Place(tmp_path)
