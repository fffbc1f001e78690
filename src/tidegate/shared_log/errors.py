"""Errors inside a carrier. None of them reaches a call: sharing ends, and the process continues alone."""

from __future__ import annotations


class Unshared(Exception):
    """A log cannot be shared; the text is the reason, for `tidegate doctor`."""


class Unsupported(Unshared):
    """This platform or process cannot share at all; that is no defect of its set-up."""


class NoConnection(Exception):
    """This process has no connection to the server now, and does not make it itself; a later try costs nothing."""


class CorruptLog(Unshared):
    """The content of a log is not that of any member."""
