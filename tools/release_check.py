"""Check of the distributions before a release: same twice, right files, licences, and a demo from the wheel.

Run `make release-check`. It publishes nothing. `--out FOLDER` keeps the distributions, and `--tag v1.2.3` fails where
the version is another one. Fields that only the owner can fill in are listed, and fail nothing.
Other systems than this one, and the publication itself, are not tested here.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path

from tools.docs_site import links
from tools.docs_site.published import published

ROOT = Path(__file__).parents[1]

SOURCE_DATE = "1767225600"
"""Unix seconds written as the time of each packed file, 2026-01-01; any constant makes two builds equal."""

PATIENCE = 600
"""Seconds that one command may take; a higher value waits longer for a slow index of packages."""

MUST_HOLD = ("tidegate/py.typed", "tidegate/server/static/index.html", "tidegate/docs/settings.md")
"""Files that the wheel must hold beside the modules."""

SOURCE_MUST_HOLD = ("LICENSE", "README.md", "SECURITY.md", "CHANGELOG.md", "pyproject.toml", "src/tidegate/py.typed")
"""Files that the sdist must hold below its top folder."""


def wheel_faults(names: list[str], source: list[str]) -> list[str]:
    """Return the faults of a wheel's list of files, given the files of `src` relative to it."""
    faults = [f"{name} missing from the wheel" for name in sorted({*MUST_HOLD, *source} - set(names))]
    if not any(re.fullmatch(r"tidegate-[^/]+\.dist-info/licenses/LICENSE", name) for name in names):
        faults.append("LICENSE missing from the wheel")
    for name in names:
        own = name in source or name.startswith("tidegate/docs/")
        if not own and not re.match(r"tidegate-[^/]+\.dist-info/", name):
            faults.append(f"{name} in the wheel: no file of src or docs")
    return faults


def licence_faults(wheel: Path) -> list[str]:
    """Return the faults of the licence texts in a wheel: each is the file of the source, and none is empty."""
    faults = []
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if "licen" not in name.rpartition("/")[2].lower():
                continue
            inside = archive.read(name)
            below = name.partition("/licenses/")[2] if ".dist-info/" in name else f"src/{name}"
            source = ROOT / below
            if not inside.strip():
                faults.append(f"{name} in the wheel empty: a licence has a text")
            elif not source.is_file() or source.read_bytes() != inside:
                faults.append(f"{name} in the wheel differs from {below}")
    return faults


def tag_faults(tag: str, name: str) -> list[str]:
    """Return the fault of a wheel whose version is not that of the tag; an empty tag fits all."""
    version = name.split("-")[1]
    return [f"version {version} is not that of tag {tag}"] if tag and tag != f"v{version}" else []


def vendored_faults(names: list[str]) -> list[str]:
    """Return the faults of vendored files: a script without a licence in its folder, a licence not in the metadata."""
    vendored = [name for name in names if "/vendor/" in name]
    licensed = {name.rpartition("/")[0] for name in vendored if "licen" in name.rpartition("/")[2].lower()}
    code = [name for name in vendored if name.endswith((".js", ".mjs", ".css"))]
    faults = [
        f"{name} unlicensed: its folder has no licence" for name in code if name.rpartition("/")[0] not in licensed
    ]
    licences = [name for name in vendored if "licen" in name.rpartition("/")[2].lower() and ".dist-info/" not in name]
    unnamed = [name for name in licences if not any(each.endswith(f".dist-info/licenses/src/{name}") for each in names)]
    return faults + [f"{name} not in the metadata: `license-files` of pyproject.toml lacks it" for name in unnamed]


def sdist_faults(names: list[str]) -> list[str]:
    """Return the files that an sdist lacks."""
    below = {name.partition("/")[2] for name in names}
    return [f"{name} missing from the sdist" for name in SOURCE_MUST_HOLD if name not in below]


def owner_fields(project: dict[str, object]) -> list[str]:
    """Return the fields of `[project]` that the owner has still to fill in."""
    urls = project.get("urls")
    known = {str(name).lower() for name in urls} if isinstance(urls, dict) else set()
    fields = [f"project.urls.{name}" for name in ("Homepage", "Repository", "Issues") if name.lower() not in known]
    authors = project.get("authors")
    if not isinstance(authors, list) or not any("email" in author for author in authors):
        fields.append("project.authors (a name with an address)")
    return fields


def description_faults(metadata: str) -> list[str]:
    """Return the links of the description in a wheel's METADATA that lead nowhere on a package index."""
    page = metadata.partition("\n\n")[2]
    return [f"{target} in the description: no address" for target in links.targets(page) if links.is_local(target)]


def main() -> int:
    """Run all checks; return 1 at the first that fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder that gets the distributions after all checks")
    parser.add_argument("--tag", default="", help="tag of the release, whose version they must have")
    arguments = parser.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    with tempfile.TemporaryDirectory() as folder:
        first, second = Path(folder, "first"), Path(folder, "second")
        for out in (first, second):
            _run(sys.executable, "-m", "build", "--outdir", str(out), str(ROOT))
        faults = _difference(first, second)
        wheel, sdist = next(first.glob("*.whl")), next(first.glob("*.tar.gz"))
        names = zipfile.ZipFile(wheel).namelist()
        listed = _run("git", "ls-files", "src/tidegate").split()
        faults += wheel_faults(names, [name.removeprefix("src/") for name in listed])
        faults += vendored_faults(names) + licence_faults(wheel) + tag_faults(arguments.tag, wheel.name)
        metadata = next(name for name in names if name.endswith(".dist-info/METADATA"))
        faults += description_faults(zipfile.ZipFile(wheel).read(metadata).decode())
        with tarfile.open(sdist) as archive:
            faults += sdist_faults(archive.getnames())
        if faults:
            print("\n".join(f"release check failed: {fault}" for fault in faults))
            return 1
        print(f"files right: {len(names)} in {wheel.name}; licences there")
        _run(sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sdist))
        print("metadata right: twine check --strict passed")
        # W002 forbids equal files: a vendored licence is in the metadata and beside its file.
        print(_run(_tool("check-wheel-contents"), "--ignore", "W002", str(wheel)).strip())
        workflows = str(ROOT / ".github" / "workflows")
        _run(_tool("zizmor"), "--offline", "--quiet", workflows)
        print("workflows right: zizmor found nothing")
        _demo(Path(folder, "empty"), wheel)
        if arguments.out is not None:
            arguments.out.mkdir(parents=True, exist_ok=True)
            for each in (wheel, sdist):
                shutil.copy(each, arguments.out)
    for field in owner_fields(project):
        print(f"field missing: {field}; the owner fills it in before a release")
    if "The address for other reports is not stated yet" in (ROOT / "SECURITY.md").read_text():
        print("field missing: SECURITY.md, address for reports; the owner fills it in before a release")
    readme, urls = (ROOT / "README.md").read_text("utf-8"), project.get("urls", {})
    lost = len(links.targets(readme)) - len(links.targets(published(readme, urls)))
    if lost:
        print(f"README links shown as text on a package index: {lost}; project.urls.Repository makes them links")
    print("not tested here: macOS, Windows, publication")
    return 0


def _difference(first: Path, second: Path) -> list[str]:
    faults = []
    for path in sorted(first.iterdir()):
        digests = {hashlib.sha256(folder.joinpath(path.name).read_bytes()).hexdigest() for folder in (first, second)}
        if len(digests) > 1:
            faults.append(f"{path.name} differs between two builds")
        else:
            print(f"built twice, equal: {path.name} sha256 {digests.pop()}")
    return faults


def _demo(folder: Path, wheel: Path) -> None:
    """Install the wheel into an empty environment, and run the version, the check of requirements and the demo."""
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    _run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"{wheel}[demo]", cwd=folder)
    _run(python, "-m", "pip", "check", cwd=folder)
    print(_run(str(folder / "bin" / "tidegate"), "--version", cwd=folder).strip())
    print(_run(str(folder / "bin" / "tidegate"), "demo", cwd=folder).strip())


def _tool(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def _run(*command: str, cwd: Path = ROOT) -> str:
    environ = {**os.environ, "SOURCE_DATE_EPOCH": SOURCE_DATE}
    environ.pop("PYTHONPATH", None)
    done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, check=False, timeout=PATIENCE)
    if done.returncode:
        sys.exit(f"release check failed: {' '.join(command)} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
