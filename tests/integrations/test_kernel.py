"""The extension in a real kernel: one line a cell, updated below the cell that made the calls."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tidegate.testing import Distribution, Limit, Scenario, Simulator

pytestmark = pytest.mark.real

PATIENCE = 300.0
"""Seconds that a kernel may take for one message on a loaded machine."""

CLIENTS = """
import asyncio, os
from concurrent.futures import ThreadPoolExecutor
import openai
url = os.environ["NOTEBOOK_URL"]
client = openai.OpenAI(base_url=url, api_key="k")
asynchronous = openai.AsyncOpenAI(base_url=url, api_key="k")
def asked(n): return {"model": "m", "messages": [{"role": "user", "content": str(n)}]}
def ask(n): return client.chat.completions.create(**asked(n))
"""

MANY = """
with ThreadPoolExecutor(20) as threads:
    answers = list(threads.map(ask, range(60)))
"""

AWAITED = "answers = await asyncio.gather(*(asynchronous.chat.completions.create(**asked(n)) for n in range(12)))"


class Cell:
    """Outputs of one cell, in order."""

    def __init__(self, messages: list[dict[str, Any]]) -> None:
        self.messages = messages

    def texts(self, kind: str) -> list[str]:
        return [each["content"]["data"]["text/plain"] for each in self.messages if each["msg_type"] == kind]

    @property
    def displayed(self) -> list[str]:
        """Every text of the line, the last one included; its updates must belong to one display."""
        shown = [each for each in self.messages if each["msg_type"] in ("display_data", "update_display_data")]
        assert len({each["content"]["transient"]["display_id"] for each in shown}) <= 1
        assert [each["msg_type"] for each in shown[:1]] == ["display_data"] * bool(shown)
        assert len(self.texts("display_data")) <= 1
        assert all("text/html" in each["content"]["data"] for each in shown)
        return [each["content"]["data"]["text/plain"] for each in shown]

    @property
    def errors(self) -> list[str]:
        written = [each["content"]["text"] for each in self.messages if each["msg_type"] == "stream"]
        return [each["content"]["ename"] for each in self.messages if each["msg_type"] == "error"] + written


class Kernel:
    """A kernel of a notebook, run cell by cell."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def run(self, code: str) -> Cell:
        sent = self._client.execute(code)
        messages = []
        while True:
            message = self._client.get_iopub_msg(timeout=PATIENCE)
            assert message["parent_header"].get("msg_id") == sent, message
            if message["content"].get("execution_state") == "idle":
                return Cell(messages)
            messages.append(message)


@pytest.fixture
def provider() -> Iterator[Simulator]:
    limit = Limit(limit=600, window=60, burst=20)
    with Simulator(Scenario(limiters=(limit,), latency=Distribution.constant(0.05))) as started:
        yield started


@pytest.fixture
def kernel(provider: Simulator) -> Iterator[Kernel]:
    start = importlib.import_module("jupyter_client.manager").start_new_kernel
    manager, client = start(kernel_name="python3", env={**os.environ, "NOTEBOOK_URL": provider.openai_url})
    try:
        started = Kernel(client)
        assert started.run(CLIENTS).errors == []
        assert started.run("%load_ext tidegate").messages[-1]["msg_type"] == "execute_input"
        yield started
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_cells_show_their_own_calls(kernel: Kernel, provider: Simulator) -> None:
    many = kernel.run(MANY)
    assert many.errors == []
    *running, final = many.displayed
    refused = provider.truth().total.refusals
    retried = f"{refused} refusal{'' if refused == 1 else 's'} retried"
    assert final.startswith(f"tidegate  60 calls, 60 answered, 0 given up, {retried}, in ")
    assert "of 600 requests/min left · compatible m" in final
    assert any(re.fullmatch(r"tidegate  \d+ of \d+ calls ended · .* waiting for .*", each) for each in running)

    failed = kernel.run("ask(1), ask(2), ask(3)\n1 / 0")
    assert failed.errors == ["ZeroDivisionError"]
    assert failed.displayed[-1].startswith("tidegate  3 calls, 3 answered, 0 given up, 0 refusals retried")

    awaited = kernel.run(AWAITED)
    assert awaited.errors == []
    assert awaited.displayed[-1].startswith("tidegate  12 calls, 12 answered")

    assert kernel.run("1 + 1").displayed == []
    assert kernel.run("  ").displayed == []
    (board,) = kernel.run("%tidegate").texts("execute_result")
    assert f"75 calls, 75 answered, 0 given up, {retried}" in board


def test_lines_and_calls_can_be_left_alone_again(kernel: Kernel, provider: Simulator) -> None:
    assert "usage: %tidegate" in kernel.run("%tidegate what").texts("execute_result")[0]
    nested = kernel.run("get_ipython().run_cell('ask(1);')\nask(2);")
    assert [each.partition(",")[0] for each in nested.displayed[-1:]] == ["tidegate  2 calls"]

    kernel.run("%tidegate off")
    assert kernel.run("ask(3);").displayed == []
    kernel.run("%tidegate on")
    assert kernel.run("ask(4);").displayed[-1].startswith("tidegate  1 call, 1 answered")

    assert kernel.run("%reload_ext tidegate").errors == []
    assert kernel.run("ask(5);").displayed[-1].startswith("tidegate  1 call, 1 answered")

    assert kernel.run("%unload_ext tidegate").errors == []
    gone = kernel.run("ask(6);\nimport tidegate; print(tidegate.registry().snapshot().calls)")
    assert gone.displayed == []
    assert gone.errors == ["5\n"]
    assert provider.truth().total.answered == 6
    assert "UsageError" in "".join(kernel.run("%tidegate").errors)
