"""Findings of `tidegate doctor` about this Python environment, or about a script, which is read and never run.

`environment` has the known SDKs, frameworks and HTTP stacks, one row each, and checks settings, framework timeouts and
the interpreter. The transports themselves define what is governed. `command` follows the imports of a script and of the
modules next to it, and their requirements; `transports.imports` has what cannot be governed.
"""
