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
    monkeypatch.delenv("TIDEGATE_DB", raising=False)
    return Place(tmp_path)
