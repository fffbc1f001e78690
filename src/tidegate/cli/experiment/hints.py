"""The commands to type next, for the database that was meant."""

from __future__ import annotations

import os
import shlex

from tidegate.cli.experiment.options import DATABASE, VARIABLE
from tidegate.storage.engines import has_secret, parsed


def command(verb: str, name: str, url: str, *more: str) -> str:
    """`tidegate experiment VERB NAME` as it is typed here; a database that was named by an option is named again.

    A URL with a password is left to whoever knows it.
    """
    words = ["tidegate", "experiment", verb, name, *more]
    if url not in (DATABASE, os.environ.get(VARIABLE)):
        words += ["--db", "…" if has_secret(parsed(url)) else url]
    return f"`{' '.join(word if word == '…' else shlex.quote(word) for word in words)}`"
