"""Experiments without code: what `experiment.yaml` says, asked of models through their official SDKs."""

from __future__ import annotations

from tidegate.runner.declared.build import from_file, from_stored

__all__ = ["from_file", "from_stored"]
