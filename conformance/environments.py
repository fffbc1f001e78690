"""An installation of its own for each framework, below .venv, made anew only when what it is made from has changed."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PINS = Path(__file__).parent / "pins"


class Environment:
    """A virtual environment with tidegate, editable, and `requirements` in the versions of `pins/<name>.txt`."""

    def __init__(self, name: str, requirements: tuple[str, ...], root: Path = ROOT / ".venv") -> None:
        self.folder = root / f"frameworks-{name}"
        self.pins = PINS / f"{name}.txt"
        self._requirements = requirements

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
        ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
        return "\n".join((sys.version, *ours, *self._requirements, self.pins.read_text()))

    def make(self) -> None:
        """Install; nothing if it stands already. Raises CalledProcessError."""
        ready = self.folder / "ready"
        if ready.exists() and ready.read_text() == self._made_from:
            return
        print(f"installing {self.folder.name} ...", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(self.folder)], check=True)
        pip = [str(self.bin / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        constraint = ["--no-cache-dir", "--constraint", str(self.pins)]
        subprocess.run([*pip, *constraint, "--editable", str(ROOT), *self._requirements], check=True)
        ready.write_text(self._made_from)


def normal(package: str) -> str:
    """A package's name as indexes compare it, without its extras."""
    return re.sub(r"[-_.]+", "-", package.partition("[")[0].strip()).lower()
