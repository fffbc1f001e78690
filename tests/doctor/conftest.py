"""A Python environment of one's own: metadata of distributions in a folder, and nothing else on the path."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Adds a distribution to an environment that is empty at first.

    `requires` are lines of its metadata, `modules` those that it installs: by default one of its own name.
    """
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.setattr(sys, "path", [str(site)])

    def install(name: str, version: str = "1.0", requires: tuple[str, ...] = (), modules: tuple[str, ...] = ()) -> None:
        home = site / f"{name.replace('-', '_')}-{version}.dist-info"
        home.mkdir()
        lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {each}" for each in requires)]
        (home / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", *lines, "", ""]))
        files = [f"{each.replace('.', '/')}/__init__.py,," for each in modules or (name.replace("-", "_"),)]
        (home / "RECORD").write_text("\n".join(files))

    return install
