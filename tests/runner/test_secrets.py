"""No credential of a call leaves the process: not in the database, logs, events, exports, counts or states."""

from __future__ import annotations

import asyncio
import base64
import logging
from pathlib import Path
from typing import Any

import openai
import pytest

import tidegate
from tests.credentials import left_of
from tests.runner.scene import TOO_LONG, settings
from tests.transports.answering import Server
from tidegate.admission import hooks
from tidegate.admission.registry import RateLimitRegistry
from tidegate.experiments import Experiment, ExperimentRunner
from tidegate.experiments.commands.export import exported
from tidegate.launch.process_counters import ProcessCounters
from tidegate.telemetry.attributes import described

PLANTED = {
    "key": "harbourwall-of-stone",
    "prefixed": "sk-proj-HARBOUR0123456789",
    "path": "HARBOURPATHKEY77",
    "query": "harbour-query-of-words",
    "user": "harbour-user-password",
    "header": "harbour-header-of-words",
    "cookie": "harbour-cookie-of-words",
}
"""Most of them look like ordinary words: only their use tells what they are."""


def client_of(place: str, root: str) -> openai.AsyncOpenAI:
    """A client that sends one of the planted credentials in its place."""
    planted, given = PLANTED[place], {"base_url": root, "api_key": "harbourkey-of-the-client"}
    if place in ("key", "prefixed"):
        given["api_key"] = planted
    elif place == "path":
        given["base_url"] = f"{root}/{planted}/v1"
    elif place == "user":
        given["base_url"] = root.replace("//", f"//joe:{planted}@")
    headers = {
        "header": {"x-harbour": f"token {planted}", "x-custom-cred": planted},
        "cookie": {"cookie": f"a={planted}"},
    }
    query = {"access_token": planted} if place == "query" else None
    return openai.AsyncOpenAI(**given, default_headers=headers.get(place), default_query=query, max_retries=0)


class Run:
    """An experiment whose calls fail with a text that repeats all that was sent; `left` holds all that it leaves."""

    def __init__(self, folder: Path, place: str, status: int) -> None:
        self.left: dict[str, str] = {}
        lines: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: lines.append(handler.format(record))  # type: ignore[method-assign]
        logging.getLogger("tidegate").addHandler(handler)
        before, hooks.on_new_queue = hooks.on_new_queue, ProcessCounters(str(folder)).track
        registry = RateLimitRegistry(tidegate.Settings(max_wait=0.0, telemetry=False))
        events: list[str] = []
        registry.subscribe(lambda event: events.append(f"{event!r} {event.key}"))
        echo: list[str] = []

        def reply(number: int, path: str) -> Any:
            headers = server.headers[-1]
            echo.append(f"{path} {headers}")
            bare = [value.split()[-1] for value in headers.values()]
            bare += [base64.b64decode(each).decode() for each in bare if headers["authorization"] == f"Basic {each}"]
            said = f"Rejected {path}: {' and '.join(bare)} {headers!r}".replace('"', "'").replace("\\", "")
            facts = {"content-type": "application/json", "x-request-id": PLANTED[place][:20]}
            return status, facts, f'{{"error": {{"message": "{said}"}}}}'.encode()

        try:
            with Server(reply) as server:
                root = server.chat.removesuffix("/chat/completions").removesuffix("/v1") + "/v1"
                client = registry.wrap(client_of(place, root))
                database = str(folder / "runs.db")
                self.raised = asyncio.run(asyncio.wait_for(self._run(database, registry, client, events), TOO_LONG))
        finally:
            logging.getLogger("tidegate").removeHandler(handler)
            hooks.on_new_queue = before
        assert any(PLANTED[place] in each or place == "user" for each in echo)
        exported("e", database, "jsonl", folder / "out.jsonl")
        exported("e", database, "csv", folder / "out.csv")
        registry.export_state().write(folder / "state.json")
        self.left["logs"] = "\n".join(lines)
        self.left["events"] = "\n".join(events)
        snapshot = registry.snapshot()
        self.left["snapshot"] = f"{snapshot!r} {[str(key) for key in snapshot.keys]}"
        self.left["telemetry"] = repr([described(key) for key in snapshot.keys])
        self.keys = list(snapshot.keys)
        for path in folder.iterdir():
            self.left[path.name] = path.read_bytes().decode("latin-1")

    async def _run(self, url: str, registry: Any, client: Any, events: list[str]) -> str:
        async def task(row: Any) -> Any:
            answer = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
            return answer.choices[0].message.content

        async with ExperimentRunner(url, registry=registry, settings=settings(), recover=False) as runner:
            watched = runner.subscribe("e")
            rows = [{"n": number} for number in range(6)]
            summary = await runner.run(Experiment("e", rows, task, task_timeout=5.0))
            events += [repr(event) async for event in watched]
            self.left["summary"] = f"{summary!r} {summary.headline}"
            try:
                await task({})
            except openai.APIError as error:
                return str(error)
            finally:
                await client.close()
        return ""


@pytest.fixture(params=[401, 400])
def status(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.mark.parametrize("place", PLANTED)
def test_credential_of_a_failed_call_is_in_nothing_that_a_run_leaves(tmp_path: Path, place: str, status: int) -> None:
    run = Run(tmp_path, place, status)
    assert "Rejected" in run.left["runs.db"]
    assert "Rejected" in run.left["out.jsonl"]
    assert "Rejected" in run.raised, "what the SDK raises is the SDK's own, untouched"
    found = {what: left_of(text, PLANTED[place]) for what, text in run.left.items()}
    assert {what: part for what, part in found.items() if part} == {}


def test_two_keys_in_the_path_are_two_keys(tmp_path: Path) -> None:
    registry = RateLimitRegistry(tidegate.Settings())

    def ask(root: str) -> None:
        client = registry.wrap(openai.OpenAI(base_url=root, api_key="none", max_retries=0))
        with client, pytest.raises(openai.APIError):
            client.chat.completions.create(model="m", messages=[])

    with Server(lambda number, path: (400, {}, b"{}")) as server:
        root = server.chat.removesuffix("/v1/chat/completions")
        for planted in ("HARBOURPATHKEY77", "HARBOURPATHKEY78", "HARBOURPATHKEY77"):
            ask(f"{root}/{planted}/v1")
    addresses = [key.base_url for key in registry.snapshot().keys]
    assert len(set(addresses)) == 2
    assert not any("HARBOUR" in each for each in addresses)
