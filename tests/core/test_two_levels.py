"""A model's quotas and those that its account shares, as one set: which level is charged, read, held and saved."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.core.values import KEY, answer, bucket, refusal
from tidegate.core import events
from tidegate.core.admission_controller import AccountController, ModelController
from tidegate.core.limiter_state import Permit
from tidegate.core.quota import SharedNames
from tidegate.core.saved_state import SavedQuota, seed_quotas
from tidegate.core.snapshot import account_snapshot, key_snapshot
from tidegate.core.values import Cost, Outcome, QuotaReading
from tidegate.settings import Settings

pytestmark = pytest.mark.constants(START_CONCURRENCY=100)

ACCOUNT = KEY._replace(scope="", family="shared")
OTHER = KEY._replace(scope="other")


class NoHeads:
    """Nobody waits."""

    def opens_at(self, model: ModelController, now: float) -> tuple[float, str]:
        return now, ""

    def waiting_elsewhere(self, model: ModelController) -> int:
        return 3


class Scene:
    """An account with two models that share `requests`, and a clock."""

    def __init__(self) -> None:
        settings = Settings()
        names = SharedNames(frozenset({"requests"}))
        self.account = AccountController(ACCOUNT, names, settings, 60.0, NoHeads())
        self.one, self.other = (ModelController(key, settings, 60.0, 0.0, self.account) for key in (KEY, OTHER))
        self.out: list[events.Event] = []

    def admit(self, model: ModelController, now: float = 0.0) -> Permit:
        return model.admit(Cost(1.0, 10.0), now, 0.0, self.out)

    def settle(self, model: ModelController, outcome: Outcome, now: float = 0.0) -> None:
        model.settle(self.admit(model, now), outcome, now, 0.5, self.out)

    def levels(self, model: ModelController, now: float = 0.0) -> dict[str, float]:
        return {name: mirror.level(now) for name, mirror in model.quotas.mirrors.items()}


@pytest.fixture
def scene() -> Scene:
    return Scene()


def tokens(limit: float = 1000.0, remaining: float | None = None) -> QuotaReading:
    return bucket(limit, remaining, name="tokens", unit="tokens")


def test_readings_go_to_their_levels(scene: Scene) -> None:
    scene.settle(scene.one, answer(bucket(60.0, 30.0), tokens(1000.0, 500.0)))
    scene.settle(scene.other, answer(tokens(2000.0, 1500.0)))
    assert scene.levels(scene.one) == pytest.approx({"tokens": 500.0, "requests": 29.0}, abs=1.0)
    assert scene.levels(scene.other) == pytest.approx({"tokens": 1500.0, "requests": 29.0}, abs=1.0)
    learned = [(each.key, each.quota) for each in scene.out if isinstance(each, events.RateLimitLearned)]
    assert learned == [(KEY, "tokens"), (ACCOUNT, "requests"), (OTHER, "tokens")]


@pytest.mark.parametrize("end", [lambda model, permit: model.withdraw(permit, 0.0, None),
                                 lambda model, permit: model.settle(permit, refusal(), 0.0, 0.5, None)])  # fmt: skip
def test_withdrawn_and_refused_calls_are_refunded_on_both_levels(
    scene: Scene, end: Callable[[ModelController, Permit], None]
) -> None:
    scene.settle(scene.one, answer(bucket(60.0, 30.0), tokens(1000.0, 500.0)))
    before = scene.levels(scene.one)
    permit = scene.admit(scene.one)
    assert scene.levels(scene.one) == {"tokens": before["tokens"] - 10.0, "requests": before["requests"] - 1.0}
    end(scene.one, permit)
    assert scene.levels(scene.one) == before


def test_call_is_held_by_the_level_that_opens_last(scene: Scene) -> None:
    scene.settle(scene.one, answer(bucket(60.0, 0.0), tokens(60.0, 0.0)))
    assert scene.one.ready_at(Cost(1.0, 1.0), 0.0)[1].startswith("quota ")
    ready, gate = scene.one.ready_at(Cost(1.0, 10.0), 0.0)
    assert (gate, ready) == ("quota tokens", pytest.approx(10.0, abs=0.5))
    ready, gate = scene.other.ready_at(Cost(1.0, 10.0), 0.0)
    assert (gate, ready) == ("quota requests", pytest.approx(1.0, abs=0.5))


def test_refusal_of_the_shared_quota_holds_all_models(scene: Scene) -> None:
    scene.settle(scene.one, answer(bucket(60.0, 30.0), tokens(1000.0, 900.0)))
    scene.settle(scene.one, refusal(7.0, bucket(60.0, 0.0), tokens(1000.0, 900.0)), 1.0)
    for model in (scene.one, scene.other):
        assert model.ready_at(Cost(1.0, 10.0), 1.0)[0] == pytest.approx(8.0)
        assert model.admits(Cost(1.0, 10.0), 1.0)[0] == pytest.approx(8.0)
    (hit,) = (each for each in scene.out if isinstance(each, events.RateLimitHit))
    assert (hit.key, hit.gate) == (KEY, "requests")
    assert scene.other.ready_at(Cost(1.0, 10.0), 9.0)[0] == 9.0


def test_refusal_of_a_model_s_quota_holds_that_model_alone(scene: Scene) -> None:
    scene.settle(scene.one, answer(bucket(60.0, 30.0), tokens(1000.0, 900.0)))
    scene.settle(scene.one, refusal(7.0, bucket(60.0, 29.0), tokens(1000.0, 0.0)), 1.0)
    assert scene.one.ready_at(Cost(1.0, 10.0), 1.0)[0] == pytest.approx(8.0)
    assert scene.other.ready_at(Cost(1.0, 10.0), 1.0)[0] == 1.0


def test_quota_of_an_earlier_run_is_loaded_on_the_level_that_it_has_now(scene: Scene) -> None:
    known = SavedQuota("requests", "requests", "continuous", 60.0, 60.0, 0.0, None, True, "continuous")
    seed_quotas(scene.one.quotas, [known, known._replace(name="tokens", unit="tokens")], 0.0, 0.0)
    assert list(scene.account.quotas.mirrors) == ["requests"]
    assert list(scene.one.quotas.own.mirrors) == ["tokens"]


def test_snapshots_show_both_levels(scene: Scene) -> None:
    scene.settle(scene.one, answer(bucket(60.0, 0.0), tokens(1000.0, 500.0)))
    seen = key_snapshot(scene.other, 2, Cost(), Cost(), 0.0)
    assert [quota.name for quota in seen.quotas] == ["requests"]
    # Three calls of other models are among those that the shared quota admits before the last of these two.
    # A quarter of a second's refill stays in hand.
    assert (seen.eta, seen.eta_gate) == (pytest.approx(5.25, abs=0.1), "quota requests")
    scene.admit(scene.one)
    account = account_snapshot(scene.account, 5, 0.0)
    assert (account.key, account.waiting, account.in_flight, account.models) == (ACCOUNT, 5, 1, (KEY, OTHER))
    assert [quota.name for quota in account.quotas] == ["requests"]


def test_fork_returns_what_attempts_of_the_parent_had_reserved(scene: Scene) -> None:
    scene.settle(scene.one, answer(bucket(60.0, 30.0), tokens(1000.0, 500.0)))
    for model in (scene.one, scene.other):
        model.admit(Cost(1.0, 10.0, produced=5.0), 0.0, 0.0, None)
        model.forked()
    assert scene.account.in_flight == 0
    assert all(mirror.reserved == 0.0 for mirror in scene.one.quotas.mirrors.values())
