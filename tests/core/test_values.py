from __future__ import annotations

import pytest

from tidegate.core.values import CAPACITY, TERMINAL, Cost, Key, Kind

COST = Cost(requests=2.0, tokens=30.0, input_tokens=10.0, output_tokens=20.0, produced=5.0)


@pytest.mark.parametrize(
    ("unit", "charged", "reserved"),
    [
        ("requests", 2.0, 0.0),
        ("tokens", 30.0, 5.0),
        ("input_tokens", 10.0, 0.0),
        ("output_tokens", 20.0, 5.0),
        ("input_images", 0.0, 0.0),
    ],
)
def test_a_cost_is_charged_and_reserved_by_unit(unit: str, charged: float, reserved: float) -> None:
    assert (COST.amount(unit), COST.reserve(unit)) == (charged, reserved)


def test_a_call_of_no_stated_cost_is_one_request() -> None:
    assert (Cost().amount("requests"), Cost().amount("tokens"), Cost().reserve("tokens")) == (1.0, 0.0, 0.0)


def test_a_key_names_its_parts_and_only_the_beginning_of_its_digest() -> None:
    key = Key("openai", "https://api.openai.com/v1", "0123456789abcdef", "gpt", "embeddings")
    assert str(key) == "openai · api.openai.com/v1 · gpt · embeddings · key 012345"


def test_a_key_without_scope_family_or_credential_names_none() -> None:
    assert str(Key("custom", "http://localhost:8000")) == "custom · localhost:8000"


def test_no_kind_both_waits_for_capacity_and_ends_the_call() -> None:
    assert not CAPACITY & TERMINAL


def test_an_answer_a_transient_and_an_abandoned_attempt_are_neither() -> None:
    assert set(Kind) - CAPACITY - TERMINAL == {Kind.OK, Kind.TRANSIENT, Kind.ABANDONED}
