"""The experiments view: its answers from a database, what it does to an experiment, and what it says of bad input."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import io
import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from tests.ui import experiments
from tests.ui.experiments import BUDGET, FAILED, HOSTILE, INVALID, PARKED, ROWS
from tests.ui.test_access_policy import HOST, OWN, TOKEN
from tests.ui.test_serve import PATIENCE
from tidegate.experiments.engine.replica import replica_name, replica_tag
from tidegate.experiments.screens.answers import SHOWN_CHARACTERS, readable
from tidegate.experiments.screens.routes import PAGE_ITEMS, experiment_routes
from tidegate.experiments.screens.source import ExperimentSource
from tidegate.experiments.storage import Store, claims
from tidegate.experiments.storage.row_pages import CELL_CHARACTERS
from tidegate.launch.counter_row import INTEGERS, KeyRow, QuotaRow
from tidegate.launch.runs import ProgramRun
from tidegate.launch.totals import KeyTotal, Totals
from tidegate.server.app import create_app

CAPITALS, HOSTILES = 1, 2
ANSWERED = ROWS - len(FAILED) - len(PARKED) - len(INVALID)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "tidegate.db"
    asyncio.run(experiments.made(str(path)))
    return path


@pytest.fixture
def database(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A database of its own, in the working directory."""
    path = tmp_path / "tidegate.db"
    path.write_bytes(template.read_bytes())
    monkeypatch.chdir(tmp_path)
    return path


@contextlib.contextmanager
def opened(url: str | Path) -> Iterator[TestClient]:
    app = create_app(hosts=(HOST,), token=TOKEN, runs=lambda: (), tables=[experiment_routes(str(url))])
    with TestClient(app, headers=OWN) as client:
        yield client


@pytest.fixture
def client(database: Path) -> Iterator[TestClient]:
    with opened(database) as client:
        yield client


def got(client: TestClient, path: str, **query: object) -> Any:
    answer = client.get(f"/api/experiments{path}", params=query)  # type: ignore[arg-type]
    assert answer.status_code == 200, answer.text
    return answer.json()


def ordinals(page: dict[str, Any]) -> list[int]:
    return [row["ordinal"] for row in page["rows"]]


def sql(database: Path, statement: str) -> list[Any]:
    with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as connection:
        return connection.execute(statement).fetchall()


def test_list_has_state_progress_and_means(client: TestClient) -> None:
    hostile, capitals = got(client, "")["experiments"]
    assert hostile["status"] == "COMPLETED"
    assert (capitals["name"], capitals["status"]) == ("capitals", "STOPPED")
    assert "no answer of openai" in capitals["why"]
    lost = len(FAILED) + len(INVALID)
    assert capitals["tasks"] == {
        "done": ROWS, "ok": ANSWERED, "failed": lost, "parked": len(PARKED), "total": ROWS
    }  # fmt: skip
    judged = 2 * ANSWERED
    assert capitals["evaluations"] == {"done": judged, "ok": judged - 7, "failed": 7, "parked": 0, "total": judged}
    assert (capitals["failed"], capitals["parked"], capitals["invalid"]) == (len(FAILED) + 1 + 7, 2, 1)
    assert [each["title"] for each in capitals["means"]] == ["correct", "judge.score"]


def test_list_tells_the_last_activity_and_not_the_creation(database: Path, client: TestClient) -> None:
    sql(database, "UPDATE tidegate_experiments SET created_at = '2020-01-01 00:00:00.000'")
    hostile, capitals = got(client, "")["experiments"]
    assert datetime.fromtimestamp(capitals["active"], UTC).year > 2020
    # It has no log line.
    assert datetime.fromtimestamp(hostile["active"], UTC).year == 2020


def test_experiment_whose_process_has_ended_is_interrupted_everywhere(database: Path, client: TestClient) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    replica = f"{replica_name().partition('-')[0]}-{ended.pid}-0"
    running = f"SET status = 'RUNNING', claimed_at = '2020-01-01 00:00:00.000', claimed_by = '{replica}'"
    sql(database, f"UPDATE tidegate_execution_configs {running} WHERE experiment_id = {CAPITALS}")
    assert [each["state"] for each in got(client, "")["experiments"]] == ["completed", "interrupted"]
    assert got(client, f"/{CAPITALS}")["state"] == "interrupted"


def test_eta_of_a_resumed_experiment_counts_neither_kept_rows_nor_the_time_before(tmp_path: Path) -> None:
    now = 0.0
    source = ExperimentSource(str(tmp_path / "tidegate.db"), clock=lambda: now)
    for now in range(100):  # noqa: B007  # the clock of the source
        assert source.eta(1, 1, "task", 60, 240) is None
    for now in range(100, 105):
        told = source.eta(1, 2, "task", 60 + 2 * (now - 100), 240)
    assert told == pytest.approx(172 / 2)


def test_list_goes_on_below_a_number(client: TestClient) -> None:
    assert [each["name"] for each in got(client, "", before=HOSTILES)["experiments"]] == ["capitals"]


def test_one_experiment_has_its_stages_scores_and_failures(client: TestClient) -> None:
    one = got(client, f"/{CAPITALS}")
    task, correct, judge = one["stages"]
    assert task["counts"] == {"ok": 343, "error": 4, "parked": 2, "invalid": 1}
    assert {(each["kind"], each["count"]) for each in task["failures"]} == {
        ("BadRequestError", 4), ("outage", 2), ("invalid", 1)
    }  # fmt: skip
    (output,) = correct["outputs"]
    assert sum(count for _, count in output["bins"]) == output["n"] == 343
    label, score = judge["outputs"]
    assert sorted(name for name, _ in label["labels"]) == ["fair", "good", "poor"]
    assert (score["failed"], score["n"]) == (7, 336)
    assert judge["failures"][0]["example"] == "the judge took too long"
    assert {line["event"]: line["text"] for line in one["log"]}["ended"] == "reason stopped"
    assert one["commands"]["run"].startswith("tidegate experiment run capitals --db ")


def test_tokens_and_costs_of_the_list_the_stages_and_a_row(client: TestClient) -> None:
    hostile, capitals = got(client, "")["experiments"]
    assert hostile["tokens"] | {"cost": 0} == dict.fromkeys(hostile["tokens"], 0)
    assert hostile["tokens"]["cost"] is None
    calls = 2 * ANSWERED
    sums = {"metered": calls, "input_tokens": 1000 * calls, "output_tokens": 50 * calls, "cached_tokens": 200 * calls}
    assert capitals["tokens"].items() >= sums.items()
    assert capitals["tokens"]["cost"] == pytest.approx(ANSWERED * 0.0003)
    assert (hostile["budget"], capitals["budget"]) == (None, BUDGET)
    one = got(client, f"/{CAPITALS}")
    assert [(each["name"], each["tokens"]["metered"]) for each in one["stages"]] == [
        ("task", ANSWERED), ("correct", 0), ("judge", ANSWERED)
    ]  # fmt: skip
    assert one["stages"][0]["tokens"]["cost"] == pytest.approx(ANSWERED * 0.0002)
    row = got(client, f"/{CAPITALS}/rows/8/1")
    assert [each["stage"] for each in row["usages"]] == ["task", "judge"]
    asked = row["usages"][0]
    assert (asked["model"], asked["finish_reason"], asked["request_id"], asked["waited"]) == (
        "model-of-task", "stop", "req_task_8", 2.5
    )  # fmt: skip
    assert (asked["input_tokens"], asked["cost"]) == (1000, pytest.approx(0.0002))
    assert got(client, f"/{CAPITALS}/rows/7/1")["usages"] == []


def test_batches_are_told_with_their_state(client: TestClient) -> None:
    assert got(client, f"/{CAPITALS}")["batches"] is None
    hostile = got(client, "")["experiments"][0]["id"]
    batches = got(client, f"/{hostile}")["batches"]
    assert all(each.pop("created") > 1.7e9 for each in batches["left"])
    assert batches == {
        "counts": {"intent": 1, "submitted": 1, "fetched": 1},
        "left": [
            {"batch": 2, "state": "submitted", "rows": 2, "provider": "openai", "id": "batch_2",
             "detail": "<b>paused</b>\u202e"},
            {"batch": 3, "state": "intent", "rows": 1, "provider": "openai", "id": None, "detail": ""},
        ],
        "more": False,
        "rows": 3,
    }  # fmt: skip


def test_rows_have_their_fields(client: TestClient) -> None:
    first = got(client, f"/{CAPITALS}/rows")["rows"][0]
    assert first["fields"] == {"id": "q0", "question": "What is the capital of country 0?"}
    hostile = got(client, "")["experiments"][0]["id"]
    rows = got(client, f"/{hostile}/rows")["rows"]
    assert rows[0]["fields"]["text"].startswith("<script>")
    assert rows[2]["fields"] is None


def test_a_text_and_a_judgement_are_not_searched_together(client: TestClient) -> None:
    answer = client.get(f"/api/experiments/{CAPITALS}/rows", params={"text": "x", "evaluator": "judge"})
    assert answer.status_code == 400


def test_an_evaluator_expects_the_rows_that_are_not_tried_yet(client: TestClient) -> None:
    one = got(client, f"/{CAPITALS}")
    judges = [stage for stage in one["stages"] if stage["name"] != "task"]
    assert sum(stage["total"] for stage in judges) == one["evaluations"]["total"]


def test_pages_of_rows_go_forth_and_back(client: TestClient) -> None:
    seen: list[int] = []
    query: dict[str, object] = {}
    while True:
        page = got(client, f"/{CAPITALS}/rows", **query)
        seen += ordinals(page)
        if not page["more"]:
            break
        assert len(page["rows"]) == PAGE_ITEMS
        query = {"after": f"{seen[-1]}.1"}
    assert seen == list(range(ROWS))
    page = got(client, f"/{CAPITALS}/rows", before="120.1")
    assert (ordinals(page), page["more"]) == (list(range(20, 120)), True)
    assert got(client, f"/{CAPITALS}/rows", before="30.1")["more"] is False


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"status": "failed"}, sorted({*FAILED, *(n for n in range(ROWS) if n % 50 == 11)})),
        ({"status": "parked"}, list(PARKED)),
        ({"status": "invalid"}, list(INVALID)),
        ({"evaluator": "judge", "output": "label", "label": "poor"}, [2, 5, 8]),
        ({"evaluator": "judge", "output": "score", "low": "0.9", "high": "0.95"}, [18, 19, 39]),
        ({"evaluator": "nobody"}, []),
        ({"text": "city 34"}, [34, *range(340, 350)]),
        ({"text": "COUNTRY 299?"}, [299]),
        ({"text": "too long"}, list(FAILED)),
        ({"text": "country 10", "status": "failed"}, [107]),
        ({"text": "100%"}, []),
    ],
)
def test_filters_find_their_rows(client: TestClient, query: dict[str, object], found: list[int]) -> None:
    page = got(client, f"/{CAPITALS}/rows", **query)
    assert ordinals(page)[: len(found)] == found
    if "status" in query:
        assert ordinals(page) == found
        assert ordinals(got(client, f"/{CAPITALS}/rows", before=f"{ROWS}.1", **query)) == found


def test_search_says_how_far_it_came(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.experiments.storage.row_pages.SEARCHED_ITEMS", 15)
    query = {"evaluator": "judge", "output": "score", "low": 0.95}
    page = got(client, f"/{CAPITALS}/rows", **query)
    assert (ordinals(page), page["more"], page["searched"]) == ([], True, [14, 1])
    page = got(client, f"/{CAPITALS}/rows", after="14.1", **query)
    assert (ordinals(page), page["searched"]) == ([19], [28, 1])
    page = got(client, f"/{CAPITALS}/rows", before="22.1", **query)
    assert (ordinals(page), page["searched"]) == ([19], [7, 1])


def test_cells_are_cut_and_one_row_has_more(client: TestClient) -> None:
    page = got(client, f"/{HOSTILES}/rows")
    assert len(json.dumps(page)) < 50 * CELL_CHARACTERS
    long = page["rows"][2]
    assert (len(long["output"]), long["output"][-1], len(long["row"])) == (CELL_CHARACTERS, "…", CELL_CHARACTERS + 1)
    assert [row["output"] for row in page["rows"][:2]] == list(HOSTILE[:2])
    one = got(client, f"/{HOSTILES}/rows/2/1")
    assert (len(one["output"]["text"]), one["output"]["length"]) == (SHOWN_CHARACTERS, len(HOSTILE[2]))
    assert one["judgements"][0]["label"] == HOSTILE[0]
    assert got(client, f"/{HOSTILES}/rows/3/1")["output"]["text"].startswith("half \\ud800 a pair, \x00")


def test_row_without_a_result_is_not_found(client: TestClient) -> None:
    for place in ("999/1", "1/2", f"{2**62}/1", "1/0"):
        assert client.get(f"/api/experiments/{CAPITALS}/rows/{place}").status_code == 404


@pytest.mark.parametrize("text", ['"plain"', '"cut \\u12', '"esc\\\\', '"\\ud83d\\ude', '{"a": 1}', "17", '"'])
def test_cut_texts_are_read_without_their_escapes(text: str) -> None:
    shown = readable(text)
    assert shown is not None
    assert "\\u" not in shown
    assert readable('"say \\"hi\\""') == 'say "hi"'


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_export_is_that_of_the_command(client: TestClient, form: str) -> None:
    answer = client.get(f"/api/experiments/{CAPITALS}/export", params={"format": form})
    assert answer.headers["content-disposition"] == f'attachment; filename="experiment-1.{form}"'
    if form == "parquet":
        assert (answer.content[:4], answer.content[-4:]) == (b"PAR1", b"PAR1")
    elif form == "csv":
        lines = list(csv.DictReader(io.StringIO(answer.text)))
        assert (len(lines), lines[1]["judge.score.score"]) == (ROWS, "0.05")
    else:
        lines = [json.loads(line) for line in answer.text.splitlines()]
        assert (len(lines), lines[1]["evaluations"]["correct"]) == (ROWS, {"correct": {"status": "ok", "score": 1.0}})


def test_unusable_parameters_are_refused(client: TestClient) -> None:
    for path, name, value in (
        ("", "before", "x"),
        ("/1/rows", "after", "1"),
        ("/1/rows", "after", "²._"),
        ("/1/rows", "status", "ok"),
        ("/1/rows", "label", "good"),
        ("/1/export", "format", "exe"),
    ):
        answer = client.get(f"/api/experiments{path}", params={name: value})
        assert (answer.status_code, "not usable" in answer.json()["problem"]) == (400, True), (path, name)
    assert client.get("/api/experiments/1/rows", params={"evaluator": "judge", "low": "nan"}).status_code == 400


def test_unknown_experiment_is_a_sentence(client: TestClient) -> None:
    for number in (99, 2**70):
        assert "not found" in got(client, f"/{number}")["problem"]


def test_missing_database_is_a_sentence_until_there_is_one(tmp_path: Path, template: Path) -> None:
    path = tmp_path / "later.db"
    with opened(path) as client:
        told = got(client, "")
        assert (told["missing"], "later.db" in told["problem"]) == (True, True)
        assert not path.exists()
        path.write_bytes(template.read_bytes())
        end = time.monotonic() + PATIENCE
        while "problem" in (told := got(client, "")):
            assert time.monotonic() < end
        assert len(told["experiments"]) == 2


def test_newer_schema_and_a_file_that_is_no_database_are_sentences(database: Path, tmp_path: Path) -> None:
    sql(database, "UPDATE tidegate_version SET version_num = '0999'")
    (tmp_path / "other.db").write_text("no database" * 1000)
    for url, words in ((str(database), "0999"), ("other.db", "not a database"), ("mysql://host/x", "not usable")):
        with opened(url) as client:
            for path in ("", "/1", "/1/rows", "/1/rows/1/1", "/1/export"):
                told = got(client, path)
                assert words in told["problem"], url
                assert "Traceback" not in told["problem"]


def test_what_the_rows_of_a_run_wait_for_is_told(
    database: Path, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = "here"
    sql(
        database,
        f"UPDATE tidegate_execution_configs SET status = 'RUNNING', claimed_by = '{replica}', "
        "claimed_at = strftime('%Y-%m-%d %H:%M:%f', 'now') WHERE experiment_id = 1",
    )
    now = time.monotonic()
    # The runner keeps its rows back: no call is in the queue of the key.
    quota = QuotaRow("requests", 120.0, 60.0, 120.0, now, 120.0, level=-2000.0, amount=1.0)
    row = KeyRow("k", dict.fromkeys(INTEGERS, 0) | {"slots": 8, "members": 1}, now, (quota,), looked_at=now)
    total = KeyTotal("k")
    total.add(row, running=True)
    run = ProgramRun(7, f"tidegate experiment run {replica_tag(replica)}", Totals({"k": total}, True), 1.0)
    monkeypatch.setattr("tidegate.launch.runs.live_runs", lambda: [run])
    (key,) = got(client, f"/{CAPITALS}")["keys"]
    assert key["waiting"] == 0
    assert key["blocked"].startswith("quota requests used up: next call in 16:")


def test_stop_writes_the_database_and_keeps_the_cool_down(database: Path, client: TestClient) -> None:
    sql(
        database,
        "UPDATE tidegate_execution_configs SET status = 'RUNNING', claimed_by = 'elsewhere', "
        "claimed_at = strftime('%Y-%m-%d %H:%M:%f', 'now') WHERE experiment_id = 1",
    )
    one = got(client, f"/{CAPITALS}")
    assert (one["status"], one["quiet"] < PATIENCE, one["keys"]) == ("RUNNING", True, [])
    assert act(client, "resume")["result"] == "already"
    told = act(client, "stop")
    assert (told["result"], told["cooling"] > 0) == ("done", True)
    one = got(client, f"/{CAPITALS}")
    assert (one["status"], one["cooling"] > 0, "process" in one["stopped_by"]) == ("STOPPED", True, True)
    assert act(client, "stop")["result"] == "already"
    told = act(client, "resume")
    assert (told["result"], told["cooling"] > 0) == ("cooling", True)


def act(client: TestClient, verb: str, number: int = CAPITALS) -> Any:
    answer = client.post(f"/api/experiments/{number}/{verb}", json={"name": "-rf", "db": "other.db"})
    assert answer.status_code == 200
    return answer.json()


def test_resume_starts_a_process_that_answers_the_rest(
    database: Path, client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "COOLDOWN_SECONDS", 0.0)
    experiments.counted(tmp_path)
    number = asyncio.run(stopped_run(database))
    (tmp_path / "go").touch()
    told = act(client, "resume", number)
    assert (told["result"], told["pid"] > 0) == ("done", True)
    assert told["command"] == f"tidegate experiment run counted --db {database}"
    end = time.monotonic() + PATIENCE
    while (one := got(client, f"/{number}"))["started"]["code"] is None:
        assert time.monotonic() < end
    assert one["started"]["code"] == 0, one["started"]["said"]
    # The answer may have been read from the database before the process ended.
    one = got(client, f"/{number}")
    assert (one["status"], one["tasks"]["ok"]) == ("COMPLETED", 30)


async def stopped_run(database: Path) -> int:
    """An experiment that has all its rows, and was stopped before the first answer."""
    store = await Store.open(str(database))
    from tidegate.experiments.storage import NewRow, Status

    spec: dict[str, Any] = {"name": "counted", "source": "counted.py:experiment", "task": "answer", "evaluators": {}}
    made = await store.experiments.create("counted", spec, 1, "rows")
    await store.datasets.add_rows(made.dataset_id, [NewRow(n, str(n), {"n": n}) for n in range(30)])
    await store.datasets.complete(made.dataset_id, 30)
    claim = await store.claims.claim(made.id, "a", 60.0)
    assert claim is not None
    await store.claims.release(claim, Status.STOPPED)
    await store.close()
    return made.id


def test_process_that_cannot_resume_says_why(client: TestClient) -> None:
    act(client, "resume")
    end = time.monotonic() + PATIENCE
    while (one := got(client, f"/{CAPITALS}"))["started"]["code"] is None:
        assert time.monotonic() < end
    assert one["started"]["code"] != 0
    assert one["started"]["said"]


def test_password_of_a_database_is_not_shown(tmp_path: Path) -> None:
    with opened("postgresql://user:swordfish@127.0.0.1:9/none") as client:
        answer: httpx.Response = client.get("/api/experiments")  # type: ignore[assignment]
    assert "problem" in answer.json()
    assert "swordfish" not in answer.text
