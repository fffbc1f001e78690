"""What a framework's run came to, read from what the framework itself leaves behind."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

SAID = re.compile(r"^(\d+) of (\d+) rows answered, (\d+) right(?:, score ([\d.]+))?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Rows that the framework has an answer for, rows whose check it passed, and its own score in percent."""

    answered: int
    right: int
    score: float


def last_line(output: str, folder: Path) -> Outcome | None:
    """From the line that the examples print at their end; None where the run did not come to it."""
    said = SAID.findall(output)
    if not said:
        return None
    answered, of, right, score = said[-1]
    return Outcome(int(answered), int(right), float(score) if score else 100 * int(right) / int(of))


def inspect_log(output: str, folder: Path) -> Outcome | None:
    """From Inspect's log in JSON; a sample with an error was not answered."""
    for path in sorted(folder.glob("logs/*.json")):
        log = json.loads(path.read_text())
        if log["status"] != "success":
            return None
        done = [sample for sample in log["samples"] if not sample.get("error")]
        right = sum(sample["scores"]["match"]["value"] == "C" for sample in done)
        return Outcome(len(done), right, 100 * log["results"]["scores"][0]["metrics"]["accuracy"]["value"])
    return None


def lm_eval_results(output: str, folder: Path) -> Outcome | None:
    """From the harness's samples, and its score from its results."""
    for path in sorted(folder.glob("results/*/results_*.json")):
        score = 100 * json.loads(path.read_text())["results"]["products"]["exact_match,none"]
        (samples,) = path.parent.glob("samples_products_*.jsonl")
        done = [json.loads(line) for line in samples.read_text().splitlines()]
        answered = sum(bool(sample["filtered_resps"] and sample["filtered_resps"][0]) for sample in done)
        return Outcome(answered, sum(sample["exact_match"] == 1.0 for sample in done), score)
    return None
