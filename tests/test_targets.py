"""Every test that `make test` leaves out is run by another target of the Makefile."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
RUN = re.compile(r"-m pytest\b.*?-m real (.+)$", re.MULTILINE)


def test_every_file_of_real_tests_has_a_target() -> None:
    run = [ROOT / each for line in RUN.findall((ROOT / "Makefile").read_text()) for each in line.split()]
    assert run, "no target runs tests marked real: the pattern is out of date"
    mark = "pytest.mark." + "real"
    marked = [path for path in (ROOT / "tests").rglob("*.py") if mark in path.read_text("utf-8")]
    left_out = [path for path in marked if not any(path.is_relative_to(each) for each in run)]
    assert [str(path.relative_to(ROOT)) for path in left_out] == []
