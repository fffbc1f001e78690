"""A command of Node in a folder of its own, from a lock that names every version exactly."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.environments import MOST_SECONDS, is_made_from

INSTALL = ("npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error")
"""Not `npm ci`: that refuses a lock where the index lacks a package for some other platform."""

LOCK = (*INSTALL, "--package-lock-only", "--omit-lockfile-registry-resolved")
"""How a lock is made from a package.json: it names versions and digests, and no place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEnvironment:
    """An installation by npm.

    folder    where it is
    packages  the package.json; its package-lock.json is beside it
    """

    folder: Path
    packages: Path

    @property
    def bin(self) -> Path:
        """Where its commands are."""
        return self.folder / "node_modules" / ".bin"

    @property
    def lock(self) -> Path:
        """What npm is to install, to the last package."""
        return self.packages.with_name("package-lock.json")

    @property
    def versions(self) -> dict[str, str]:
        """What package.json names."""
        named: dict[str, str] = json.loads(self.packages.read_text())["dependencies"]
        return named

    def make(self, seconds: float = MOST_SECONDS) -> None:
        """Install; nothing if it stands. Raises FileNotFoundError without npm, CalledProcessError, TimeoutExpired."""
        made_from = self.lock.read_text()
        if is_made_from(self.folder, made_from):
            return
        print(f"installing {self.folder.name} ...", file=sys.stderr, flush=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        for named in (self.packages, self.lock):
            shutil.copy(named, self.folder / named.name)
        subprocess.run(INSTALL, cwd=self.folder, check=True, timeout=seconds, stdin=subprocess.DEVNULL)
        (self.folder / "ready").write_text(made_from)
