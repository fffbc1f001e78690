"""Programs of Node under `tidegate run`: the SDKs, promptfoo at its defaults, and curl; 120 calls a minute, scaled."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import RUN, environ
from tidegate.testing import Limit, Scenario, SimulatorProcess, Truth

pytestmark = pytest.mark.real

ENVIRONMENT = Path(__file__).parents[2] / ".venv" / "node"
CALLS = 60
LIMIT = Limit(limit=20, window=1.0)
"""The pace of 120 calls a minute, ten times as fast."""

FEW = 2
"""Refusals that the provider may have given, of which none reaches the program."""

PATIENCE = 300.0
BASE_URLS = {"openai": "OPENAI_BASE_URL", "anthropic": "ANTHROPIC_BASE_URL", "gemini": "GOOGLE_GEMINI_BASE_URL"}
QUIET = (
    "PROMPTFOO_DISABLE_TELEMETRY",
    "PROMPTFOO_DISABLE_UPDATE",
    "PROMPTFOO_DISABLE_REMOTE_GENERATION",
    "PROMPTFOO_DISABLE_SHARING",
)
"""Variables that keep promptfoo on this machine."""


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    assert (ENVIRONMENT / "ready").exists(), "packages of Node not found: `make test-real` installs them"


def governed(folder: Path, *command: str, **variables: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """The end of a command under `tidegate run`, and the report of that run."""
    report = folder / "report.json"
    done = subprocess.run(
        [*RUN, "--report", str(report), *command],
        env=environ(HOME=str(folder), **variables),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    return done, json.loads(report.read_text())


def told(what: str, truth: Truth, report: dict[str, Any]) -> None:
    """Print the figures of a run (`pytest -s`)."""
    total, quota = truth.total, report["keys"][0]["quotas"]
    share = f"{quota[0]['share_used']:.0%} of the limit" if quota and quota[0]["share_used"] else "no share"
    print(f"\n{what}: {total.answered} answered, refused {total.refused}, {share}, {report['seconds']} s")  # noqa: T201


@pytest.mark.parametrize("sdk", ["openai", "openai-stream", "anthropic", "gemini"])
def test_every_call_of_a_node_sdk_is_answered(sdk: str, tmp_path: Path) -> None:
    # Node looks for packages beside the script.
    script = ENVIRONMENT / "ask.mjs"
    shutil.copy(Path(__file__).with_name("ask.mjs"), script)
    maker = sdk.partition("-")[0]
    with SimulatorProcess(Scenario(limiters=(LIMIT,))) as provider:
        url = provider.openai_url if maker == "openai" else provider.url
        done, report = governed(tmp_path, "node", str(script), sdk, str(CALLS), **{BASE_URLS[maker]: url})
        truth = provider.truth()
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["answered"], said["errors"]) == (CALLS, [])
    assert (report["calls"], report["answered"], report["given_up"]) == (CALLS, CALLS, 0)
    if sdk != "gemini":
        # Gemini announces no limit: it is learned by refusals.
        assert sum(truth.total.refused.values()) <= FEW
    told(f"node {sdk}", truth, report)


def test_every_row_of_promptfoo_is_answered(tmp_path: Path) -> None:
    config = {
        "prompts": ["{{prompt}}"],
        "providers": ["openai:chat:gpt-4o-mini"],
        "tests": [{"vars": {"prompt": f"question {number}"}} for number in range(CALLS)],
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    command = [str(ENVIRONMENT / "node_modules" / ".bin" / "promptfoo"), "eval", "--config", "config.json",
               "--no-cache", "--no-table", "--no-progress-bar", "--no-write", "--output", "out.json"]  # fmt: skip
    quiet = dict.fromkeys(QUIET, "1") | {"PROMPTFOO_CONFIG_DIR": str(tmp_path), "OPENAI_API_KEY": "sk-promptfoo"}
    with SimulatorProcess(Scenario(limiters=(LIMIT,))) as provider:
        done, report = governed(tmp_path, *command, OPENAI_BASE_URL=provider.openai_url, **quiet)
        truth = provider.truth()
    results = json.loads((tmp_path / "out.json").read_text())["results"]
    assert results["stats"]["successes"] == CALLS, done.stdout + done.stderr
    assert results["stats"]["errors"] == 0
    assert (report["calls"], report["answered"]) == (CALLS, CALLS)
    assert sum(truth.total.refused.values()) <= FEW
    told("promptfoo", truth, report)


def test_every_call_of_curl_is_answered(tmp_path: Path) -> None:
    curl = shutil.which("curl")
    assert curl is not None, "curl not found: `make test-real` needs it"
    body = json.dumps({"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "hi"}]})
    script = tmp_path / "ask.sh"
    script.write_text(
        f"for number in $(seq {CALLS}); do {curl} --no-progress-meter --fail -o answer-$number.json -d '{body}' "
        '-H "content-type: application/json" -H "authorization: Bearer sk-curl" '
        '"$OPENAI_BASE_URL/chat/completions" & done; wait\n'
    )
    with SimulatorProcess(Scenario(limiters=(LIMIT,))) as provider:
        done, report = governed(tmp_path, "--gateway", "sh", str(script), OPENAI_BASE_URL=provider.openai_url)
        truth = provider.truth()
    assert len(list(tmp_path.glob("answer-*.json"))) == CALLS, done.stderr
    assert (report["calls"], report["answered"]) == (CALLS, CALLS)
    assert sum(truth.total.refused.values()) <= FEW
    told("curl", truth, report)
