"""The version of this package, equal to that in `pyproject.toml`."""

__version__ = "0.1.0"
