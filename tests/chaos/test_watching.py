"""Subscribers: a slow one loses chunks and holds nobody up, a stop elsewhere is heard in time, and all streams end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.runners import now, registry, runner_of, seconds_of
from tests.chaos.virtual_time import in_virtual_time
from tests.runner.scene import rows
from tidegate.experiments import Chunk, Experiment, StateChanged, Subscription
from tidegate.experiments.engine.replica import HEARTBEAT_SECONDS
from tidegate.experiments.storage import RunResult, Status, Toggle

WORDS = 20
ROWS = 200


async def telling(row: Any) -> AsyncIterator[str]:
    for number in range(WORDS):
        await asyncio.sleep(0.1)
        yield f"{number} "


async def seen(stream: Subscription, pause: float) -> list[Any]:
    """All that a subscriber gets who takes so many seconds for each."""
    events = []
    async for event in stream:
        events.append(event)
        await asyncio.sleep(pause)
    return events


@in_virtual_time
async def test_a_slow_subscriber_loses_chunks_but_never_blocks_and_all_end_with_the_run(tmp_path: Path) -> None:
    async with runner_of(registry(), tmp_path) as runner:
        unwatched = await seconds_of(runner, Experiment("unwatched", rows(ROWS), telling))
        streams = [runner.subscribe("watched") for _ in range(3)]
        quick, slow = (asyncio.create_task(seen(*each)) for each in ((streams[0], 0.0), (streams[1], 3.0)))
        watched = await seconds_of(runner, Experiment("watched", rows(ROWS), telling))
        assert watched == pytest.approx(unwatched)
        everything, some, nothing = await quick, await slow, await seen(streams[2], 0.0)
    assert sum(isinstance(event, Chunk) for event in everything) == ROWS * WORDS
    assert streams[0].lost == 0
    for stream, events in ((streams[1], some), (streams[2], nothing)):
        assert stream.lost > 0
        assert len(events) + stream.lost == len(everything)
        assert events[-1] == everything[-1] == StateChanged(Status.COMPLETED)
    # What is no chunk is the last to be lost: the slow one has heard of every result.
    assert sum(isinstance(event, RunResult) for event in some) == ROWS


@in_virtual_time
async def test_a_stop_said_at_one_replica_stops_the_run_at_another_within_a_heartbeat(tmp_path: Path) -> None:
    begun: list[float] = []

    async def answer(row: Any) -> int:
        begun.append(now())
        await asyncio.sleep(0.5)
        return 1

    async with runner_of(registry(), tmp_path) as here, runner_of(registry(), tmp_path) as there:
        heartbeat = HEARTBEAT_SECONDS
        number = await here.start(Experiment("e", rows(10_000), answer))
        await asyncio.sleep(1.0)
        assert await there.stop(number) is Toggle.DONE
        stopped_at = now()
        summary = await here.wait(number)
    assert summary.status is Status.STOPPED
    assert stopped_at < max(begun) <= stopped_at + heartbeat
    # What was under way could finish, and was kept: nothing that was asked is lost.
    assert now() <= stopped_at + heartbeat + 1.0
    assert summary.answered == len(begun)
