"""The examples of docs/audit.md run as they stand there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

from tidegate.admission.audit import Attempt
from tidegate.testing import Limit, Scenario, SimulatorProcess

PAGE = (Path(__file__).parents[2] / "docs" / "audit.md").read_text()


def test_the_example_of_the_page_runs_and_writes_what_it_says(tmp_path: Path) -> None:
    example, *_ = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    with SimulatorProcess(Scenario(limiters=(Limit(limit=100, window=1.0),))) as provider:
        env = {"OPENAI_BASE_URL": provider.openai_url, "OPENAI_API_KEY": "sk-of-the-page", "PATH": ""}
        run = [sys.executable, "-c", example]
        done = subprocess.run(run, env=env, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("3 attempts, ")
    text = (tmp_path / "attempts.jsonl").read_text()
    assert [json.loads(line)["status"] for line in text.splitlines()] == ["success"] * 3
    assert "sk-of" not in text


def test_the_line_and_the_table_of_the_page_have_every_field() -> None:
    names = [each.name for each in fields(Attempt)]
    (line,) = re.findall(r"```json\n(.*?)```", PAGE, re.S)
    assert list(json.loads(line)) == names
    rows = re.findall(r"^\| (`.*?`) \|", PAGE, re.M)
    told = re.findall(r"`(\w+)`", " ".join(rows))
    assert set(names) <= set(told)
