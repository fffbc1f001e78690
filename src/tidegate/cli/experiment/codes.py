"""The exit codes of the commands about experiments: one for each thing that a script would react to differently."""

from __future__ import annotations

from enum import IntEnum

from tidegate.runner.progress import Summary
from tidegate.storage import Failure, ResultStatus, Status


class Code(IntEnum):
    """The exit codes; 2 is click's own for what cannot be used, 130 and 143 what a shell says of SIGINT and SIGTERM."""

    DONE = 0
    FAILED = 1
    UNUSABLE = 2
    ERRORS = 3
    PARKED = 4
    STOPPED = 5
    BLOCKED = 6
    BROKEN_OFF = 7
    INTERRUPTED = 130
    TERMINATED = 143


MEANINGS = {
    Code.DONE: "every row was answered, and every answer judged",
    Code.FAILED: "it could not be done: the database, the dataset or the code is not there, or somebody else runs it",
    Code.UNUSABLE: "an option, a name or a file that cannot be used",
    Code.ERRORS: "it ran to its end, and rows or evaluations have failed, or rows are invalid",
    Code.PARKED: "it ran to its end, and rows or evaluations are parked: `resume` tries them again",
    Code.STOPPED: "it was stopped, here or from elsewhere, or its provider was down for `max_outage`: `resume` goes on",
    Code.BLOCKED: "its code or a credential is not here; `show` says which",
    Code.BROKEN_OFF: "it was broken off: too many failures of one kind in a row, a dataset that cannot be read, "
    "or a database file that was deleted or replaced",
    Code.INTERRUPTED: "Ctrl-C before it had begun, as while another process has it: nothing has changed",
    Code.TERMINATED: "SIGTERM or SIGHUP: what was under way has finished, the claim is kept, another process may go on",
}

BY_STATUS = {
    Status.READY: Code.FAILED,
    Status.RUNNING: Code.FAILED,
    Status.STOPPED: Code.STOPPED,
    Status.BLOCKED: Code.BLOCKED,
    Status.ERROR: Code.BROKEN_OFF,
}


def code_of(summary: Summary, failures: list[Failure]) -> Code:
    """The exit code of a run that has ended."""
    if summary.status is not Status.COMPLETED:
        return BY_STATUS[summary.status]
    asked = summary.experiment.spec.get("evaluators")
    # An evaluator that is asked no more may have failed: that is nothing that a resume would mend.
    known = {None, *(asked if isinstance(asked, dict) else (each.evaluator for each in failures))}
    failed = [each for each in failures if each.evaluator in known]
    if any(each.status is not ResultStatus.PARKED for each in failed):
        return Code.ERRORS
    if failed:
        return Code.PARKED
    return Code.DONE if summary.complete else Code.ERRORS
