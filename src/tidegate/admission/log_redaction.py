"""Redaction of the log: this project's logger has a filter from the import of this module on.

Every module that logs imports this one, itself or through another. `redaction` does without it, because `tidegate run`
redacts its command and never logs.
"""

from __future__ import annotations

import logging

from tidegate.admission.redaction import clean


class LogRedaction(logging.Filter):
    """Filter that redacts this project's logger: the message and the traceback, before any handler sees them."""

    _formatter = logging.Formatter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Redact a record in place, and return True: every record is logged."""
        try:
            told = record.getMessage()
            kept = clean(told)
            if kept != told:
                record.msg, record.args = kept, None
            if record.exc_info and record.exc_info[0] is not None:
                trace = self._formatter.formatException(record.exc_info)
                record.exc_text = clean(trace, lines=True)
                if record.exc_text != trace:
                    # Another handler would format the exception itself.
                    record.exc_info = None
        except Exception as error:
            record.msg = f"a log line could not be redacted: {type(error).__name__}"
            record.args = record.exc_info = None
        return True


logging.getLogger("tidegate").addFilter(LogRedaction())
