"""Batches at a provider that is slow, limited, or fails in part: what is stored when, and what is paid for once."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest

from tests.runner.batch_scene import (
    POLL,
    Faults,
    anthropic_of,
    body,
    changed,
    custom_ids,
    faulty_endpoints,
    is_status,
    openai_of,
    ran,
    refusal,
    right,
    rows,
    said,
)
from tests.runner.scene import runner_at
from tidegate.core.values import Usage
from tidegate.experiments import BatchTask, Experiment, RunnerSettings
from tidegate.experiments.engine.batch.apis import OpenAIBatchApi, is_refusal, seconds_of, was_sent
from tidegate.experiments.storage import ResultStatus, Status, claims
from tidegate.providers import ModelPrice, price_of
from tidegate.testing import Scenario, Simulator
from tidegate.testing.batches import BatchAnswer
from tidegate.testing.wire import Request

KINDS = pytest.mark.parametrize("kind", ["openai", "anthropic"])
POSTS = {"openai": "/v1/batches", "anthropic": "/v1/messages/batches"}


@pytest.fixture
def provider() -> Iterator[Simulator]:
    """A provider whose batches take a moment."""
    with Simulator(Scenario(batch_seconds=0.1)) as simulator:
        yield simulator


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    """A provider without faults, until a test adds some."""
    return faulty_endpoints(monkeypatch)


@pytest.fixture(autouse=True)
def no_cool_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "COOLDOWN_SECONDS", 0.0)


def client_of(kind: str, provider: Simulator) -> Any:
    """A client that leaves every refusal to the runner."""
    return (openai_of if kind == "openai" else anthropic_of)(provider).with_options(max_retries=0)


def is_creation(request: Request) -> bool:
    return request.method == "POST" and request.path in POSTS.values()


@KINDS
def test_intent_is_stored_before_the_request_and_the_id_directly_after(
    tmp_path: Path, provider: Simulator, faults: Faults, kind: str
) -> None:
    seen: list[tuple[str, list[tuple[Any, ...]]]] = []

    def read() -> list[tuple[Any, ...]]:
        with sqlite3.connect(tmp_path / "runs.db") as database:
            query = 'SELECT state, "items", "count", provider_id FROM tidegate_batches ORDER BY number'
            return database.execute(query).fetchall()

    def before(request: Request) -> BatchAnswer | None:
        if is_creation(request):
            seen.append(("create", read()))
        elif request.method == "GET" and request.path.startswith(POSTS[kind] + "/"):
            seen.append(("look", read()))
        return None

    faults.before = before
    ended = ran(tmp_path, client_of(kind, provider), 3)
    name = ended.batches[0].provider_id
    assert seen[0] == ("create", [("intent", "[[1,0,3]]", 3, None)])
    assert seen[1] == ("look", [("submitted", "[[1,0,3]]", 3, name)])
    assert [what for what, _ in seen].count("create") == 1


@KINDS
def test_requests_that_expire_go_back_and_end_with_the_reason_of_the_provider(tmp_path: Path, kind: str) -> None:
    with Simulator(Scenario(batch_seconds=0.05, batch_expired=0.5)) as provider:
        ended = ran(tmp_path, client_of(kind, provider), 8)
    assert [each.count for each in ended.batches] == [8, 4, 2]
    assert (ended.summary.status, ended.counts) == (Status.COMPLETED, {"ok": 7, "error": 1})
    (bad,) = [each for each in ended.runs if each.status is ResultStatus.ERROR]
    assert (bad.ordinal, bad.error_kind, bad.attempts) == (7, "expired", 3)
    assert "expired" in str(bad.error)


@KINDS
def test_requests_that_fail_go_back_and_end_with_the_reason_of_the_provider(tmp_path: Path, kind: str) -> None:
    with Simulator(Scenario(batch_seconds=0.05, batch_failures=0.6, seed=1)) as provider:
        ended = ran(tmp_path, client_of(kind, provider), 20)
    good, bad = ended.counts["ok"], ended.counts["error"]
    assert (good + bad, ended.summary.status) == (20, Status.COMPLETED)
    kinds = {"openai": "status 500", "anthropic": "api_error"}
    errors = {(each.error_kind, each.error, each.attempts) for each in ended.runs if each.status is ResultStatus.ERROR}
    assert errors == {(kinds[kind], "Internal server error", 3)}
    assert {each.attempts for each in ended.runs if each.status is ResultStatus.OK} >= {1, 2}


@KINDS
def test_no_request_is_repeated_before_its_retry_after(tmp_path: Path, faults: Faults, kind: str) -> None:
    refused: list[bool] = []

    def noted(request: Request, answer: BatchAnswer) -> BatchAnswer:
        refused.append(answer.status == 429)
        return answer

    faults.after = noted
    with Simulator(Scenario(batch_seconds=0.3, batch_rate=2.0)) as provider:
        ended = ran(tmp_path, client_of(kind, provider), 4)
    assert (ended.counts, len(ended.batches)) == ({"ok": 4}, 1)
    # One batch makes one request at a time: each refusal is followed by a request that the rate lets in.
    assert sum(refused) > 0
    assert not any(first and second for first, second in itertools.pairwise(refused))


def test_next_look_waits_for_the_retry_after_of_a_status(tmp_path: Path, provider: Simulator, faults: Faults) -> None:
    waits: list[float] = []
    looks: list[Request] = []

    def later(request: Request, answer: BatchAnswer) -> BatchAnswer:
        if not is_status(request) or len(looks) == 2:
            return answer
        looks.append(request)
        status = json.loads(answer.content) | {"status": "in_progress", "output_file_id": None}
        return answer._replace(content=json.dumps(status).encode(), headers=(("retry-after", "0.25"),))

    faults.after = later
    sleep = asyncio.sleep

    async def noted(seconds: float, *more: Any) -> Any:
        waits.append(seconds)
        return await sleep(seconds, *more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tidegate.experiments.engine.batch.feeder.asyncio.sleep", noted)
        assert ran(tmp_path, openai_of(provider)).counts == {"ok": 5}
    assert 0.25 in waits


def test_batches_that_the_queue_of_tokens_has_no_room_for_become_smaller(tmp_path: Path) -> None:
    with Simulator(Scenario(batch_seconds=0.1, batch_tokens=200)) as provider:
        ended = ran(tmp_path, openai_of(provider), 16)
        counts = custom_ids(provider)
    assert (ended.counts, ended.summary.status) == ({"ok": 16}, Status.COMPLETED)
    assert {each.attempts for each in ended.runs} == {1}
    full = [each for each in ended.batches if "Enqueued token limit" in str(each.detail)]
    good = [each for each in ended.batches if each.detail == "completed"]
    assert full
    assert sum(each.count for each in good) == 16
    assert len(counts) == sum(each.count for each in full + good)


@pytest.mark.parametrize("clears", [True, False])
def test_queue_that_batches_of_others_fill_is_waited_for(
    tmp_path: Path, provider: Simulator, faults: Faults, clears: bool
) -> None:
    """Not even one row fits until the others have ended. Then batches grow again."""
    refused: list[int] = []

    def full(request: Request, answer: BatchAnswer) -> BatchAnswer:
        told = json.loads(answer.content) if is_status(request) else {}
        total = told.get("request_counts", {}).get("total")
        if total is None or (clears and refused.count(1) >= 6):
            return answer
        refused.append(total)
        error = {"code": "token_limit_exceeded", "message": "Enqueued token limit", "line": None, "param": None}
        return changed(answer, status="failed", output_file_id=None, errors={"object": "list", "data": [error]})

    faults.after = full
    client, given = (
        openai_of(provider),
        {**POLL, "MAX_BACKOFF_SECONDS": 0.02},
    )
    outage = 3600.0 if clears else 0.1
    made = Experiment("e", rows(16), BatchTask(body, said, client=client), [right], batch=True)

    async def run() -> tuple[Any, list[Any]]:
        async with client, runner_at(tmp_path, max_outage=outage, **given) as runner:
            summary = await runner.run(made)
            return summary, await runner.store.batches.of(1)

    summary, batches = asyncio.run(asyncio.wait_for(run(), 300))
    assert [each.count for each in batches[:5]] == [16, 8, 4, 2, 1]
    if clears:
        assert (summary.status, summary.counts.runs[ResultStatus.OK]) == (Status.COMPLETED, 16)
        # Each status is looked at twice: at the end of a batch, and before its results are read.
        assert [each.count for each in batches[5:]] == [1, 1, 1, 2, 4, 8, 1]
    else:
        assert summary.status is Status.ERROR
        assert "one row does not fit the provider's queue" in str(summary.experiment.last_error)


@KINDS
def test_orphan_is_found_behind_a_page_of_other_batches(
    tmp_path: Path, provider: Simulator, faults: Faults, kind: str
) -> None:
    def of_another(request: Request) -> Request:
        """The same requests of someone else: as many, under other ids and without metadata."""
        told = json.loads(request.body)
        told.pop("metadata", None)
        for number, each in enumerate(told.get("requests", ())):
            each["custom_id"] = f"other-{number}"
        return Request(request.method, request.path, request.headers, json.dumps(told).encode())

    lost: list[str] = []

    def unanswered(request: Request, answer: BatchAnswer) -> BatchAnswer:
        if is_creation(request) and not lost:
            lost.append(json.loads(answer.content)["id"])
            for _ in range(101):
                assert (made := faults.send(of_another(request))) is not None
                assert made.status == 200
            return refusal(500, "lost")
        return answer

    faults.after = unanswered
    ended = ran(tmp_path, client_of(kind, provider), 4)
    assert ended.counts == {"ok": 4}
    assert [each.provider_id for each in ended.batches] == lost
    assert faults.asked.count(("POST", POSTS[kind])) == 1


def test_nothing_is_submitted_while_a_batch_that_may_be_the_orphan_runs(tmp_path: Path, faults: Faults) -> None:
    with Simulator(Scenario(batch_seconds=1e6)) as provider:
        lost: list[str] = []
        others: list[str] = []

        def unanswered(request: Request, answer: BatchAnswer) -> BatchAnswer:
            if is_creation(request) and not lost:
                lost.append(json.loads(answer.content)["id"])
                told = json.loads(request.body)
                for number, each in enumerate(told["requests"]):
                    each["custom_id"] = f"other-{number}"
                content = json.dumps(told).encode()
                made = faults.send(Request(request.method, request.path, request.headers, content))
                assert made is not None
                others.append(json.loads(made.content)["id"])
                return refusal(500, "lost")
            return answer

        async def cancel(runner: Any) -> None:
            listed, created = ("GET", POSTS["anthropic"]), ("POST", POSTS["anthropic"])
            while not others:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            async with anthropic_of(provider) as client:
                await client.messages.batches.cancel(others[0])
            seen = faults.asked.count(listed)
            while faults.asked.count(listed) < seen + 5:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            assert faults.asked.count(created) == 1
            # The results of a batch of someone else are read once.
            assert faults.asked.count(("GET", f"{POSTS['anthropic']}/{others[0]}/results")) == 1
            assert [str(each.state) for each in await runner.store.batches.of(1)] == ["intent"]
            provider.configure(batch_seconds=0.05)
            async with anthropic_of(provider) as client:
                await client.messages.batches.cancel(lost[0])

        faults.after = unanswered
        ended = ran(tmp_path, client_of("anthropic", provider), during=cancel)
        assert ended.counts == {"ok": 5}
        assert [(each.detail, each.provider_id == lost[0]) for each in ended.batches] == [
            ("cancelled", True),
            ("ended", False),
        ]


@KINDS
def test_intent_of_a_dead_process_that_has_sent_nothing_is_submitted_without_a_search(
    tmp_path: Path, provider: Simulator, faults: Faults, kind: str
) -> None:
    faults.before = lambda request: refusal(400, "wrong") if request.method == "POST" else None
    ended = ran(tmp_path, client_of(kind, provider), 4, most=2)
    assert ended.summary.status is Status.ERROR
    with sqlite3.connect(tmp_path / "runs.db") as database:
        # A process that dies before the request has stored no name of a file.
        database.execute("UPDATE tidegate_batches SET file_id = NULL")
    faults.before = lambda request: None
    faults.asked.clear()
    ended = ran(tmp_path, client_of(kind, provider), 4, most=2, resume=True)
    assert (ended.counts, len(ended.batches)) == ({"ok": 4}, 2)
    assert faults.asked.count(("GET", POSTS[kind])) == 0
    assert set(custom_ids(provider, kind).values()) == {1}


def test_search_does_not_wait_for_other_batches_of_the_run(tmp_path: Path, faults: Faults) -> None:
    path = POSTS["anthropic"]
    created = ("POST", path)
    with Simulator(Scenario(batch_seconds=1e6)) as provider:
        faults.before = lambda request: refusal(400, "wrong") if request.method == "POST" else None
        assert ran(tmp_path, client_of("anthropic", provider), 4, most=2).summary.status is Status.ERROR
        with sqlite3.connect(tmp_path / "runs.db") as database:
            database.execute("UPDATE tidegate_batches SET file_id = NULL WHERE number = 2")
        faults.asked.clear()

        def late(request: Request) -> BatchAnswer | None:
            # The search for batch 1 is answered once batch 2, of the same size, runs.
            is_list = (request.method, request.path) == ("GET", path)
            return refusal(500, "later") if is_list and created not in faults.asked else None

        async def end(runner: Any) -> None:
            while sum(each.provider_id is not None for each in await runner.store.batches.of(1)) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            provider.configure(batch_seconds=0.05)
            async with anthropic_of(provider) as client:
                for each in await runner.store.batches.of(1):
                    await client.messages.batches.cancel(each.provider_id)

        faults.before = late
        ended = ran(tmp_path, client_of("anthropic", provider), 4, most=2, resume=True, during=end)
        assert ended.counts == {"ok": 4}


@KINDS
def test_evaluators_judge_results_while_other_batches_run(tmp_path: Path, faults: Faults, kind: str) -> None:
    """The last batch ends only after every row of the others is judged."""
    judged: set[int] = set()
    with Simulator(Scenario(batch_seconds=0.05)) as provider:
        created: list[str] = []

        def held(request: Request, answer: BatchAnswer) -> BatchAnswer:
            if is_creation(request):
                created.append(json.loads(answer.content)["id"])
            last = request.method == "GET" and request.path == f"{POSTS[kind]}/{created[-1]}" and len(created) == 3
            if last and not judged >= {0, 1, 2, 3}:
                word = "status" if kind == "openai" else "processing_status"
                return changed(answer, **{word: "in_progress"})
            return answer

        def judge(row: Any, output: Any) -> bool:
            judged.add(row["n"])
            return right(row, output)

        faults.after = held
        client = client_of(kind, provider)
        task = BatchTask(body, said, client=client, max_requests=2)
        made = Experiment("e", rows(6), task, [judge], batch=True)

        async def run() -> Any:
            async with client, runner_at(tmp_path, **POLL) as runner:
                return await runner.run(made)

        summary = asyncio.run(asyncio.wait_for(run(), 120))
    assert [one.mean for one in summary.scores] == [1.0]
    assert judged == set(range(6))


def test_cost_of_anthropic_batches_is_half(
    tmp_path: Path, provider: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = price_of("anthropic", "claude-haiku-4-5")
    assert full is not None
    monkeypatch.setattr("tidegate.providers._prices._added", {("anthropic-compatible", "claude-haiku-4-5"): full})
    dataset = [{"n": n, "model": "claude-haiku-4-5"} for n in range(4)]
    ended = ran(tmp_path, anthropic_of(provider), dataset=dataset)
    totals = ended.spend["task"]
    usage = Usage(totals.input_tokens, totals.output_tokens)
    assert (totals.metered, totals.priced) == (4, 4)
    assert totals.nanodollars == pytest.approx(full.nanodollars(usage) / 2, abs=4)
    assert ended.summary.tokens.cost == pytest.approx(totals.nanodollars / 1e9)


@KINDS
def test_unknown_status_of_either_provider_is_named(
    tmp_path: Path, provider: Simulator, faults: Faults, kind: str
) -> None:
    word = "status" if kind == "openai" else "processing_status"

    def paused(request: Request, answer: BatchAnswer) -> BatchAnswer:
        looked = request.method == "GET" and request.path.startswith(f"{POSTS[kind]}/")
        return changed(answer, **{word: "paused"}) if looked else answer

    faults.after = paused
    ended = ran(tmp_path, client_of(kind, provider))
    assert "unknown status 'paused'" in str(ended.summary.experiment.last_error)
    faults.after = lambda request, answer: answer
    ended = ran(tmp_path, client_of(kind, provider), resume=True)
    assert (ended.counts, faults.asked.count(("POST", POSTS[kind]))) == ({"ok": 5}, 1)


RESULTS = {"openai": "/content", "anthropic": "/results"}


@KINDS
def test_results_that_are_cut_or_of_others(
    tmp_path: Path, provider: Simulator, faults: Faults, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    done: list[str] = []

    def cut(request: Request, answer: BatchAnswer) -> BatchAnswer:
        if not request.path.endswith(RESULTS[kind]):
            return answer
        done.append(request.path)
        other = b'{"custom_id":"not-mine","result":{"type":"expired"}}\n'
        content = answer.content if len(done) > 1 else answer.content[: len(answer.content) // 2]
        return answer._replace(content=other + content)

    faults.after = cut
    with caplog.at_level(logging.WARNING, "tidegate"):
        ended = ran(tmp_path, client_of(kind, provider), 6)
    assert ended.counts == {"ok": 6}
    assert [each.count for each in ended.batches] == [6]
    assert [each.message for each in caplog.records if "not-mine" in each.message] == [
        "experiment e: its batches: 1 results of batch 1 ignored: their ids are not its own, such as not-mine"
    ]


@KINDS
def test_results_that_stay_cut_end_the_run_and_are_read_by_a_resume(
    tmp_path: Path, provider: Simulator, faults: Faults, kind: str
) -> None:
    def cut(request: Request, answer: BatchAnswer) -> BatchAnswer:
        is_results = request.path.endswith(RESULTS[kind])
        return answer._replace(content=answer.content[: len(answer.content) // 2 - 5]) if is_results else answer

    faults.after = cut
    ended = ran(tmp_path, client_of(kind, provider), 6)
    assert ended.summary.status is Status.ERROR
    assert "1 lines of its results are cut" in str(ended.summary.experiment.last_error)
    assert 0 < ended.counts["ok"] < 6
    assert "error" not in ended.counts
    faults.after = lambda request, answer: answer
    ended = ran(tmp_path, client_of(kind, provider), 6, resume=True)
    assert (ended.counts, {each.attempts for each in ended.runs}) == ({"ok": 6}, {1})
    assert faults.asked.count(("POST", POSTS[kind])) == 1


@KINDS
def test_row_that_the_results_leave_out_is_not_paid_for_again(
    tmp_path: Path, provider: Simulator, faults: Faults, kind: str
) -> None:
    def shorter(request: Request, answer: BatchAnswer) -> BatchAnswer:
        lines = answer.content.splitlines(keepends=True)
        return answer._replace(content=b"".join(lines[1:])) if request.path.endswith(RESULTS[kind]) else answer

    faults.after = shorter
    ended = ran(tmp_path, client_of(kind, provider), 6)
    assert ended.counts == {"ok": 5, "error": 1}
    (bad,) = [each for each in ended.runs if each.status is ResultStatus.ERROR]
    assert (bad.error_kind, bad.attempts) == ("no_result", 1)
    assert sum(path.endswith(RESULTS[kind]) for _, path in faults.asked) == RunnerSettings().attempts
    assert faults.asked.count(("POST", POSTS[kind])) == 1


@KINDS
@pytest.mark.parametrize("stays", [False, True])
def test_rows_that_cut_results_of_a_cancelled_batch_lack_are_not_paid_for_again(
    tmp_path: Path, provider: Simulator, faults: Faults, kind: str, stays: bool
) -> None:
    """The file is cut at the end of a line, so no line is broken: the provider's counts tell it."""
    fetched: list[str] = []

    def shorter(request: Request, answer: BatchAnswer) -> BatchAnswer:
        looked = request.method == "GET" and request.path.startswith(f"{POSTS[kind]}/")
        if request.path.endswith(RESULTS[kind]):
            fetched.append(request.path)
            return answer._replace(content=b"".join(answer.content.splitlines(keepends=True)[: 3 if short() else None]))
        told = json.loads(answer.content) if looked else {}
        if kind == "openai" and told.get("status") == "completed":
            return changed(answer, status="cancelled")
        if told.get("processing_status") == "ended":
            return changed(answer, cancel_initiated_at="2026-11-24T00:00:00Z")
        return answer

    def short() -> bool:
        return stays or len(fetched) == 1

    faults.after = shorter
    ended = ran(tmp_path, client_of(kind, provider), 6)
    assert ended.counts == ({"ok": 3, "error": 3} if stays else {"ok": 6})
    assert {each.error_kind for each in ended.runs} == ({None, "no_result"} if stays else {None})
    assert faults.asked.count(("POST", POSTS[kind])) == 1


@KINDS
def test_result_of_an_unknown_form_is_an_error_of_its_row(
    tmp_path: Path, provider: Simulator, faults: Faults, kind: str
) -> None:
    def odd(request: Request, answer: BatchAnswer) -> BatchAnswer:
        if not request.path.endswith(RESULTS[kind]):
            return answer
        first, *rest = map(json.loads, answer.content.splitlines())
        first |= {"response": "soon", "result": "soon"}
        return answer._replace(content=b"".join(json.dumps(each).encode() + b"\n" for each in (first, *rest)))

    faults.after = odd
    ended = ran(tmp_path, client_of(kind, provider), 6)
    assert (ended.counts, ended.summary.status) == ({"ok": 5, "error": 1}, Status.COMPLETED)
    (bad,) = [each for each in ended.runs if each.status is ResultStatus.ERROR]
    assert (bad.error_kind, bad.error) == ("invalid", "its line in the results has an unknown form")


@KINDS
@pytest.mark.parametrize("killed", [False, True], ids=["lost answer", "dead process"])
def test_creation_that_the_provider_acts_on_late_makes_no_second_batch(
    tmp_path: Path, provider: Simulator, faults: Faults, kind: str, killed: bool
) -> None:
    """The first creation takes effect after the first search for it."""
    held: list[Request] = []
    late: list[BatchAnswer] = []

    def lost(request: Request) -> BatchAnswer | None:
        if is_creation(request) and not held:
            held.append(request)
            # A refusal that is final ends this process, with the intent as a killed one leaves it.
            return refusal(401 if killed else 500, "lost")
        return None

    def act(request: Request, answer: BatchAnswer) -> BatchAnswer:
        if held and not late and (request.method, request.path) == ("GET", POSTS[kind]):
            if kind == "openai":
                # Its file is deleted directly after this search.
                late.append(answer)
                return answer
            made = faults.send(held[0])
            assert made is not None
            late.append(made)
        return answer

    def refused(request: Request) -> BatchAnswer | None:
        if kind == "openai" and late and request.method == "POST" and request.path == "/v1/files" and held:
            made = faults.send(held.pop())
            assert made is not None
            late.append(made)
            held.append(request)
        return lost(request)

    faults.before, faults.after = refused, act
    ended = ran(tmp_path, client_of(kind, provider), 4)
    if killed:
        assert ended.summary.status is Status.ERROR
        ended = ran(tmp_path, client_of(kind, provider), 4, resume=True)
    assert ended.counts == {"ok": 4}
    assert set(custom_ids(provider, kind).values()) == {1}
    assert late[-1].status == (400 if kind == "openai" else 200)
    assert faults.asked.count(("POST", POSTS[kind])) == (2 if kind == "openai" else 1)


@pytest.mark.parametrize("status", [404, 405, 409, 501])
def test_late_creation_at_a_server_that_deletes_no_files_makes_no_second_batch(
    tmp_path: Path, provider: Simulator, faults: Faults, status: int
) -> None:
    held: list[Request] = []
    late: list[BatchAnswer | None] = []

    def before(request: Request) -> BatchAnswer | None:
        if is_creation(request) and not held:
            held.append(request)
            return refusal(500, "lost")
        return refusal(status, "no deletion here") if request.method == "DELETE" else None

    def after(request: Request, answer: BatchAnswer) -> BatchAnswer:
        if held and not late and (request.method, request.path) == ("GET", POSTS["openai"]):
            late.append(faults.send(held[0]))
        return answer

    faults.before, faults.after = before, after
    ended = ran(tmp_path, client_of("openai", provider), 4)
    assert ended.counts == {"ok": 4}
    assert set(custom_ids(provider).values()) == {1}
    assert faults.asked.count(("POST", POSTS["openai"])) == 1


def test_intent_is_not_submitted_again_at_another_account(tmp_path: Path, provider: Simulator, faults: Faults) -> None:
    def lost(request: Request, answer: BatchAnswer) -> BatchAnswer:
        # A refusal that is final ends this process, with the intent as a killed one leaves it.
        return refusal(401, "lost") if is_creation(request) else answer

    faults.after = lost
    assert ran(tmp_path, client_of("openai", provider), 4).summary.status is Status.ERROR
    faults.after = lambda request, answer: answer
    with Simulator(Scenario(batch_seconds=0.1)) as other:
        ended = ran(tmp_path, client_of("openai", other), 4, resume=True)
        assert ended.summary.status is Status.ERROR
        assert "not at the provider (404)" in str(ended.summary.experiment.last_error)
        with openai.OpenAI(base_url=other.openai_url, api_key="any") as client:
            assert not list(client.batches.list())
    ended = ran(tmp_path, client_of("openai", provider), 4, resume=True)
    assert ended.counts == {"ok": 4}
    assert set(custom_ids(provider).values()) == {1}


def test_batch_that_was_found_again_is_not_given_up_for_one_404(
    tmp_path: Path, provider: Simulator, faults: Faults
) -> None:
    looks: list[str] = []

    def again(request: Request) -> BatchAnswer | None:
        if is_status(request):
            looks.append(request.path)
            return refusal(404, "No such batch") if len(looks) == 3 else None
        return None

    def running(request: Request, answer: BatchAnswer) -> BatchAnswer:
        still = is_status(request) and answer.status == 200 and len(looks) < 6
        return changed(answer, status="in_progress", output_file_id=None) if still else answer

    faults.before = lambda request: refusal(404, "No such batch") if is_status(request) else None
    assert ran(tmp_path, client_of("openai", provider), 4).summary.status is Status.ERROR
    faults.before, faults.after = again, running
    assert ran(tmp_path, client_of("openai", provider), 4, resume=True).summary.status is Status.ERROR
    assert faults.asked.count(("POST", POSTS["openai"])) == 1


@KINDS
def test_time_of_a_search_is_no_outage(tmp_path: Path, provider: Simulator, faults: Faults, kind: str) -> None:
    """A search may take hours, which the clock of the loop jumps over here."""
    refusals, ahead = [refusal(500, "lost"), refusal(429, "slow down")], [0.0]

    def refused(request: Request) -> BatchAnswer | None:
        if (request.method, request.path) == ("GET", POSTS[kind]):
            ahead[0] += 60.0
        return refusals.pop(0) if is_creation(request) and refusals else None

    faults.before = refused
    client = client_of(kind, provider)
    made = Experiment("e", rows(4), BatchTask(body, said, client=client), [right], batch=True)

    async def run() -> Any:
        loop = asyncio.get_running_loop()
        clock = loop.time
        loop.time = lambda: clock() + ahead[0]  # type: ignore[method-assign]
        async with client, runner_at(tmp_path, max_outage=50.0, **POLL) as runner:
            return await runner.run(made)

    assert asyncio.run(asyncio.wait_for(run(), 300)).status is Status.COMPLETED
    # It is looked for once more after OpenAI's file is deleted, or after the time in which Anthropic may act on it.
    assert (refusals, ahead) == ([], [120.0])


@KINDS
def test_provider_that_stays_away_ends_the_run_and_a_resume_pays_for_nothing_again(
    tmp_path: Path, provider: Simulator, faults: Faults, kind: str
) -> None:
    def away(request: Request) -> BatchAnswer | None:
        looked = request.method == "GET" and request.path.startswith(f"{POSTS[kind]}/")
        return refusal(503, "maintenance") if looked else None

    faults.before = away
    client, given = (
        client_of(kind, provider),
        {**POLL, "MAX_BACKOFF_SECONDS": 0.02},
    )
    made = Experiment("e", rows(4), BatchTask(body, said, client=client), [right], batch=True)

    async def run() -> Any:
        async with client, runner_at(tmp_path, max_outage=0.1, **given) as runner:
            return await runner.run(made)

    summary = asyncio.run(asyncio.wait_for(run(), 300))
    assert summary.status is Status.ERROR
    assert "no answer for 0.1 s" in str(summary.experiment.last_error)
    faults.before = lambda request: None
    ended = ran(tmp_path, client_of(kind, provider), 4, resume=True)
    assert (ended.counts, faults.asked.count(("POST", POSTS[kind]))) == ({"ok": 4}, 1)


def test_file_without_a_word_of_the_provider_is_used_after_a_time(
    tmp_path: Path, provider: Simulator, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.experiments.engine.batch.submission.FILE_SECONDS", 0.01)
    monkeypatch.setattr("tidegate.experiments.engine.batch.submission.MAX_FILE_WAIT_SECONDS", 0.05)

    def silent(request: Request, answer: BatchAnswer) -> BatchAnswer:
        is_file = request.path.startswith("/v1/files") and not request.path.endswith("/content")
        return changed(answer, status="uploaded") if is_file else answer

    faults.after = silent
    assert ran(tmp_path, openai_of(provider), 4).counts == {"ok": 4}


@KINDS
def test_row_whose_request_could_not_be_built_again_goes_into_another_batch(
    tmp_path: Path, provider: Simulator, faults: Faults, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where the answered model has no price, the request is built once more for the model that it names.
    monkeypatch.setattr("tidegate.providers._prices._added", {(None, "gpt-4o-mini"): ModelPrice(1.0, 2.0)})
    built: list[int] = []

    def build(row: Any) -> dict[str, Any]:
        built.append(row["n"])
        if row["n"] == 2 and built.count(2) == 2:
            raise ValueError("not now")
        return body(row)

    ended = ran(tmp_path, client_of(kind, provider), 5, build=build)
    assert (ended.counts, [each.count for each in ended.batches]) == ({"ok": 5}, [4, 1])
    assert sum(path.endswith(RESULTS[kind]) for _, path in faults.asked) == 2
    # The first answer of a model is built once more, for the name by which the model was asked.
    assert [built.count(n) for n in range(5)] == [3, 2, 4, 2, 2]


@KINDS
def test_refused_creation_is_repeated_without_another_upload(
    tmp_path: Path, provider: Simulator, faults: Faults, kind: str
) -> None:
    def refused(request: Request) -> BatchAnswer | None:
        return refusal(429, "slow down") if is_creation(request) and len(faults.asked) < 5 else None

    faults.before = refused
    assert ran(tmp_path, client_of(kind, provider), 4).counts == {"ok": 4}
    posts = [path for method, path in faults.asked if method == "POST"]
    assert posts.count(POSTS[kind]) > 2
    assert posts.count("/v1/files") == (kind == "openai")


def test_batch_waits_until_the_provider_has_read_its_file(
    tmp_path: Path, provider: Simulator, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.experiments.engine.batch.submission.FILE_SECONDS", 0.01)
    looks: list[str] = []

    def slow(request: Request, answer: BatchAnswer) -> BatchAnswer:
        if not request.path.startswith("/v1/files") or request.path.endswith("/content"):
            return answer
        looks.append(request.method)
        return changed(answer, status="processed" if len(looks) > 3 else "pending")

    faults.after = slow
    assert ran(tmp_path, openai_of(provider), 4).counts == {"ok": 4}
    assert looks == ["POST", "GET", "GET", "GET"]


def test_bytes_of_a_file_are_limited_too(tmp_path: Path, provider: Simulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OpenAIBatchApi, "max_bytes", 700)

    def build(row: Any) -> dict[str, Any]:
        return body(row) if row["n"] != 3 else {**body(row), "user": "u" * 700}

    ended = ran(tmp_path, openai_of(provider), 6, build=build)
    assert ended.counts == {"ok": 5, "error": 1}
    assert max(each.count for each in ended.batches) < 5
    (bad,) = [each for each in ended.runs if each.status is ResultStatus.ERROR]
    assert (bad.ordinal, bad.error_kind) == (3, "never_fits")
    with openai.OpenAI(base_url=provider.openai_url, api_key="any") as client:
        assert max(each.bytes for each in client.files.list() if each.purpose == "batch") <= 700


def test_client_without_batches_is_refused_before_a_call(tmp_path: Path) -> None:
    made = Experiment("e", rows(2), BatchTask(body, said, client=object()), batch=True)

    async def run() -> Any:
        async with runner_at(tmp_path) as runner:
            return await runner.run(made)

    summary = asyncio.run(run())
    assert summary.status is Status.ERROR
    assert "client: 'object' is not usable" in str(summary.experiment.last_error)


def test_times_of_a_retry_after_header_are_seconds_and_bounded() -> None:
    texts = {"7": 7.0, "0.25": 0.25, "-3": 0.0, "99999": 3600.0, "Wed, 21 Oct 2026 07:28:00 GMT": 0.0, "nan": 0.0}
    assert {text: seconds_of({"retry-after": text}) for text in texts} == texts
    assert seconds_of({}) == 0.0
    date = "Wed, 21 Oct 2026 07:28:00 GMT"
    assert seconds_of({"retry-after": date, "date": "Wed, 21 Oct 2026 07:27:18 GMT"}) == 42.0
    assert seconds_of({"retry-after": date, "date": "Wed, 21 Oct 2026 07:29:00 GMT"}) == 0.0
    assert seconds_of({"retry-after": date, "date": "soon"}) == 0.0


@pytest.mark.parametrize(
    ("failure", "sent"),
    [("ConnectError", False), ("ConnectTimeout", False), ("PoolTimeout", False),
     ("ReadTimeout", True), ("RemoteProtocolError", True), ("WriteError", True)],
)  # fmt: skip
@pytest.mark.parametrize(("sdk", "stack"), [(openai.OpenAI, httpx), (anthropic.Anthropic, httpx2)])
def test_request_without_a_connection_was_not_sent(sdk: Any, stack: Any, failure: str, sent: bool) -> None:
    def failing(request: Any) -> Any:
        raise getattr(stack, failure)("broken")

    with stack.Client(transport=stack.MockTransport(failing)) as http:
        client = sdk(api_key="any", base_url="http://provider.invalid", http_client=http, max_retries=0)
        with pytest.raises(Exception, match=r"Connection error|timed out") as raised:
            client.post("/x", cast_to=object)
    assert was_sent(raised.value) is sent
    assert not is_refusal(raised.value)
