"""Bodies of requests share a budget: what exceeds it waits in order of arrival, and a client that leaves frees it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from tidegate.server.gateway.proxy import BodyBudget, ClientGone, RequestBody


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def receive(*messages: dict[str, Any]) -> Any:
    left = list(messages)

    async def receive() -> dict[str, Any]:
        return left.pop(0)

    return receive


def piece(body: bytes, more: bool = True) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


def test_a_body_beyond_the_budget_waits_in_order() -> None:
    async def scene() -> None:
        budget, order = BodyBudget(10), list[str]()

        async def take(name: str, size: int) -> None:
            await budget.take(size)
            order.append(name)

        await take("a", 8)
        waiting = [asyncio.ensure_future(take(name, size)) for name, size in (("b", 5), ("c", 1), ("d", 1))]
        await settle()
        assert order == ["a"]
        waiting[0].cancel()
        await settle()
        assert order == ["a", "c", "d"]
        budget.give(10)
        await take("e", 10)
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*waiting)

    asyncio.run(scene())


def test_a_grant_that_meets_a_cancellation_is_given_back() -> None:
    async def scene() -> None:
        budget = BodyBudget(4)
        await budget.take(4)
        waiting = asyncio.ensure_future(budget.take(4))
        await settle()
        budget.give(4)
        waiting.cancel()
        await settle()
        assert waiting.cancelled()
        await asyncio.wait_for(budget.take(4), 60)

    asyncio.run(scene())


@pytest.mark.parametrize("length", [6, None])
def test_a_body_is_joined_and_released(length: int | None) -> None:
    async def scene() -> None:
        size = 1 << 26
        budget = BodyBudget(size)
        body = RequestBody(receive(piece(b"abc"), piece(b"def", more=False)), length, budget)
        await body.read()
        assert body.whole == b"abcdef"
        await budget.take(size - 6)
        body.release()
        body.release()
        await asyncio.wait_for(budget.take(6), 60)

    asyncio.run(scene())


def test_a_client_that_leaves_within_its_body_frees_it() -> None:
    async def scene() -> None:
        budget = BodyBudget(6)
        body = RequestBody(receive(piece(b"abc"), {"type": "http.disconnect"}), 6, budget)
        with pytest.raises(ClientGone):
            await body.read()
        body.release()
        await asyncio.wait_for(budget.take(6), 60)

    asyncio.run(scene())
