"""The examples of docs/audit.md run as they stand there."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

from tidegate.admission.audit import Attempt

PAGE = (Path(__file__).parents[2] / "docs" / "audit.md").read_text()


def test_the_line_and_the_table_of_the_page_have_every_field() -> None:
    names = [each.name for each in fields(Attempt)]
    (line,) = re.findall(r"```json\n(.*?)```", PAGE, re.S)
    assert list(json.loads(line)) == names
    rows = re.findall(r"^\| (`.*?`) \|", PAGE, re.M)
    told = re.findall(r"`(\w+)`", " ".join(rows))
    assert set(names) <= set(told)
