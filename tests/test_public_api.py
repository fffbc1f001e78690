"""The check of the public API finds a changed signature, and a break that the changelog does not announce."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]

pytest.importorskip("griffe", reason="`make lint` installs griffe; `make api-check` runs the check itself")


@pytest.fixture
def checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The check, over a repository that has released one function as v1."""
    spec = importlib.util.spec_from_file_location("public_api", ROOT / "tools" / "public_api.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "LIST", tmp_path / "list.txt")
    monkeypatch.setattr(module, "MODULES", ("tidegate",))
    monkeypatch.setattr(module, "names", lambda name: ["ask"])
    write(tmp_path, "def ask(row: int, model: str = 'm') -> int: ...")
    for command in ("init -q", "add -A", "-c user.name=n -c user.email=e commit -q -m one", "tag v1"):
        subprocess.run(["git", *command.split()], cwd=tmp_path, check=True)
    module.LIST.write_text(module.listed(load(module)))
    return module


def write(folder: Path, source: str) -> None:
    (folder / "src" / "tidegate").mkdir(parents=True, exist_ok=True)
    (folder / "src" / "tidegate" / "__init__.py").write_text(source + "\n")


def load(module: Any) -> Any:
    return module.griffe.load("tidegate", search_paths=[module.ROOT / "src"], resolve_aliases=True)


def test_what_is_as_released_has_no_fault(checked: Any) -> None:
    assert checked.last_tag() == "v1"
    assert checked.LIST.read_text() == "def tidegate.ask(row: int, model: str = 'm') -> int\n"
    assert checked.check(load(checked), "v1", "## Unreleased\n") == []


def test_a_break_needs_the_list_and_an_announcement(checked: Any) -> None:
    write(checked.ROOT, "def ask(row: int) -> int: ...")
    stale, *rest = checked.check(load(checked), "", "")
    assert stale.startswith("list of the public API stale")
    assert "-def tidegate.ask(row: int, model: str = 'm') -> int" in rest
    checked.LIST.write_text(checked.listed(load(checked)))
    assert checked.check(load(checked), "", "") == []
    unannounced, how = checked.check(load(checked), "v1", "## Unreleased\n\n### Added\n\n## 1\n\n### Breaking\n")
    assert unannounced.startswith("breaks since v1 unannounced")
    assert "Parameter was removed" in how
    assert checked.check(load(checked), "v1", "## Unreleased\n\n### Added\n\n### Breaking\n") == []


def test_an_addition_is_no_break(checked: Any) -> None:
    write(checked.ROOT, "def ask(row: int, model: str = 'm', *, more: bool = False) -> int: ...")
    checked.LIST.write_text(checked.listed(load(checked)))
    assert checked.check(load(checked), "v1", "") == []
