"""Experiments whose rows a provider's Batch API answers."""
