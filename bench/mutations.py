"""One mutation for each rule of the controller: without the rule, a ratio, refusals or a law get worse.

python -m bench.mutations [--only PART[,PART…]]

Each mutation is applied to a copy of the package. The command that judges it runs in virtual time, first with the
package as it is, then with the copy: the first run must pass, the second must fail.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench import virtual
from bench.common import table
from bench.drawntable import named
from bench.measures import Run

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src"

MOST_LINES = 10
"""Changed lines of a mutation at most."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Bound of a figure of one run in virtual time, of a drawn family at a seed: `ratio`, `refused_share` or `hits`.

    A lost call misses every bound.
    """

    family: str
    seed: int
    figure: str
    most: float

    @property
    def name(self) -> str:
        """Return the figure and its bound in words."""
        return f"{self.family} {self.seed}: {self.figure} <= {self.most:g}"

    @property
    def command(self) -> tuple[str, ...]:
        """Return the arguments of Python that measure it: they print the figure, and fail where it is missed."""
        return "-m", "bench.mutations", "--measure", self.family, str(self.seed), self.figure, str(self.most)

    def measured(self) -> float:
        """Return the figure; infinity where a call was lost."""
        (family,) = named([self.family])
        run: Run = virtual.run(family.row(self.seed), self.seed)
        return float("inf") if run.lost else float(getattr(run, self.figure))


@dataclass(frozen=True, slots=True)
class Law:
    """A property test of `tests/laws`, which holds or does not."""

    test: str

    @property
    def name(self) -> str:
        """Return the path of the test."""
        return self.test

    @property
    def command(self) -> tuple[str, ...]:
        """Return the arguments of Python that check it."""
        return "-m", "pytest", "-q", "-o", "pythonpath=.", self.test


@dataclass(frozen=True, slots=True)
class Mutation:
    """Removal of one rule: in `file`, below the package, the text `old` becomes `new`.

    `rule` says what the controller does without the mutation.
    """

    part: int
    rule: str
    file: str
    old: str
    new: str
    judge: Bound | Law

    @property
    def changed_lines(self) -> int:
        """Return the lines that it takes out or puts in."""
        return max(len(text.splitlines()) for text in (self.old, self.new))

    def applied(self, folder: Path) -> None:
        """Change the copy of the package in `folder`; raise ValueError unless the old text is there exactly once."""
        file = folder / "tidegate" / self.file
        text = file.read_text()
        if text.count(self.old) != 1:
            raise ValueError(
                f"mutation {self.part} not applied: its old text is {text.count(self.old)} times in {file}"
            )
        file.write_text(text.replace(self.old, self.new))


MUTATIONS = (
    Mutation(
        1,
        "the charging rule of a quota is learned from its answers",
        "core/charging.py",
        "    def _take(self, rule: int, now: float) -> bool:\n",
        "    def _take(self, rule: int, now: float) -> bool:\n        return False\n",
        Bound("bound-large-anthropic", 2, "refused_share", 0.01),
    ),
    Mutation(
        2,
        "the window of a quota is learned from its resets",
        "core/window_inference.py",
        "reset is None or self._unread:\n            return usable_window(declared, so_far)\n",
        "True:\n            return usable_window(declared, so_far)\n",
        Bound("announced-rolling", 2, "ratio", 1.06),
    ),
    Mutation(
        3,
        "no wait for a quota outlasts the newest reset",
        "core/quota_base.py",
        "        if ready <= self.stated_at or",
        "        if ready or",
        Law("tests/laws/test_stated_reset_laws.py"),
    ),
    Mutation(
        4,
        "one call tests the dearest rule where it delays by more than a second",
        "core/quota_charges.py",
        "        if latest > now + EXPLORED_WAIT_SECONDS and latest > self._explore_at and not self._explorer:\n",
        "        if latest == now > latest:\n",
        Bound("charges-returned", 4, "ratio", 1.2),
    ),
    Mutation(
        5,
        "a rate is measured between refusals, and held",
        "core/pacer.py",
        "            self._learn(let_in, count, seconds, cause, held, sent_at, now)\n",
        "            self.spacing.set_rate(0.5 * self.rate, now)\n",
        Bound("tiny-bucket", 4, "refused_share", 0.045),
    ),
    Mutation(
        6,
        "trials of a limit on growth raise what a period may have",
        "core/growth_limit.py",
        "        self.low = max(self.low, lately / before)\n",
        "",
        Bound("growth", 4, "ratio", 1.2),
    ),
    Mutation(
        6,
        "slots and rates are told apart by the likelihood of all outcomes",
        "core/refusal_cause.py",
        "        return (misfits - self._bucket_misfits(known, now)) * -log(EXCLUDED_OUTCOME_CHANCE)\n",
        "        return 0.0\n",
        Bound("tiny-bucket", 6, "ratio", 1.08),
    ),
    Mutation(
        7,
        "the delays between probes of an outage grow slowly",
        "core/circuit_breaker.py",
        "self._cooldown * COOLDOWN_GROWTH",
        "self._cooldown * 2.0",
        Bound("drawn-outage", 8, "ratio", 1.06),
    ),
)


def judged(judge: Bound | Law, package: Path) -> tuple[bool, str]:
    """Return whether the command of a judge passes with the package of that folder, and the figure."""
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join((str(package), str(ROOT)))}
    ended = subprocess.run(
        [sys.executable, *judge.command], cwd=ROOT, env=variables, capture_output=True, text=True, check=False
    )
    passed, broken = ended.returncode == 0, ended.returncode == 1 and ended.stdout
    if not (passed or broken):
        raise RuntimeError(f"{judge.name} not measured: {ended.stdout}{ended.stderr}")
    if isinstance(judge, Law):
        return passed, "holds" if passed else "broken"
    return passed, ended.stdout.strip()


def play(mutations: tuple[Mutation, ...]) -> int:
    """Print the table; return 1 where a rule fails its judge, or its mutation passes."""
    rows, missed = [], 0
    for each in mutations:
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(PACKAGE, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
            held, before = judged(each.judge, Path(folder))
            each.applied(Path(folder))
            passed, after = judged(each.judge, Path(folder))
        missed += passed or not held
        word = "FAILS" if not held else "NOT NOTICED" if passed else "ok"
        rows.append([f"{each.part} {each.rule}", each.judge.name, before, after, word])
    table("Mutations", ("part", "judge", "unmutated", "mutated", ""), rows)
    return 1 if missed else 0


def main() -> int:
    """Run the mutations that the command line names; return 1 where one is not noticed."""
    parser = argparse.ArgumentParser(description="Each rule of the controller without itself")
    parser.add_argument("--only", help="parts, with commas between")
    parser.add_argument("--measure", nargs=4, metavar=("FAMILY", "SEED", "FIGURE", "MOST"), help="one figure alone")
    given = parser.parse_args()
    if given.measure:
        family, seed, figure, most = given.measure
        value = Bound(family, int(seed), figure, float(most)).measured()
        print(f"{value:.3f}")
        return 1 if value > float(most) else 0
    parts = {int(each) for each in given.only.split(",")} if given.only else {each.part for each in MUTATIONS}
    return play(tuple(each for each in MUTATIONS if each.part in parts))


if __name__ == "__main__":
    raise SystemExit(main())
