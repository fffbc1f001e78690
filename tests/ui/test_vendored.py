"""Files of other projects are those that their table names, with their licences."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import tidegate.server.app

VENDOR = Path(tidegate.server.app.__file__).parent / "static" / "vendor"


def test_files_have_their_hashes_and_licences() -> None:
    table = (VENDOR / "VENDORED.md").read_text()
    rows = re.findall(r"^\| (\S+\.(?:js|css)) \|.* ([0-9a-f]{64}) \|$", table, re.MULTILINE)
    assert {name: hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() for name, _ in rows} == dict(rows)
    licences = set(re.findall(r"\]\((LICENSE-\w+\.txt)\)", table))
    assert {path.name for path in VENDOR.iterdir()} == {"VENDORED.md", *(name for name, _ in rows), *licences}


def test_page_loads_nothing_from_elsewhere() -> None:
    for path in VENDOR.parent.glob("*.*"):
        found = re.findall(r"https?://[^\s\"'`)]+", path.read_text())
        assert [url for url in found if url != "http://www.w3.org/2000/svg"] == [], path.name
