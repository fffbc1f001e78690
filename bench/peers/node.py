"""A command of Node in its own folder, from a package.json that names exact versions."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.environments import MOST_SECONDS, is_made_from

INSTALL = ("npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error")
"""Without a lock: the packages that the named one depends on are the newest that it allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEnvironment:
    """An installation by npm.

    folder    where it is
    packages  the package.json
    """

    folder: Path
    packages: Path

    @property
    def bin(self) -> Path:
        """Where its commands are."""
        return self.folder / "node_modules" / ".bin"

    @property
    def versions(self) -> dict[str, str]:
        """What package.json names."""
        named: dict[str, str] = json.loads(self.packages.read_text())["dependencies"]
        return named

    def make(self, seconds: float = MOST_SECONDS) -> None:
        """Install; nothing if it stands. Raises FileNotFoundError without npm, CalledProcessError, TimeoutExpired."""
        made_from = self.packages.read_text()
        if is_made_from(self.folder, made_from):
            return
        print(f"installing {self.folder.name} ...", file=sys.stderr, flush=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        shutil.copy(self.packages, self.folder / self.packages.name)
        subprocess.run(INSTALL, cwd=self.folder, check=True, timeout=seconds, stdin=subprocess.DEVNULL)
        (self.folder / "ready").write_text(made_from)
