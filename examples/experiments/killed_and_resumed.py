"""The experiment of capitals.py against two simulated providers, killed half-way and resumed: nothing lost or doubled.

python examples/experiments/killed_and_resumed.py
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tidegate.testing import Distribution, Limit, Scenario, SimulatorProcess

HERE = Path(__file__).parent
TIDEGATE = [sys.executable, "-c", "from tidegate.cli.main import main; main()", "experiment"]

COUNTRIES = [json.loads(line) for line in (HERE / "countries.jsonl").read_text().splitlines()]
ANSWERS = {f"capital of {each['country']}?": each["capital"] for each in COUNTRIES}
JUDGEMENTS = {f"the capital of {each['country']}? Answer 1 or 0": "1" for each in COUNTRIES}
BUSY = Distribution.constant(0.1)


def kill_half_way(process, provider):
    """Ends the process as a crash would, once half of the questions are answered."""
    while provider.truth().total.answered < len(COUNTRIES) * 3 // 2:
        assert process.poll() is None, "it ended before"
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()


def main():
    pupils = Scenario(dialect="openai", answers=ANSWERS, limiters=(Limit(limit=20, window=0.5),), latency=BUSY)
    teachers = Scenario(dialect="anthropic", answers=JUDGEMENTS, limiters=(Limit(limit=1800, burst=10),), latency=BUSY)
    with (
        SimulatorProcess(pupils) as openai,
        SimulatorProcess(teachers) as anthropic,
        tempfile.TemporaryDirectory() as folder,
    ):
        env = {
            **os.environ,
            "OPENAI_BASE_URL": openai.openai_url,
            "OPENAI_API_KEY": "any",
            "ANTHROPIC_BASE_URL": anthropic.url,
            "ANTHROPIC_API_KEY": "any",
            "TIDEGATE_DB": str(Path(folder) / "capitals.db"),
        }
        first = subprocess.Popen([*TIDEGATE, "run", str(HERE / "capitals.py")], env=env)
        kill_half_way(first, openai)
        print("Killed, and resumed by another process:")
        subprocess.run([*TIDEGATE, "run", "capitals"], env=env, check=True)
        print(f"{openai.truth().total.answered} answers for {len(COUNTRIES) * 3} questions")


if __name__ == "__main__":
    main()
