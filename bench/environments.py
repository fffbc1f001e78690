"""Installations of other people's software below .venv, made anew only when what they are made from has changed."""

from __future__ import annotations

import fcntl
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
HOME = ROOT / ".venv"

ENTRY_POINTS = "entry-points"
"""File in an environment that has the entry points with which tidegate was installed there."""

MOST_SECONDS = 1200.0
"""How long one installation may take: four times the longest seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """A virtual environment with `requirements`, everything in the exact versions of a file.

    folder        where it is
    pins          the file: `name==version` a line, perhaps with a marker
    requirements  what is installed, with what it needs
    alone         what is installed without what it needs: one of its modules is used by itself
    ours          whether tidegate is installed in it, editable
    """

    folder: Path
    pins: Path
    requirements: tuple[str, ...]
    alone: tuple[str, ...] = ()
    ours: bool = True

    @property
    def bin(self) -> Path:
        """Where its commands are."""
        return self.folder / "bin"

    @property
    def versions(self) -> dict[str, str]:
        """The exact version of everything in it, by package; where older Pythons have another, the newer one's."""
        lines = (line.partition(";") for line in self.pins.read_text().splitlines())
        pinned = (what.strip().partition("==") for what, _, older in lines if "<" not in older)
        return {normal(name): version for name, _, version in pinned}

    @property
    def _made_from(self) -> str:
        needs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"] if self.ours else ()
        return "\n".join((sys.version, *needs, *self.requirements, *self.alone, self.pins.read_text()))

    def make(self, seconds: float = MOST_SECONDS) -> None:
        """Install; nothing if it stands already. Raise `CalledProcessError`, or `TimeoutExpired`.

        A second process waits for the first one: two must not make one folder.
        """
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with self.folder.with_name(f"{self.folder.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._make(seconds)

    def _make(self, seconds: float) -> None:
        if is_made_from(self.folder, self._made_from):
            self._state_entry_points(seconds)
            return
        print(f"installing {self.folder.name} ...", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(self.folder)], check=True, timeout=seconds)
        tidegate = ("--editable", str(ROOT)) if self.ours else ()
        self._pip(seconds, *tidegate, *self.requirements)
        if self.alone:
            self._pip(seconds, "--no-deps", *self.alone)
        (self.folder / ENTRY_POINTS).write_text(_entry_points())
        (self.folder / "ready").write_text(self._made_from)

    def _state_entry_points(self, seconds: float) -> None:
        """Install tidegate alone once more, if its entry points have changed since."""
        noted = self.folder / ENTRY_POINTS
        if self.ours and (not noted.exists() or noted.read_text() != _entry_points()):
            self._pip(seconds, "--no-deps", "--editable", str(ROOT))
            noted.write_text(_entry_points())

    def _pip(self, seconds: float, *what: str) -> None:
        pip = [str(self.bin / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        constraint = ["--no-cache-dir", "--constraint", str(self.pins)]
        subprocess.run([*pip, *constraint, *what], check=True, timeout=seconds)


def _entry_points() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return repr((project["scripts"], project["entry-points"]))


def is_made_from(folder: Path, what: str) -> bool:
    """Whether an installation stands that was made from this."""
    ready = folder / "ready"
    return ready.exists() and ready.read_text() == what


def normal(package: str) -> str:
    """A package's name as indexes compare it, without its extras."""
    return re.sub(r"[-_.]+", "-", package.partition("[")[0].strip()).lower()
