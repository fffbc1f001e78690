"""Execution of experiments: claims, dispatch, retries, and the writing of results."""
