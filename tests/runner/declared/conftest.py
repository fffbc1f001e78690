"""A working directory for the tests that run a whole experiment."""

from __future__ import annotations

from tests.cli.experiment.conftest import place

__all__ = ["place"]
