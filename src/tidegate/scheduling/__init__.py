"""Scheduling of functions that call providers: what the runner and the pool share."""
