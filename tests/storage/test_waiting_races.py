"""Two acts on one experiment, the second of which waits while the first one is made: what it is told, and who has it.

The first is a transaction that is held open until the second waits for it, and then committed or given up. What comes
second so may be told of what it had not seen when it began.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import pytest

from tests.storage.places import CONFIGS, OpenTransaction, Place
from tests.storage.values import STALE, claimed, experiment, rows, run
from tidegate.errors import ClaimLost, StoreError
from tidegate.experiments.storage import Claim, Status, Store, Toggle

pytestmark = pytest.mark.anyio


@dataclass
class Scene:
    """An experiment that replica a has claimed, in a database that two replicas' stores reach."""

    place: Place
    store: Store
    other: Store
    claim: Claim

    @property
    def id(self) -> int:
        return self.claim.experiment_id

    def make(self, *statements: str) -> AbstractContextManager[OpenTransaction]:
        """Acts that are made and not committed yet."""
        return self.place.begun(*statements)

    async def second(self, act: Awaitable[object], held: OpenTransaction, commit: bool = True) -> object:
        """What an act comes to that waits for the first one."""
        waiting = asyncio.ensure_future(act)
        await self.place.waiting(1)
        assert not waiting.done()
        (held.commit if commit else held.rollback)()
        return await waiting

    async def state(self) -> tuple[Status, str | None, int]:
        found = await self.store.experiments.find(self.id)
        assert found is not None
        return found.status, found.claimed_by, found.epoch


@pytest.fixture
async def scene(place: Place, store: Store, other: Store) -> Scene:
    """An experiment of three rows."""
    return Scene(place, store, other, await claimed(store, (await experiment(store)).id))


async def test_a_stop_that_waits_while_the_claim_is_renewed_is_done(scene: Scene) -> None:
    with scene.make(scene.place.renewed(scene.id)) as renewal:
        assert await scene.second(scene.other.claims.stop(scene.id), renewal) is Toggle.DONE
    assert await scene.state() == (Status.STOPPED, None, 1)


async def test_a_stop_that_waits_while_another_one_is_made_finds_it_so(scene: Scene) -> None:
    with scene.make(scene.place.freed(scene.id, "STOPPED")) as stop:
        assert await scene.second(scene.other.claims.stop(scene.id), stop) is Toggle.ALREADY


async def test_a_stop_that_waits_while_another_one_is_given_up_is_done(scene: Scene) -> None:
    with scene.make(scene.place.freed(scene.id, "STOPPED")) as stop:
        assert await scene.second(scene.other.claims.stop(scene.id), stop, commit=False) is Toggle.DONE


async def test_a_stop_that_waits_while_the_run_ends_changes_nothing(scene: Scene) -> None:
    with scene.make(scene.place.freed(scene.id, "COMPLETED")) as end:
        assert await scene.second(scene.other.claims.stop(scene.id), end) is Toggle.ALREADY
    assert await scene.state() == (Status.COMPLETED, None, 1)


async def test_an_end_that_waits_while_a_stop_is_made_does_not_undo_it(scene: Scene) -> None:
    with scene.make(scene.place.freed(scene.id, "STOPPED")) as stop:
        assert await scene.second(scene.store.claims.release(scene.claim, Status.COMPLETED), stop) is False
    assert await scene.state() == (Status.STOPPED, None, 1)


async def test_an_end_that_waits_while_somebody_else_claims_does_not_end_his_run(scene: Scene) -> None:
    with scene.make(scene.place.claimed(scene.id, "b")) as taking:
        assert await scene.second(scene.store.claims.release(scene.claim, Status.ERROR, "because"), taking) is False
    assert await scene.state() == (Status.RUNNING, "b", 2)


async def test_a_stop_that_waits_while_an_orphan_is_taken_stops_its_new_owner(scene: Scene) -> None:
    scene.place.age(scene.id, STALE + 1)
    with scene.make(scene.place.claimed(scene.id, "b")) as taking:
        assert await scene.second(scene.other.claims.stop(scene.id), taking) is Toggle.DONE
    assert await scene.store.claims.renew("b", {scene.id: 2}) == frozenset()
    assert await scene.state() == (Status.STOPPED, None, 2)


async def test_a_search_that_waits_while_a_stop_is_made_takes_nothing(scene: Scene) -> None:
    scene.place.age(scene.id, STALE + 1)
    with scene.make(scene.place.freed(scene.id, "STOPPED")) as stop:
        assert await scene.second(scene.other.claims.claim(scene.id, "b", STALE), stop) is None
    assert await scene.state() == (Status.STOPPED, None, 1)


async def test_a_search_that_waits_while_its_owner_renews_takes_nothing(scene: Scene) -> None:
    scene.place.age(scene.id, STALE + 1)
    assert await scene.other.claims.orphans(STALE, 10) == [scene.id]
    with scene.make(scene.place.renewed(scene.id)) as renewal:
        assert await scene.second(scene.other.claims.claim(scene.id, "b", STALE), renewal) is None
    assert await scene.state() == (Status.RUNNING, "a", 1)


async def test_a_renewal_that_waits_while_somebody_else_claims_says_that_it_is_lost(scene: Scene) -> None:
    scene.place.age(scene.id, STALE + 1)
    with scene.make(scene.place.claimed(scene.id, "b")) as taking:
        assert await scene.second(scene.store.claims.renew("a", {scene.id: 1}), taking) == frozenset()
    assert await scene.state() == (Status.RUNNING, "b", 2)


async def test_a_renewal_that_waits_while_a_stop_is_made_does_not_undo_it(scene: Scene) -> None:
    with scene.make(scene.place.freed(scene.id, "STOPPED")) as stop:
        assert await scene.second(scene.store.claims.renew("a", {scene.id: 1}), stop) == frozenset()
    assert await scene.state() == (Status.STOPPED, None, 1)


async def test_a_renewal_that_waits_while_its_claim_becomes_stale_keeps_it(scene: Scene) -> None:
    scene.place.age(scene.id, STALE + 1)
    with scene.place.locked() as held:
        assert await scene.second(scene.store.claims.renew("a", {scene.id: 1}), held, commit=False) == {scene.id}
    assert await scene.other.claims.claim(scene.id, "b", STALE) is None


async def test_of_searches_that_wait_together_one_takes_the_orphan(scene: Scene) -> None:
    scene.place.age(scene.id, STALE + 1)
    with scene.place.locked() as held:
        stores = {"b": scene.store, "c": scene.other}
        searches = [asyncio.ensure_future(each.claims.claim(scene.id, by, STALE)) for by, each in stores.items()]
        await scene.place.waiting(2)
        held.rollback()
        takers = [claim for claim in await asyncio.gather(*searches) if claim is not None]
    assert [taker.epoch for taker in takers] == [2]


async def test_a_renewal_that_waits_while_the_same_replica_claims_anew_says_that_the_old_claim_is_lost(
    scene: Scene,
) -> None:
    with scene.make(scene.place.claimed(scene.id, "a")) as taking:
        assert await scene.second(scene.store.claims.renew("a", {scene.id: 1}), taking) == frozenset()
    assert await scene.store.claims.renew("a", {scene.id: 2}) == {scene.id}


@pytest.mark.parametrize("replica", ["a", "b"])
async def test_a_resume_that_waits_while_another_one_claims_finds_it_so(scene: Scene, replica: str) -> None:
    await scene.store.claims.release(scene.claim, Status.ERROR, "because")
    with scene.make(scene.place.claimed(scene.id, "a")) as taking:
        assert await scene.second(scene.other.claims.resume(scene.id, replica), taking) is Toggle.ALREADY
    assert await scene.state() == (Status.RUNNING, "a", 2)


async def test_a_resume_that_waits_while_the_search_takes_an_orphan_finds_it_so(scene: Scene) -> None:
    scene.place.age(scene.id, STALE + 1)
    with scene.make(scene.place.claimed(scene.id, "b")) as taking:
        resuming = asyncio.ensure_future(scene.other.claims.resume(scene.id, "c"))
        if scene.place.on_sqlite:
            await scene.place.waiting(1)
        taking.commit()
        # PostgreSQL need not wait: what ran before runs now.
        assert await resuming is Toggle.ALREADY
    assert await scene.state() == (Status.RUNNING, "b", 2)


async def test_a_search_that_waits_while_a_user_resumes_takes_nothing(scene: Scene) -> None:
    await scene.store.claims.stop(scene.id)
    with scene.make(scene.place.claimed(scene.id, "c")) as taking:
        searching = asyncio.ensure_future(scene.other.claims.claim(scene.id, "b", STALE))
        if scene.place.on_sqlite:
            await scene.place.waiting(1)
        taking.commit()
        assert await searching is None
    assert await scene.state() == (Status.RUNNING, "c", 2)


async def test_a_spec_that_waits_to_be_amended_while_somebody_else_claims_is_not(scene: Scene) -> None:
    amending = scene.store.experiments.amend(scene.claim, {"task": "other.py:answer"}, 5)
    with scene.make(scene.place.claimed(scene.id, "b")) as taking, pytest.raises(ClaimLost):
        await scene.second(amending, taking)
    found = await scene.store.experiments.find(scene.id)
    assert found is not None
    assert found.repetitions == 1


async def test_a_spec_is_not_amended_after_a_stop(scene: Scene) -> None:
    await scene.other.claims.stop(scene.id)
    with pytest.raises(ClaimLost):
        await scene.store.experiments.amend(scene.claim, {"task": "other.py:answer"}, 5)


async def test_a_renewal_after_the_spec_was_amended_keeps_the_claim_and_the_other_way_round(scene: Scene) -> None:
    mine = {scene.id: scene.claim.epoch}
    await scene.store.experiments.amend(scene.claim, {"task": "other.py:answer"}, 5)
    assert await scene.other.claims.renew("a", mine) == set(mine)
    await scene.store.experiments.amend(scene.claim, {"task": "eval.py:answer"}, 1)
    assert await scene.other.claims.renew("a", mine) == set(mine)


async def test_who_has_waited_renews_from_when_he_is_let_in_and_not_from_when_he_asked(scene: Scene) -> None:
    with scene.make(scene.place.renewed(scene.id)) as renewal:
        renewing = asyncio.create_task(scene.other.claims.renew("a", {scene.id: 1}))
        await scene.place.waiting(1)
        asked = scene.place.now()
        scene.place.later_than(asked)
        renewal.commit()
        assert await renewing == {scene.id}
    (renewed,) = scene.place.sql(f"SELECT claimed_at FROM {CONFIGS} WHERE experiment_id = {scene.id}")
    assert renewed[0] > asked


Act = Callable[[Scene], Awaitable[object]]

ACTS: dict[str, Act] = {
    "claim": lambda scene: scene.store.claims.claim(scene.id, "a", STALE),
    "renew": lambda scene: scene.store.claims.renew("a", {scene.id: 1}),
    "release": lambda scene: scene.store.claims.release(scene.claim, Status.COMPLETED),
    "stop": lambda scene: scene.store.claims.stop(scene.id),
    "amend": lambda scene: scene.store.experiments.amend(scene.claim, {"task": "other.py:answer"}, 5),
    "write": lambda scene: scene.store.write([run(scene.claim, 0)]),
}


@pytest.mark.parametrize("name", list(ACTS))
async def test_an_act_that_the_database_does_not_take_changes_nothing_and_can_be_made_again(
    scene: Scene, name: str
) -> None:
    before = await scene.store.experiments.find(scene.id)
    scene.place.sql(f"ALTER TABLE {CONFIGS} RENAME TO elsewhere")
    with pytest.raises(StoreError):
        await ACTS[name](scene)
    scene.place.sql(f"ALTER TABLE elsewhere RENAME TO {CONFIGS}")
    after = await scene.store.experiments.find(scene.id)
    assert before is not None
    assert after is not None
    assert (after.status, after.claimed_by, after.epoch, after.spec) == (
        before.status,
        before.claimed_by,
        before.epoch,
        before.spec,
    )
    await ACTS[name](scene)


@pytest.mark.parametrize("name", list(ACTS))
async def test_an_act_whose_answer_was_lost_is_made_again_without_harm(scene: Scene, name: str) -> None:
    # The process has died, or the connection was lost, after the commit: whoever made it makes it again.
    await ACTS[name](scene)
    told = await ACTS[name](scene)
    expected: dict[str, object] = {
        "claim": Claim(scene.id, "a", epoch=3),
        "renew": {scene.id},
        "release": False,
        "stop": Toggle.ALREADY,
        "advance": None,
        "amend": None,
        "write": frozenset(),
    }
    assert told == expected[name]


async def test_a_dataset_whose_answer_was_lost_is_stored_again_without_harm(scene: Scene) -> None:
    made = await scene.store.experiments.find(scene.id)
    assert made is not None
    for _ in range(2):
        await scene.store.datasets.add_rows(made.dataset_id, rows(5, start=3))
    found = await scene.store.experiments.find(scene.id)
    assert found is not None
    assert found.rows == 8
