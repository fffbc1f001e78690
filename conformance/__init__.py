"""Runs of other people's software, as it is installed, with tidegate underneath; `make` has a target for each."""
