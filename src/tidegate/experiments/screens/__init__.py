"""Screens of `tidegate serve` that show experiments: their routes, and the answers that are read from a database."""
