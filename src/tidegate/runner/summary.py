"""The result of a run, in numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidegate.storage import Counts, ExperimentRow, ResultStatus, Score, Status

WORDS = {ResultStatus.ERROR: "failed", ResultStatus.PARKED: "parked", ResultStatus.INVALID: "invalid"}


@dataclass(frozen=True, slots=True, repr=False)
class Summary:
    """An experiment as the store has it, usually at a run's end: its counts, and what its evaluators came to.

    As a text it is its headline and the mean of every output, as a notebook shows it.
    """

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
        """Return how many runs have an answer."""
        return self.counts.runs.get(ResultStatus.OK, 0)

    @property
    def unanswered(self) -> int:
        """Return how many runs have none: failed, parked, invalid, or never tried.

        Runs of repetitions that are asked for no more stand for no others.
        """
        failed = sum(self.counts.runs.values()) - self.answered
        return max(failed, self.counts.rows * self.experiment.repetitions - self.answered)

    @property
    def unjudged(self) -> int:
        """Return the number of outputs of evaluators without a judgement because they failed or were parked."""
        asked = self.experiment.spec.get("evaluators")
        return sum(
            count
            for evaluator, statuses in self.counts.annotations.items()
            for status, count in statuses.items()
            if status is not ResultStatus.OK and (not isinstance(asked, dict) or evaluator in asked)
        )

    @property
    def unjudged_parked(self) -> int:
        """Return the number of parked outputs of the experiment's evaluators: a resume tries them again."""
        asked = self.experiment.spec.get("evaluators")
        return sum(
            statuses.get(ResultStatus.PARKED, 0)
            for evaluator, statuses in self.counts.annotations.items()
            if not isinstance(asked, dict) or evaluator in asked
        )

    @property
    def untried(self) -> int:
        """Return how many runs nobody has tried yet."""
        return max(0, self.unanswered - sum(self.counts.runs.get(status, 0) for status in WORDS))

    @property
    def to_judge(self) -> int:
        """Return how many evaluations of answered rows nobody has tried yet."""
        asked = self.experiment.spec.get("evaluators")
        names = asked if isinstance(asked, Mapping) else {}
        judged = self.counts.annotations
        return sum(max(0, self.answered - sum(judged.get(name, {}).values())) for name in names)

    @property
    def headline(self) -> str:
        """Return how it stands, in one line."""
        row, runs = self.experiment, self.counts.runs
        times = f" × {row.repetitions}" if row.repetitions > 1 else ""
        parts = [f"{row.rows} {'row' if row.rows == 1 else 'rows'}{times}", f"{self.answered} answered"]
        parts += [f"{runs[status]} {word}" for status, word in WORDS.items() if runs.get(status)]
        parts += [f"{self.untried} not tried"] if self.untried else []
        if self.unjudged_parked:
            parked = self.unjudged_parked
            parts.append(f"{parked} {'judgement' if parked == 1 else 'judgements'} parked")
        if self.to_judge:
            parts.append(f"{self.to_judge} {'judgement' if self.to_judge == 1 else 'judgements'} to come")
        why = f" ({row.last_error})" if row.last_error else ""
        return f"{row.name}: {row.status}{why}: {', '.join(parts)}"

    def __str__(self) -> str:
        means = [f"\n{each.title}: {each.mean:.3f} of {each.scored}" for each in self.scores if each.mean is not None]
        return self.headline + "".join(means)

    __repr__ = __str__

    @property
    def complete(self) -> bool:
        """Return whether every row was answered, and every answer judged."""
        return self.status is Status.COMPLETED and not self.unanswered and not self.unjudged
