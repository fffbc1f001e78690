"""Experiments without code: `experiment.yaml` declares questions, and official SDKs send them to models."""

from __future__ import annotations

from tidegate.experiments.declared.build import from_file, from_stored

__all__ = ["from_file", "from_stored"]
