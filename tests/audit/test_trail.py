"""`with tidegate.audit()`: one record of each attempt, in every kind of code, and nothing where no audit is open."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

import tidegate
from tests.core.scene import Scene
from tests.core.values import INVALID, OK, OUTAGE, refusal
from tidegate.admission import audit
from tidegate.admission.registry import RateLimitRegistry
from tidegate.core import events
from tidegate.core.limiter_state import Permit
from tidegate.core.values import Kind, Outcome, Usage
from tidegate.errors import ConfigurationError

pytestmark = pytest.mark.constants(FIRST_PAUSE_SECONDS=0.001)

SECRET = "sk-secret-of-the-audit"
PROMPT = "the prompt that no record has"
ANSWER = "the answer that no record has"
BODY = {"model": "gpt-5-mini", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 5}


class Refusal(Exception):
    """What an SDK raises for a 429."""

    status_code = 429


def make(**settings: Any) -> RateLimitRegistry:
    return RateLimitRegistry(tidegate.Settings(telemetry=False, **settings))


def answering(*answers: Any) -> Any:
    """A function that returns, or raises, one answer after the other."""
    given = iter(answers)

    def call() -> Any:
        answer = next(given)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return call


def provider(*answers: httpx.Response) -> httpx.Client:
    """A client of a provider that gives these answers in turn."""
    given = iter(answers)
    transport = httpx.MockTransport(lambda request: next(given))
    return make().wrap(httpx.Client(transport=transport, base_url="https://api.openai.com/v1"))


def ask(client: httpx.Client) -> httpx.Response:
    return client.post("/chat/completions", json=BODY, headers={"authorization": f"Bearer {SECRET}"})


def answered(text: str = ANSWER) -> httpx.Response:
    usage = {"prompt_tokens": 9, "completion_tokens": 3}
    return httpx.Response(200, json={"choices": [{"message": {"content": text}}], "usage": usage})


def refused() -> httpx.Response:
    return httpx.Response(429, headers={"retry-after-ms": "1"}, json={"error": {"message": PROMPT}})


class TestRecords:
    def test_each_attempt_of_a_call_is_one_record(self) -> None:
        client = provider(answered(), refused(), refused(), answered())
        began, hour = datetime.now(UTC), timedelta(hours=1)
        with tidegate.audit() as trail:
            ask(client)
            ask(client)
        first, *second = trail.attempts
        assert (first.index, first.status, first.kind, first.http_status) == (0, "success", "ok", 200)
        assert [each.index for each in second] == [0, 1, 2]
        assert [each.status for each in second] == ["capacity_retry", "capacity_retry", "success"]
        assert [(each.kind, each.cause, each.http_status) for each in second[:2]] == [("rate_limit", "rate", 429)] * 2
        assert second[0].retry_after == pytest.approx(0.001)
        assert len({each.call for each in second}) == 1
        assert second[0].call != first.call
        assert all(began - hour < each.started_on < began + hour for each in trail.attempts)
        assert all(each.latency >= 0.0 and each.waited >= 0.0 for each in trail.attempts)

    def test_tokens_are_those_of_every_answer(self) -> None:
        """Without an audit the usage of a key is read at first, and then of one answer in 32."""
        client = provider(*(answered() for _ in range(100)))
        with tidegate.audit() as trail:
            for _ in range(100):
                ask(client)
        assert {(each.input_tokens, each.output_tokens) for each in trail.attempts} == {(9, 3)}

    def test_no_record_has_a_prompt_an_answer_or_a_credential(self, tmp_path: Path) -> None:
        client = provider(refused(), answered())
        with tidegate.audit() as trail:
            ask(client)
        trail.write(tmp_path / "attempts.jsonl")
        told = (tmp_path / "attempts.jsonl").read_text() + repr(trail) + repr(trail.attempts)
        for secret in (SECRET, PROMPT, ANSWER):
            assert secret not in told

    def test_the_file_has_one_object_a_line(self, tmp_path: Path) -> None:
        client = provider(refused(), answered())
        with tidegate.audit() as trail:
            ask(client)
        trail.write(str(tmp_path / "attempts.jsonl"))
        text = (tmp_path / "attempts.jsonl").read_text("utf-8")
        assert trail.attempts[0].key in text
        lines = [json.loads(line) for line in text.splitlines()]
        assert lines == [each.to_json() for each in trail.attempts]
        assert [line["status"] for line in lines] == ["capacity_retry", "success"]
        assert datetime.fromisoformat(lines[0]["started_on"]).utcoffset() is not None

    def test_a_stream_is_one_record_at_its_end_also_after_the_block(self) -> None:
        told = [b'data: {"choices": []}\n\n', b'data: {"usage": {"prompt_tokens": 7, "completion_tokens": 2}}\n\n']

        def sending() -> Iterator[bytes]:
            yield from [*told, b"data: [DONE]\n\n"]

        client = provider(httpx.Response(200, headers={"content-type": "text/event-stream"}, content=sending()))
        with (
            tidegate.audit() as trail,
            client.stream("POST", "/chat/completions", json={**BODY, "stream": True}) as sent,
        ):
            assert trail.attempts == ()
            pieces = sent.iter_bytes()
            next(pieces)
            assert trail.attempts == ()
            list(pieces)
        (attempt,) = trail.attempts
        assert (attempt.status, attempt.input_tokens, attempt.output_tokens) == ("success", 7, 2)

    def test_an_attempt_that_began_inside_is_recorded_where_it_ends_later(self) -> None:
        scene = Scene()
        with tidegate.audit() as trail:
            caller = scene.call()
        scene.clock.advance(2.0)
        caller.reply(OK)
        scene.call().reply(OK)
        assert [each.latency for each in trail.attempts] == [2.0]

    @pytest.mark.parametrize(
        ("outcome", "status"),
        [(OK, "success"), (refusal(1.0), "capacity_retry"), (OUTAGE, "failure"), (INVALID, "failure")],
    )
    def test_the_status_follows_from_the_kind(self, outcome: Outcome, status: str) -> None:
        scene = Scene()
        with tidegate.audit() as trail:
            scene.call().reply(outcome)
        assert [each.status for each in trail.attempts] == [status]

    def test_waits_are_those_in_the_queue_before_each_attempt(self) -> None:
        scene = Scene()
        with tidegate.audit() as trail:
            caller = scene.call()
            scene.clock.advance(0.5)
            caller.reply(refusal(3.0))
            while caller.state == "waiting":
                assert caller.until is not None
                scene.clock.advance(caller.until - scene.clock())
                caller.poll()
            caller.reply(OK._replace(usage=Usage(5, 1)))
        first, second = trail.attempts
        assert (first.waited, first.latency, second.waited) == (0.0, 0.5, pytest.approx(3.0, abs=0.1))
        assert (second.index, second.input_tokens) == (1, 5)

    def test_an_answer_that_is_garbage_collected_is_recorded_at_once(self) -> None:
        scene = Scene()
        with tidegate.audit() as trail:
            permit = scene.call().permit
            assert permit is not None
            scene.registry.drop(permit)
        assert [(each.status, each.kind) for each in trail.attempts] == [("failure", "abandoned")]

    def test_a_call_that_is_cut_short_is_a_failure(self) -> None:
        registry = make()

        def interrupted() -> None:
            raise KeyboardInterrupt

        with tidegate.audit() as trail, pytest.raises(KeyboardInterrupt):
            registry.execute("k", interrupted)
        assert [(each.status, each.kind) for each in trail.attempts] == [("failure", "abandoned")]


class TestContexts:
    def test_an_asynchronous_block_gets_the_attempts_of_its_tasks_and_of_no_others(self) -> None:
        registry = make()

        async def one() -> int:
            return await registry.aexecute("k", lambda: asyncio.sleep(0, 1))

        async def main() -> tuple[audit.Trail, audit.Trail]:
            async def audited() -> audit.Trail:
                with tidegate.audit() as trail:
                    await asyncio.gather(one(), one(), asyncio.to_thread(registry.execute, "k", lambda: 1))
                return trail

            with tidegate.audit() as outer:
                inner, _ = await asyncio.gather(audited(), one())
            await one()
            return inner, outer

        inner, outer = asyncio.run(main())
        assert (len(inner.attempts), len(outer.attempts)) == (3, 4)

    def test_a_thread_is_covered_where_it_copies_the_context(self) -> None:
        registry = make()
        with tidegate.audit() as trail, concurrent.futures.ThreadPoolExecutor() as pool:
            pool.submit(registry.execute, "k", lambda: 1).result()
            assert trail.attempts == ()
            pool.submit(contextvars.copy_context().run, registry.execute, "k", lambda: 1).result()
        assert len(trail.attempts) == 1

    def test_beyond_its_limit_a_trail_only_counts(self) -> None:
        registry = make()
        with tidegate.audit(limit=2) as trail:
            for _ in range(5):
                registry.execute("k", lambda: 1)
        assert (len(trail.attempts), trail.lost) == (2, 3)
        assert [each.call for each in trail.attempts] == sorted(each.call for each in trail.attempts)

    def test_the_end_of_a_block_ends_its_audit_whatever_ends_it(self) -> None:
        registry = make()
        with pytest.raises(ZeroDivisionError), tidegate.audit() as trail:
            raise ZeroDivisionError
        registry.execute("k", lambda: 1)
        assert (trail.attempts, audit.open_blocks, audit.receivers()) == ((), set(), ())

    @pytest.mark.parametrize("limit", [0, -1, True, 1.5, "all", None, float("nan")])
    def test_a_limit_is_a_whole_number(self, limit: Any) -> None:
        with pytest.raises(ConfigurationError) as told, tidegate.audit(limit=limit):
            raise AssertionError("it was opened")
        assert (told.value.field, told.value.bound) == ("limit", "a whole number of at least 1")


class TestEvents:
    def test_the_events_of_a_call_have_its_number(self) -> None:
        registry, heard = make(), []
        registry.subscribe(heard.append)
        registry.execute("k", answering(Refusal(), 1))
        registry.execute("k", answering(1))
        told = [each for each in heard if isinstance(each, events.CallEvent)]
        first, second = dict.fromkeys(each.call for each in told)
        assert 0 < first < second
        assert [type(each).__name__ for each in told if each.call == first] == [
            "SlotAcquired",
            "RequestStarted",
            "AttemptEnded",
            "SlotReleased",
            "SlotAcquired",
            "RequestWaited",
            "RequestRetrying",
            "AttemptEnded",
            "SlotReleased",
            "RequestCompleted",
        ]
        ends = [each for each in told if isinstance(each, events.AttemptEnded)]
        assert [(each.index, each.kind) for each in ends] == [(0, Kind.RATE_LIMIT), (1, Kind.OK), (0, Kind.OK)]

    def test_a_call_that_leaves_the_queue_has_its_number_too(self) -> None:
        registry, heard = make(max_concurrency=1), []
        key = tidegate.Key("p", "https://p.test")
        assert registry.try_admit(key)
        registry.subscribe(heard.append)
        with pytest.raises(tidegate.DeadlineExceeded):
            registry.execute(key, lambda: 1, max_wait=0.001)
        numbers = {each.call for each in heard if isinstance(each, events.CallEvent)}
        assert [type(each).__name__ for each in heard][-2:] == ["QueueDeadline", "RequestFailed"]
        assert len(numbers) == 1
        assert 0 not in numbers

    def test_numbers_are_unique_in_the_process(self) -> None:
        numbers = []
        for registry in (make(), make()):
            registry.subscribe(lambda event: numbers.append(event.call) if hasattr(event, "call") else None)
            registry.execute("k", lambda: 1)
        assert len(set(numbers)) == 2

    def test_a_permit_that_is_handed_down_joins_the_call_that_uses_it(self) -> None:
        from tidegate.admission.handoff import hand_off

        registry, heard = make(), []
        registry.subscribe(heard.append)
        key = tidegate.Key("p", "https://p.test")
        permit = registry.try_admit(key)
        assert isinstance(permit, Permit)
        with hand_off(registry, permit):
            registry.execute(key, lambda: 1)
        assert len({each.call for each in heard if isinstance(each, events.CallEvent)}) == 1

    def test_an_audit_sees_what_a_listener_hears(self) -> None:
        registry, heard = make(), []
        registry.subscribe(heard.append)
        with tidegate.audit() as trail:
            registry.execute("k", answering(Refusal(), 1))
        ends = [each for each in heard if isinstance(each, events.AttemptEnded)]
        assert [(each.call, each.index, each.held) for each in ends] == [
            (each.call, each.index, each.latency) for each in trail.attempts
        ]


class TestCost:
    def counted(self, client: httpx.Client) -> dict[str, int]:
        """The Python calls of a steady call by file."""
        entered: dict[str, int] = {}

        def note(frame: Any, event: str, argument: Any) -> None:
            name = frame.f_code.co_filename
            if event == "call" and "/src/tidegate/" in name:
                entered[name.split("/src/tidegate/")[1]] = entered.get(name.split("/src/tidegate/")[1], 0) + 1

        sys.setprofile(note)
        try:
            ask(client)
        finally:
            sys.setprofile(None)
        return entered

    def test_a_call_outside_of_every_audit_enters_nothing_of_it(self) -> None:
        client = provider(*(answered() for _ in range(6)))
        ask(client), ask(client)
        before = self.counted(client)
        with tidegate.audit():
            inside = self.counted(client)
        after = self.counted(client)
        assert before == after
        assert "core/events.py" not in before
        assert {"admission/audit.py", "core/events.py"} <= set(inside)


class TestSnapshot:
    @pytest.mark.constants(FIRST_BACKOFF_SECONDS=0.001, MAX_BACKOFF_SECONDS=0.001)
    def test_calls_are_counted_and_not_only_attempts(self) -> None:
        registry = make()
        registry.execute("k", lambda: 1)
        registry.execute("k", answering(Refusal(), Refusal(), 1))
        with pytest.raises(TimeoutError):
            registry.execute("k", answering(*(TimeoutError() for _ in range(3))))
        snapshot = registry.snapshot()
        (key,) = snapshot.keys.values()
        assert (key.failed, key.completed_calls, key.failed_calls, key.retried_calls) == (3, 2, 1, 2)
        assert (snapshot.completed_calls, snapshot.failed_calls, snapshot.retried_calls) == (2, 1, 2)

    def test_the_95th_percentile_lies_between_its_neighbours(self) -> None:
        scene = Scene()
        for number in range(100):
            caller = scene.call()
            scene.clock.advance(float(number))
            caller.reply(OK)
        (key,) = scene.registry.snapshot().keys.values()
        assert (key.latency_p50, key.latency_p95, key.latency_p99) == (49.0, 94.0, 98.0)
