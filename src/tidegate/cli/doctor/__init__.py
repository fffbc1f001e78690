"""Findings of `tidegate doctor` about this Python environment, or about a script, which is read and never run.

`environment` has the known SDKs and HTTP stacks, and checks settings and framework timeouts. `script` follows the
imports of a script and of the modules next to it. `answers` explains what providers answer.
"""
