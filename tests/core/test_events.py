from __future__ import annotations

import dataclasses
import inspect

import pytest

from tests.core.values import KEY
from tidegate.core import events

KINDS = [
    each for _, each in inspect.getmembers(events, inspect.isclass)
    if issubclass(each, events.Event) and each not in (events.Event, events.CallEvent)
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_event_is_a_frozen_value_that_names_its_key_and_its_instant(kind: type[events.Event]) -> None:
    names = [field.name for field in dataclasses.fields(kind)]
    event = kind(KEY, 1.0, **dict.fromkeys(names[2:], 0))
    assert (event.key, event.at) == (KEY, 1.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.at = 2.0
    assert not hasattr(event, "__dict__")


def test_nothing_secret_has_a_field() -> None:
    names = {field.name for kind in KINDS for field in dataclasses.fields(kind)}
    assert names.isdisjoint({"credential", "prompt", "body", "headers", "response", "answer"})
