"""A model's quotas and those that its account shares, as one set: which level is charged, read, held and saved."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.core.values import KEY, OK, answer, bucket, refusal
from tidegate.core import events
from tidegate.core.concurrency_limit import ConcurrencyLimit
from tidegate.core.limiter_state import Permit
from tidegate.core.saved_state import SavedQuota, export, seed_quotas
from tidegate.core.snapshot import account_snapshot, key_snapshot
from tidegate.core.two_levels import AccountController, ModelController, SharedNames
from tidegate.core.values import Cost, Kind, Outcome, QuotaReading
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


def test_attempts_in_flight_of_all_models_are_charged_to_a_new_shared_quota(scene: Scene) -> None:
    flying = [scene.admit(model) for model in (scene.one, scene.other, scene.other)]
    scene.settle(scene.one, answer(bucket(60.0, 30.0)))
    assert scene.levels(scene.other)["requests"] == 27.0
    scene.other.withdraw(flying[1], 0.0, None)
    assert scene.levels(scene.one)["requests"] == 28.0


def test_reading_confirms_charges_of_all_models_sent_before(scene: Scene) -> None:
    scene.settle(scene.one, answer(bucket(60.0, 30.0)))
    before = [scene.admit(scene.other), scene.admit(scene.one)]
    last = scene.admit(scene.other)
    for permit, model in zip(before, (scene.other, scene.one), strict=True):
        model.settle(permit, answer(), 0.0, 0.5, None)
    scene.other.settle(last, answer(bucket(60.0, 27.0)), 0.0, 0.5, None)
    assert scene.levels(scene.one)["requests"] == pytest.approx(27.0)


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


def test_refusal_whose_text_names_only_the_shared_quota_holds_all_models(scene: Scene) -> None:
    prose = QuotaReading("requests-minute", "requests", "continuous", 60.0, None, None, 60.0)
    scene.settle(scene.one, refusal(7.0, prose), 1.0)
    assert scene.other.ready_at(Cost(1.0, 10.0), 1.0) == (8.0, "pause")
    assert scene.other.certain("pause")


def test_models_share_one_slow_start_until_the_first_answer(scene: Scene) -> None:
    scene.account.slow_start = ConcurrencyLimit(2)
    permits = [scene.admit(model) for model in (scene.one, scene.other)]
    for model in (scene.one, scene.other):
        ready, gate = model.ready_at(Cost(), 0.0)
        assert (gate, ready > 0.0, scene.account.holds(gate, 0.0)) == ("concurrency", True, True)
    later = scene.one.ready_at(Cost(), 0.0)[0]
    assert scene.other.ready_at(Cost(), later)[0] == later
    scene.one.settle(permits[0], Outcome(Kind.ABANDONED), 0.0, 0.5, None)
    assert scene.other.ready_at(Cost(), 0.0)[0] == 0.0
    scene.other.settle(permits[1], answer(bucket(60.0, 50.0)), 0.0, 0.5, None)
    for _ in range(10):
        assert scene.one.ready_at(Cost(), 0.0)[0] == 0.0
        scene.admit(scene.one)
    assert not scene.account.holds("concurrency", 0.0)


def test_streaming_answer_ends_the_shared_slow_start(scene: Scene) -> None:
    scene.one.learn(scene.admit(scene.one), answer(bucket(60.0, 50.0)), 0.0, None)
    assert scene.account.slow_start is None


def test_stated_opening_is_certain_while_no_model_has_a_call_in_flight(scene: Scene) -> None:
    scene.settle(scene.one, answer(bucket(60.0, 0.0)))
    assert scene.other.certain("quota requests")
    scene.admit(scene.one)
    assert not scene.other.certain("quota requests")
    assert not scene.other.certain("quota tokens")


def test_one_call_of_all_models_tests_what_an_earlier_run_knew(scene: Scene) -> None:
    known = SavedQuota("requests", "requests", "continuous", 60.0, 60.0, 0.0, None, True, "continuous")
    seed_quotas(scene.account.quotas, [known], 0.0, 0.0)
    assert scene.one.ready_at(Cost(), 0.0)[0] == 0.0
    permit = scene.admit(scene.one)
    assert scene.other.ready_at(Cost(), 0.0)[1] == "quota requests"
    scene.one.settle(permit, answer(bucket(60.0, 50.0)), 0.1, 0.5, None)
    assert scene.other.ready_at(Cost(), 0.1)[0] == 0.1


def test_quota_of_an_earlier_run_is_loaded_on_the_level_that_it_has_now(scene: Scene) -> None:
    known = SavedQuota("requests", "requests", "continuous", 60.0, 60.0, 0.0, None, True, "continuous")
    seed_quotas(scene.one.quotas, [known, known._replace(name="tokens", unit="tokens")], 0.0, 0.0)
    assert list(scene.account.quotas.mirrors) == ["requests"]
    assert list(scene.one.quotas.own.mirrors) == ["tokens"]


def test_model_saves_its_own_quotas_alone(scene: Scene) -> None:
    scene.settle(scene.one, answer(bucket(60.0, 30.0), tokens(1000.0, 500.0)))
    assert [quota.name for quota in export(scene.one, 0.0).quotas] == ["tokens"]


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


@pytest.mark.parametrize(
    ("names", "covered"),
    [
        (SharedNames(frozenset({"*"})), {"requests", "tokens"}),
        (SharedNames(frozenset({"*"}), frozenset({"tokens"})), {"requests"}),
        (SharedNames(frozenset({"requests"})), {"requests"}),
        (SharedNames(frozenset()), set()),
    ],
)
def test_names_of_shared_quotas(names: SharedNames, covered: set[str]) -> None:
    assert {unit for unit in ("requests", "tokens") if names.covers(f"project-{unit}", unit)} == covered


def test_name_precedes_unit(scene: Scene) -> None:
    names = SharedNames(frozenset({"requests"}), frozenset({"project-requests"}))
    assert names.covers("requests", "requests")
    assert not names.covers("project-requests", "requests")


def test_success_without_readings_changes_no_level(scene: Scene) -> None:
    scene.settle(scene.one, OK)
    assert scene.levels(scene.one) == {}
