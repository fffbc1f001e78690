"""Calls at one key in virtual time: each is driven by hand, so that nothing depends on how fast a machine is."""

from __future__ import annotations

from typing import Any

from tests.core.values import KEY
from tidegate.admission.call import GovernedCall
from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.cost_estimator import CostEstimator
from tidegate.core.exchange import AttemptResult, CallPolicy, ExchangeResult, Flow, Resume, Send, WaitUntil
from tidegate.core.limiter_state import Permit
from tidegate.core.values import Cost, Outcome
from tidegate.settings import Settings
from tidegate.testing import VirtualClock


class PricedCall(GovernedCall):
    """A call at a fixed price."""

    __slots__ = ("expected",)

    expected: Cost

    def price(self, estimate: CostEstimator) -> Cost:
        return self.expected


class Caller:
    """One call: `state` is `sent`, `waiting` or `ended`."""

    def __init__(self, scene: Scene, max_wait: float, cost: Cost, priority: int) -> None:
        self.scene = scene
        self.woken = False
        self.ended: ExchangeResult | None = None
        self.permit: Permit | None = None
        self.until: float | None = None
        governed = self.governed = PricedCall(scene.registry, KEY, CallPolicy(max_wait=max_wait), 60.0, priority)
        governed.expected = cost
        permit = governed.try_start()
        if permit is not None:
            self.flow: Flow | None = None
            self.permit = permit
        else:
            self.flow = governed.exchange(lambda: self, None, None)
            self._step(None)

    def wake(self) -> bool:
        self.woken = True
        return True

    def arm(self, until: float) -> bool:
        self.until = until
        return True

    @property
    def state(self) -> str:
        if self.ended is not None:
            return "ended"
        return "sent" if self.permit is not None else "waiting"

    def poll(self) -> str:
        if self.state == "waiting":
            self._step(Resume(self.scene.clock()))
        return self.state

    def reply(self, outcome: Outcome, response: Any = "own") -> str:
        assert self.permit is not None, "nothing is under way"
        sent, permit, self.permit = AttemptResult(outcome, response=response), self.permit, None
        if self.flow is None:
            if self.governed.finish_fast(permit, sent):
                self.ended = ExchangeResult(Any, sent, 0.0)  # type: ignore[arg-type]
                return self.state
            self.flow = self.governed.exchange(lambda: self, permit, sent)
            self._step(None)
        else:
            self._step(Resume(self.scene.clock(), sent))
        return self.state

    def _step(self, resume: Resume | None) -> None:
        assert self.flow is not None
        try:
            effect = self.flow.send(resume)  # type: ignore[arg-type]
        except StopIteration as stop:
            self.ended = stop.value
            return
        if isinstance(effect, Send):
            self.permit = effect.permit
        else:
            assert isinstance(effect, WaitUntil)
            self.until = effect.until


class Scene:
    """A registry in virtual time, and the calls at its one key."""

    def __init__(self, **settings: Any) -> None:
        self.clock = VirtualClock()
        self.registry = RateLimitRegistry(Settings(**settings), clock=self.clock, draw=lambda: 0.5)

    def call(
        self,
        max_wait: float = 3600.0,
        cost: Cost | None = None,
        priority: int = 0,
    ) -> Caller:
        return Caller(self, max_wait, cost or Cost(), priority)

    @property
    def seen(self) -> Any:
        return self.registry.snapshot().keys[KEY]
