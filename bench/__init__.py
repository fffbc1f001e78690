"""Benchmarks: what tidegate costs, how near the limit it runs, and how it bears many waiters. See README.md."""
