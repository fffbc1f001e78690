"""Each line of docs/frameworks.md that gives a framework a wrapped client, run in that framework's environment."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from conformance.catalogue import FRAMEWORKS
from tidegate.testing import Scenario, SimulatorProcess

pytestmark = pytest.mark.real

PAGE = (Path(__file__).parents[2] / "docs" / "frameworks.md").read_text()
TABLE = PAGE.partition("<!-- wrapped clients -->\n")[2].partition("<!-- /wrapped clients -->")[0]
LINES = dict(re.findall(r"^\| ([^|]+) \| `(.+?)`", TABLE, re.MULTILINE))
LINES.pop("framework", None)

PATIENCE = 300.0
"""Seconds that one program may take on a loaded machine."""

PROGRAM = """
import asyncio
import tidegate
from openai import AsyncOpenAI
from tidegate.transports.governance import Installation
{imports}
{line}
async def main():
    {ask}
asyncio.run(main())
seen = tidegate.registry().snapshot()
assert Installation.binding is None
assert (seen.calls, [key.answered for key in seen.keys.values()]) == (1, [1]), seen
"""

USES = {
    "LangChain": (
        "langchain-openai",
        "from langchain_openai import ChatOpenAI",
        "await model.ainvoke('2')",
    ),
    "LlamaIndex": (
        "llama-index",
        "from llama_index.llms.openai import OpenAI",
        "await model.acomplete('2')",
    ),
    "Haystack": (
        "haystack",
        "from haystack.components.generators.chat import OpenAIChatGenerator\n"
        "from haystack.dataclasses import ChatMessage",
        "model.run([ChatMessage.from_user('2')])",
    ),
    "Pydantic AI": (
        "pydantic-evals",
        "from pydantic_ai import Agent\n"
        "from pydantic_ai.models.openai import OpenAIChatModel\n"
        "from pydantic_ai.providers.openai import OpenAIProvider",
        "await Agent(model).run('2')",
    ),
    "OpenAI Agents": (
        "openai-agents",
        "from agents import Agent, Runner, set_default_openai_client, set_tracing_disabled\nset_tracing_disabled(True)",
        "await Runner.run(Agent(name='a', model='gpt-5-mini'), '2')",
    ),
}
"""Row of the catalogue, imports and one call for each framework of the table."""


def test_every_line_of_the_page_is_tried() -> None:
    assert LINES.keys() == USES.keys()


@pytest.mark.parametrize("name", USES)
def test_the_line_governs_the_calls_of_the_client(name: str, tmp_path: Path) -> None:
    row, imports, ask = USES[name]
    environment = next(each for each in FRAMEWORKS if each.name == row).environment
    environment.make()
    with SimulatorProcess(Scenario()) as provider:
        variables = {"OPENAI_BASE_URL": provider.openai_url, "OPENAI_API_KEY": "k", "HOME": str(tmp_path)}
        done = subprocess.run(
            [str(environment.bin / "python"), "-c", PROGRAM.format(imports=imports, line=LINES[name], ask=ask)],
            env={**os.environ, "NO_PROXY": "127.0.0.1", "HAYSTACK_TELEMETRY_ENABLED": "False", **variables},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stderr
        assert provider.truth().total.answered == 1
