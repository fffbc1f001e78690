"""Check of the public API: a change is visible in a committed list, and a break against the last release is announced.

    python tools/public_api.py check    exit code 1 if the list is stale, or a break since the last tag unannounced
    python tools/public_api.py write    write the list

Public are the names in `__all__` of the modules in `MODULES`, and those in `UNLISTED`. griffe reads the sources, and
nothing of them is run but `__all__`. Without a tag `v*` there is no release to compare with, and the list alone is
checked.
"""

from __future__ import annotations

import difflib
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import griffe

ROOT = Path(__file__).parents[1]
LIST = ROOT / "tools" / "public_api.txt"
UNLISTED = {
    "tidegate": ("amap", "map"),
    "tidegate.admission.registry": ("NotReady", "RateLimitRegistry"),
    "tidegate.core.limiter_state": ("Permit",),
    "tidegate.core.values": ("Cost",),
    "tidegate.errors": ("NotAdmitted", "PermitMisuse"),
    "tidegate.fallbacks": ("Choice",),
}
"""Public names outside `__all__`: a star import must not hide a builtin, and the other modules have more names."""

MODULES = (*UNLISTED, "tidegate.providers", "tidegate.experiments", "tidegate.telemetry", "tidegate.testing")

BREAKING = re.compile(r"^## Unreleased\n(?:(?!^## ).*\n)*?### Breaking\n", re.MULTILINE)
"""Heading of the changelog that announces a break."""


def names(module: str) -> list[str]:
    """Return the public names of a module."""
    return sorted({*getattr(import_module(module), "__all__", ()), *UNLISTED.get(module, ())})


def target_of(package: griffe.Object | griffe.Alias, path: str) -> griffe.Object | griffe.Alias:
    """Return the object behind a public path, wherever it is defined."""
    found = package[path.partition(".")[2]] if "." in path else package
    return found.final_target if isinstance(found, griffe.Alias) else found


def lines(path: str, found: griffe.Object | griffe.Alias) -> Iterator[str]:
    """Yield the lines of the list for one object: its signature, and those of its public members."""
    if isinstance(found, griffe.Function):
        kind = "async def" if "async" in found.labels else "def"
        yield f"{kind} {path}{found.signature(return_type=True).removeprefix(found.name)}"
    elif isinstance(found, griffe.Class):
        yield f"class {path}({', '.join(str(base) for base in found.bases)})"
        for name, member in sorted(found.members.items()):
            if (not name.startswith("_") or name == "__init__") and not isinstance(member, griffe.Alias):
                yield from lines(f"{path}.{name}", member)
    elif isinstance(found, griffe.Attribute):
        default = " = ..." if found.value is not None else ""
        yield f"{path}: {found.annotation}{default}"


def listed(package: griffe.Object | griffe.Alias) -> str:
    """Return the whole list."""
    found = []
    for module in MODULES:
        for name in names(module):
            path = f"{module}.{name}"
            found += lines(path, target_of(package, path))
    return "".join(f"{line}\n" for line in found)


def last_tag() -> str:
    """Return the newest release tag that this commit has before it; empty where there is none."""
    command = ["git", "describe", "--tags", "--abbrev=0", "--match", "v*"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def breaks(package: griffe.Object | griffe.Alias, tag: str) -> list[str]:
    """Return the breaks of public objects since a tag."""
    before = griffe.load_git("tidegate", ref=tag, repo=ROOT, search_paths=["src"], resolve_aliases=True)
    public = []
    for path in (f"{module}.{name}" for module in MODULES for name in names(module)):
        try:
            public.append(target_of(before, path).path)
        except KeyError:
            continue  # It is new.
    return [
        each.explain(griffe.ExplanationStyle.ONE_LINE)
        for each in griffe.find_breaking_changes(before, package)
        if any(f"{each.obj.canonical_path}.".startswith(f"{path}.") for path in public)
    ]


def check(package: griffe.Object | griffe.Alias, tag: str, changelog: str) -> list[str]:
    """Return the faults."""
    faults = []
    now, before = listed(package), LIST.read_text()
    if now != before:
        faults.append("list of the public API stale: `make api-update` writes it; review what it changes")
        faults += difflib.unified_diff(before.splitlines(), now.splitlines(), "listed", "now", lineterm="", n=0)
    if tag and (broken := breaks(package, tag)) and not BREAKING.search(changelog):
        faults.append(f"breaks since {tag} unannounced: the changelog needs `### Breaking` below `## Unreleased`")
        faults += broken
    return faults


def main(arguments: list[str]) -> int:
    """Check or write the list."""
    package = griffe.load("tidegate", search_paths=[ROOT / "src"], resolve_aliases=True)
    if arguments == ["write"]:
        LIST.write_text(listed(package))
        return 0
    tag = last_tag()
    faults = check(package, tag, (ROOT / "CHANGELOG.md").read_text())
    print("\n".join(faults) or f"public API as listed: {len(LIST.read_text().splitlines())} entries")
    print(f"compared with {tag}" if tag else "no release to compare with yet: the list alone was checked")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
