"""docs/telemetry.md: what it shows runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tidegate.testing import Scenario, SimulatorProcess

PAGE = Path(__file__).parents[2] / "docs" / "telemetry.md"


def test_the_program_on_the_page_prints_metrics_and_a_span_with_its_events() -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    with SimulatorProcess(Scenario()) as provider:
        env = {"OPENAI_BASE_URL": provider.openai_url, "OPENAI_API_KEY": "any", "PATH": ""}
        done = subprocess.run(
            [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False, timeout=300
        )
    assert (done.returncode, done.stderr) == (0, "")
    for said in ("a question", "tidegate.request.completed", "tidegate.attempt.duration", "tidegate.concurrency.limit"):
        assert f'"{said}"' in done.stdout
