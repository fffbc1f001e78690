"""The tab: booking charges late, in one go, changes nothing that anybody can see."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.core.values import bucket, fixed
from tidegate.core.quota import QuotaSet
from tidegate.core.quota_charges import MAX_TAB_CHARGES, Charge
from tidegate.core.values import Cost, QuotaReading

READINGS: tuple[QuotaReading, ...] = (
    bucket(1000.0, 1000.0),
    bucket(50_000.0, 50_000.0, name="tokens", unit="tokens"),
    fixed(400.0, 400.0, name="day", window=60.0, reset_after=40.0),
)
STEPS = st.one_of(
    st.tuples(st.just("send"), st.integers(0, 3000)),
    st.tuples(st.just("read"), st.integers(0, 60)),
    st.tuples(st.just("refuse"), st.integers(0, 60)),
    st.tuples(st.just("produce"), st.integers(0, 60)),
    st.tuples(st.just("wait"), st.integers(0, 200)),
)


class Client:
    """Calls against the three quotas, each with the charges it holds; `books` says that nothing stays on the tab."""

    def __init__(self, books: bool) -> None:
        self.books = books
        self.quotas = QuotaSet()
        self.quotas.observe(READINGS, 0, 0.0, 0.0, [])
        self.sent: list[tuple[int, float, Cost, list[Charge]]] = []
        self.now, self.order = 0.0, 0

    def step(self, what: str, number: int) -> None:
        if what == "wait":
            self.now += number / 10
        elif what == "send":
            cost = Cost(tokens=float(number), produced=float(number % 7))
            self.order += 1
            self.sent.append((self.order, self.now, cost, self.quotas.debit(cost, self.order, self.now)))
        elif self.sent:
            order, sent_at, cost, charges = self.sent.pop(number % len(self.sent))
            if what == "refuse":
                self.quotas.refund(charges)
            elif what == "produce":
                self.order += 1
                self.quotas.settle(charges, float(number), 0.0, self.order, self.now)
            else:
                told = tuple(each._replace(remaining=each.limit * (100 - number) / 100) for each in READINGS[:2])
                self.quotas.observe(told, order, sent_at, self.now, charges)
        if self.books:
            assert self.quotas.mirrors

    def levels(self) -> list[float]:
        return [mirror.level(self.now) for mirror in self.quotas.mirrors.values()]


@given(st.integers(1, 200).flatmap(lambda count: st.lists(STEPS, min_size=count, max_size=count)))
def test_charges_booked_late_leave_every_mirror_as_charges_booked_at_once(history: list[tuple[str, int]]) -> None:
    late, at_once = Client(books=False), Client(books=True)
    for what, number in history:
        late.step(what, number)
        at_once.step(what, number)
        assert late.quotas.ample == at_once.quotas.ample
        asked = Cost(tokens=float(number))
        assert late.quotas.ready_at(asked, late.now) == at_once.quotas.ready_at(asked, late.now)
    assert late.levels() == at_once.levels()


def test_a_tab_is_booked_before_it_grows_long() -> None:
    client = Client(books=False)
    for _ in range(MAX_TAB_CHARGES - 1):
        client.step("send", 0)
    assert client.sent[0][3] == []
    client.step("send", 0)
    assert all(charges for *_, charges in client.sent)
