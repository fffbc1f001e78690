"""A fresh start gets a name of its own, whoever asks for one at the same time, and deletes nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.storage.values import experiment
from tidegate.experiments.storage import Store

pytestmark = pytest.mark.anyio


def spec_of(name: str) -> dict[str, Any]:
    return {"name": name}


async def test_first_free_name_is_taken(store: Store) -> None:
    names = [(await store.experiments.create_fresh("capitals", spec_of, 2, "rows.jsonl")).name for _ in range(3)]
    assert names == ["capitals", "capitals-2", "capitals-3"]
    second = await store.experiments.find("capitals-2")
    assert second is not None
    assert (second.spec, second.repetitions, second.source, second.rows) == (
        {"name": "capitals-2"},
        2,
        "rows.jsonl",
        0,
    )
    await store.experiments.remove(second.id)
    assert (await store.experiments.create_fresh("capitals", spec_of, 1, "")).name == "capitals-2"


async def test_two_that_ask_at_once_get_different_names(store: Store, other: Store) -> None:
    await experiment(store)
    made = await asyncio.gather(
        *(each.experiments.create_fresh("capitals", spec_of, 1, "") for each in (store, other) * 4)
    )
    assert sorted(each.name for each in made) == [f"capitals-{number}" for number in range(2, 10)]
    assert len({each.id for each in made}) == len({each.dataset_id for each in made}) == 8
    assert all(each.spec == {"name": each.name} for each in made)
    kept = await store.experiments.find("capitals")
    assert kept is not None
    assert kept.rows == 3
