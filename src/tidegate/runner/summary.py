"""How a run went, in numbers."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.storage import Counts, ExperimentRow, ResultStatus, Score, Status


@dataclass(frozen=True, slots=True)
class Summary:
    """An experiment as the store has it, usually at a run's end: its counts, and what its evaluators came to."""

    experiment: ExperimentRow
    counts: Counts
    scores: tuple[Score, ...]

    @property
    def status(self) -> Status:
        """Where it stands."""
        return self.experiment.status

    @property
    def last_error(self) -> str | None:
        """Why it was stopped, where it was."""
        return self.experiment.last_error

    @property
    def answered(self) -> int:
        """How many runs have an answer."""
        return self.counts.runs.get(ResultStatus.OK, 0)

    @property
    def unanswered(self) -> int:
        """How many runs have none: failed, parked, invalid, or never tried.

        Runs of repetitions that are asked for no more stand for no others.
        """
        failed = sum(self.counts.runs.values()) - self.answered
        return max(failed, self.counts.rows * self.experiment.repetitions - self.answered)

    @property
    def unjudged(self) -> int:
        """How many outputs of the experiment's evaluators have no judgement because they failed or were parked."""
        asked = self.experiment.spec.get("evaluators")
        return sum(
            count
            for evaluator, statuses in self.counts.annotations.items()
            for status, count in statuses.items()
            if status is not ResultStatus.OK and (not isinstance(asked, dict) or evaluator in asked)
        )

    @property
    def complete(self) -> bool:
        """Whether every row was answered, and every answer judged."""
        return self.status is Status.COMPLETED and not self.unanswered and not self.unjudged
