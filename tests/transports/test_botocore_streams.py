"""Streams of boto3's bedrock-runtime: read in every way, left in every way, and the slot that comes back."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import botocore.auth
import botocore.endpoint
import botocore.exceptions
import pytest
import urllib3

from tests.bedrock import (
    ASK,
    INVOKE,
    client_of,
)
from tests.transports.answering import only
from tidegate.admission.registry import RateLimitRegistry
from tidegate.testing import Fault, Scenario, Simulator


@pytest.fixture
def provider() -> Iterator[Simulator]:
    with Simulator(Scenario(answers={"tide": "High, and still rising, at this hour of the day."})) as running:
        yield running


def read_events(body: Any) -> None:
    assert len(list(body)) > 5


def read_whole(body: Any) -> None:
    assert body.read().startswith(b"{")


def read_pieces(body: Any) -> None:
    assert b"".join(body.iter_chunks(16)).endswith(b"}")


def read_lines(body: Any) -> None:
    assert len(list(body.iter_lines())) == 1


def read_all_lines(body: Any) -> None:
    assert len(body.readlines()) == 1


def read_into(body: Any) -> None:
    buffer = bytearray(64)
    while body.readinto(buffer):
        pass


def read_inside(body: Any) -> None:
    with body as raw:
        assert raw.read(2) == b'{"'


def close(body: Any) -> None:
    body.close()


WHOLE_ENDS = [read_whole, read_pieces, read_lines, read_all_lines, read_into, read_inside, close]


STREAMING = [
    *[("invoke_model", INVOKE, "body", ends) for ends in WHOLE_ENDS],
    ("invoke_model_with_response_stream", INVOKE, "body", read_events),
    ("invoke_model_with_response_stream", INVOKE, "body", close),
    ("converse_stream", ASK, "stream", read_events),
    ("converse_stream", ASK, "stream", close),
]


@pytest.mark.parametrize(
    ("operation", "fields", "member", "ends"), STREAMING, ids=[f"{each[0]}-{each[3].__name__}" for each in STREAMING]
)
def test_a_stream_holds_its_slot_and_gives_it_back(
    registry: RateLimitRegistry,
    provider: Simulator,
    operation: str,
    fields: dict[str, Any],
    member: str,
    ends: Callable[[Any], None],
) -> None:
    with client_of(provider.bedrock_url) as client:
        registry.wrap(client)
        with closing(getattr(client, operation)(**fields)[member]) as body:
            assert only(registry).in_flight == 1
            ends(body)
            seen = only(registry)
    assert (seen.in_flight, seen.answered, seen.abandoned) == (0, 1, 0)


@pytest.mark.parametrize(("operation", "fields"), [("converse_stream", ASK), ("invoke_model", INVOKE)])
def test_an_abandoned_stream_gives_its_slot_back_when_it_is_collected(
    registry: RateLimitRegistry, provider: Simulator, operation: str, fields: dict[str, Any]
) -> None:
    with client_of(provider.bedrock_url) as client:
        answer = getattr(registry.wrap(client), operation)(**fields)
        assert only(registry).in_flight == 1
        (raw,) = (member._raw_stream for member in answer.values() if hasattr(member, "_raw_stream"))
        raw.drain_conn()
        del answer, raw
        gc.collect()
    assert (only(registry).in_flight, only(registry).abandoned) == (0, 1)


def test_an_exception_inside_a_stream_is_counted_although_nobody_closes_it(
    registry: RateLimitRegistry,
) -> None:
    scenario = Scenario(faults=(Fault(kind="stream-error", nth=(1,)),))
    with Simulator(scenario) as provider, client_of(provider.bedrock_url) as client:
        stream = registry.wrap(client).converse_stream(**ASK)["stream"]
        with pytest.raises(botocore.exceptions.EventStreamError, match="throttlingException"):
            list(stream)
        assert (only(registry).refused, only(registry).in_flight) == (1, 0)
        stream.close()
    assert only(registry).attempts == 1


def test_a_cut_in_the_middle_of_a_stream_comes_through_and_counts(registry: RateLimitRegistry) -> None:
    scenario = Scenario(faults=(Fault(kind="stream-drop", nth=(1,)),))
    with Simulator(scenario) as provider, client_of(provider.bedrock_url) as client:
        stream = registry.wrap(client).converse_stream(**ASK)["stream"]
        with closing(stream), pytest.raises(urllib3.exceptions.ProtocolError, match="ended prematurely"):
            list(stream)
    assert (only(registry).failed, only(registry).in_flight) == (1, 0)
