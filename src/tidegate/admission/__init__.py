"""Admission of calls: one queue per key, between the state machines of `core` and the HTTP stacks."""
