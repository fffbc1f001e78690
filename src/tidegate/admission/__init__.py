"""Admission of calls: one queue a key, between the state machines of `core` and the HTTP stacks."""
