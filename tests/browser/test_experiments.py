"""The experiments view in a real browser: list, one experiment, rows, filters, one row, stop, resume, hostile texts."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sqlite3
import subprocess
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.browser.test_page import WIDTHS, browser, page, shown
from tests.browser.test_shots import SCHEMES, shot, violations
from tests.cli.running import TIDEGATE, environ
from tests.ui import experiments
from tests.ui.test_serve import PATIENCE, served
from tidegate.experiments.storage import Store

__all__ = ["browser", "page"]

pytestmark = pytest.mark.real


def finished(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine in a thread: the browser's driver has a running loop in this one."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, work).result()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("experiments")
    finished(experiments.made(str(folder / "tidegate.db")))
    finished(experiments.made_again(str(folder / "tidegate.db")))
    return folder


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[tuple[str, str]]:
    with served(folder, "--port", "0", "--db", str(folder / "tidegate.db")) as (url, token, _):
        yield url, token


def opened(page: Any, url: tuple[str, str], path: str, text: str) -> None:
    page.goto(f"{url[0]}#{url[1]}")
    page.goto(f"{url[0]}#{path}")
    shown(page, text)


def names(page: Any) -> list[str]:
    return [str(each) for each in page.locator("table.rows tbody th button").all_inner_texts()]


def test_the_list_leads_to_one_experiment_and_to_its_failed_rows(page: Any, url: tuple[str, str]) -> None:
    opened(page, url, "/experiments", "capitals")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="capitals", exact=True))
    assert "stopped" in row.inner_text()
    bar = row.get_by_role("progressbar", name="evaluations of capitals")
    assert bar.get_attribute("aria-valuenow") == "686"
    assert bar.get_attribute("aria-valuetext") == "679 of 686 ok, 7 failed, 0 parked"
    assert "last activity" in page.get_by_role("table").first.inner_text()
    page.get_by_role("link", name="capitals", exact=True).click()
    shown(page, "0.746 mean ± 0.436 of 343")
    assert page.get_by_role("img", name="Scores of judge.score: 336").count() == 1
    page.get_by_role("link", name="error BadRequestError").click()
    # The screen before it shows the error too.
    page.get_by_role("button", name="q311", exact=True).wait_for()
    shown(page, "the prompt is too long")
    page.wait_for_url(re.compile(r"#/experiments/1/rows\?status=failed$"))
    assert names(page) == ["q7", "q11", "q61", "q107", "q111", "q161", "q207", "q211", "q261", "q307", "q311"]


def test_tokens_and_costs_are_shown(page: Any, url: tuple[str, str]) -> None:
    opened(page, url, "/experiments", "capitals")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="capitals", exact=True))
    assert "720 k" in row.inner_text()
    assert "$0.10" in row.inner_text()
    assert "$" not in page.get_by_role("row").filter(has_text="hostile").inner_text()
    page.get_by_role("link", name="capitals", exact=True).click()
    money = page.get_by_role("region", name="Tokens and cost")
    money.wait_for()
    assert money.get_by_role("progressbar", name="budget: tokens").get_attribute("aria-valuenow") == "720300"
    assert "$0.10 of the budget of $0.25 41 %" in " ".join(money.inner_text().split())
    assert "$0.069" in page.get_by_role("article", name="task").inner_text()
    assert "tokens" not in page.get_by_role("article", name="correct").inner_text()
    opened(page, url, "/experiments/1/rows", "City 99,")
    page.get_by_role("button", name="q8", exact=True).click()
    drawer = page.get_by_role("dialog")
    drawer.get_by_text("req_judge_8").wait_for()
    for text in ("model-of-task", "stop", "req_task_8", "2.5 s", "$0.00020", "$0.00010"):
        assert text in drawer.inner_text()


def test_batches_are_shown_with_their_state(page: Any, url: tuple[str, str]) -> None:
    opened(page, url, "/experiments/1", "0.746 mean")
    assert page.get_by_role("region", name="Batches").count() == 0
    opened(page, url, "/experiments/2", "batches that are not done")
    batches = page.get_by_role("region", name="Batches")
    said = " ".join(batches.inner_text().split())
    assert "1 being sent · 1 at the provider · 1 done · 3 rows wait for answers" in said
    row = batches.get_by_role("row").filter(has_text="batch_2").inner_text()
    assert "at the provider" in row
    assert "expires in 23:" in row
    assert "<b>paused</b>" in row
    assert "\u202e" not in row


def test_two_chosen_experiments_are_compared(page: Any, url: tuple[str, str]) -> None:
    opened(page, url, "/experiments", "capitals-2")
    page.get_by_label("compare capitals-2", exact=True).check()
    page.get_by_label("compare capitals", exact=True).check()
    page.get_by_role("link", name="compare the two chosen experiments").click()
    output = page.get_by_role("article", name="comparison of correct")
    output.wait_for(timeout=PATIENCE * 1000)
    page.wait_for_url(re.compile(r"#/experiments/compare\?a=1&b=3$"))
    assert "B higher in" in output.inner_text()
    sides = " ".join(page.locator("table.sides").inner_text().split())
    assert "A capitals" in sides
    assert "$0.10" in sides
    shown(page, "only in A: judge.label, judge.score")
    output.get_by_role("button", name="row q4 in B, 1").click()
    drawer = page.get_by_role("dialog")
    drawer.get_by_text("again 4").wait_for()
    page.keyboard.press("Escape")
    drawer.wait_for(state="detached")
    page.get_by_role("link", name="swap A and B").click()
    page.get_by_role("article", name="comparison of correct").get_by_role("button", name="row q4 in A, 1").wait_for(
        timeout=PATIENCE * 1000
    )
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 700})
            assert page.evaluate("document.documentElement.scrollWidth") == width, (width, scheme)


def test_a_comparison_draws_the_differences(page: Any, url: tuple[str, str]) -> None:
    opened(page, url, "/experiments/compare?a=1&b=3", "comparison")
    plot = page.get_by_role("img", name="correct: ")
    plot.wait_for(timeout=PATIENCE * 1000)
    label = plot.get_attribute("aria-label")
    assert label.count("+") + label.count("-") >= 1
    line = page.locator("table.forest tr").filter(has_text="correct").inner_text()
    assert "[" in line


def test_the_head_tells_progress_time_and_spending(page: Any, url: tuple[str, str]) -> None:
    opened(page, url, "/experiments/1", "capitals")
    facts = " ".join(page.locator("dl.three").inner_text().replace("\u202f", " ").split())
    assert "progress 100 % · 350 of 350 · 12 failed · 2 parked" in facts
    assert "time created " in facts
    assert "spent 720 k tokens · $0.10" in facts
    tabs = page.get_by_role("navigation", name="Screens").get_by_role("link").all_inner_texts()
    assert tabs == ["Overview", "Rows"]


def test_the_list_resumes_an_experiment(page: Any, url: tuple[str, str]) -> None:
    asked: list[str] = []

    def answered(route: Any) -> None:
        asked.append(route.request.method)
        route.fulfill(json={"result": "already"})

    page.route("**/api/experiments/1/resume", answered)
    opened(page, url, "/experiments", "capitals")
    page.get_by_role("button", name="resume capitals", exact=True).click()
    shown(page, "It runs already.")
    assert asked == ["POST"]
    assert page.get_by_role("button", name="resume capitals-2").count() == 0


def test_integers_have_a_column_each_and_the_mean_is_named(page: Any, url: tuple[str, str]) -> None:
    opened(page, url, "/experiments/1", "0.746 mean")
    stage = page.get_by_role("article", name="correct")
    bins = stage.get_by_role("table", name="correct: scores by bin").get_by_role("row").all_inner_texts()
    assert [text.split() for text in bins[1:]] == [["0", "87"], ["1", "256"]]
    assert "mean 0.746" in stage.inner_text()
    judge = page.get_by_role("article", name="judge")
    assert judge.get_by_role("table", name="judge.score: scores by bin").get_by_role("row").count() > 10


def test_rows_have_the_columns_that_are_chosen(page: Any, url: tuple[str, str]) -> None:
    opened(page, url, "/experiments/1/rows", "City 99,")
    head = page.locator("table.rows thead")
    assert head.inner_text().split("\t")[:4] == ["row", "state", "question", "answer"]
    page.get_by_text("columns", exact=True).click()
    page.get_by_label("question").uncheck()
    assert head.inner_text().split("\t")[:3] == ["row", "state", "answer"]
    page.get_by_label("question").check()


def test_rows_are_sorted_by_a_score(page: Any, url: tuple[str, str]) -> None:
    opened(page, url, "/experiments/1/rows", "City 99,")
    page.get_by_label("sort by").select_option("score judge.score")
    assert names(page)[:4] == ["q20", "q41", "q62", "q83"] or names(page)[:3] == ["q41", "q62", "q83"]
    page.get_by_role("button", name="largest first").click()
    assert names(page)[0] == "q0"
    # Rows without that score are last in both orders.
    assert names(page)[-1] in {"q7", "q11", "q20", "q21", "q61", "line 34"}


def test_a_text_is_searched_in_all_rows(page: Any, url: tuple[str, str]) -> None:
    opened(page, url, "/experiments/1/rows", "City 99,")
    page.keyboard.press("/")
    page.keyboard.type("city 34")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="q349", exact=True).wait_for()
    assert names(page) == ["q34", *(f"q{n}" for n in range(340, 350))]
    page.wait_for_url(re.compile(r"text=city\+34$"))


def test_a_row_has_an_address_and_the_keys_go_to_the_next(page: Any, url: tuple[str, str]) -> None:
    opened(page, url, "/experiments/1/rows/8.1", "The capital of country 8 is City 8")
    drawer = page.get_by_role("dialog")
    drawer.get_by_role("heading", name="Answer").wait_for()
    titles = drawer.get_by_role("heading", level=3).all_inner_texts()
    assert [text.strip() for text in titles[:2]] == ["Row", "Answer"]
    page.keyboard.press("j")
    drawer.get_by_text("The capital of country 9 is City 9").wait_for()
    page.wait_for_url(re.compile(r"/experiments/1/rows/9.1$"))
    page.keyboard.press("k")
    page.keyboard.press("k")
    drawer.get_by_text("the prompt is too long").wait_for()
    page.wait_for_url(re.compile(r"/experiments/1/rows/7.1$"))
    page.keyboard.press("Escape")
    drawer.wait_for(state="detached")
    page.wait_for_url(re.compile(r"/experiments/1/rows$"))
    opened(page, url, "/experiments/1/rows/349.1", "What is the capital of country 349?")
    assert "row q349" in page.get_by_role("dialog").inner_text()


def test_rows_are_turned_forth_and_back(page: Any, url: tuple[str, str]) -> None:
    opened(page, url, "/experiments/1/rows", "City 99,")
    assert names(page) == [f"q{n}" if n != 33 else "line 34" for n in range(100)]
    page.get_by_role("link", name="next").click()
    shown(page, "City 199,")
    page.get_by_role("link", name="next").click()
    page.get_by_role("link", name="next").click()
    shown(page, "City 349,")
    assert names(page) == [f"q{n}" for n in range(300, 350)]
    page.get_by_role("link", name="previous").click()
    shown(page, "City 200,")
    assert names(page) == [f"q{n}" for n in range(200, 300)]
    page.reload()
    shown(page, "City 200,")


def test_filters_by_state_label_and_score(page: Any, url: tuple[str, str]) -> None:
    opened(page, url, "/experiments/1/rows", "City 99,")
    page.get_by_label("rows").select_option("parked")
    shown(page, "no answer for an hour")
    assert names(page) == ["q20", "q21"]
    page.get_by_label("judged").select_option("judge.label")
    page.get_by_label("label", exact=True).select_option("poor")
    shown(page, "City 299,")
    assert names(page)[:3] == ["q2", "q5", "q8"]
    page.get_by_label("judged").select_option("judge.score")
    page.get_by_label("score from").fill("0.95")
    page.get_by_label("score from").press("Enter")
    shown(page, "City 19,")
    page.locator("table.rows tbody tr").nth(39).wait_for(state="detached")
    assert names(page)[:3] == ["q19", "q40", "q41"]


def test_what_is_typed_stays_while_the_screen_is_refreshed(page: Any, url: tuple[str, str]) -> None:
    opened(page, url, "/experiments/1/rows?evaluator=judge&output=score", "City 19,")
    page.get_by_label("score from").press_sequentially("0.95")
    for _ in range(2):
        with page.expect_response(lambda answer: "/api/experiments/1" in answer.url) as refreshed:
            pass
        assert refreshed.value.ok
    page.get_by_text("City 19,").first.wait_for()
    assert page.get_by_label("score from").input_value() == "0.95"
    page.get_by_label("score from").press("Enter")
    page.locator("table.rows tbody tr").nth(39).wait_for(state="detached")
    page.wait_for_url(re.compile(r"low=0\.95$"))


def test_one_row_opens_by_the_keyboard_and_closes(page: Any, url: tuple[str, str]) -> None:
    opened(page, url, "/experiments/1/rows", "City 99,")
    page.get_by_role("button", name="q8", exact=True).focus()
    page.keyboard.press("Enter")
    drawer = page.get_by_role("dialog")
    drawer.get_by_text("The capital of country 8 is City 8, as far as anybody knows.").wait_for()
    assert "judge.score" in drawer.inner_text()
    page.keyboard.press("Escape")
    drawer.wait_for(state="detached")
    assert page.evaluate("document.activeElement.textContent") == "q8"


def test_texts_of_a_model_are_shown_as_text(page: Any, url: tuple[str, str]) -> None:
    title = "tidegate"
    opened(page, url, "/experiments", "<i>hostile</i>")
    page.get_by_role("link", name="hostile").click()
    shown(page, "<b>judge</b>")
    page.get_by_role("link", name="Rows").click()
    shown(page, "<script>document.title = 'broken'</script>")
    cells = page.locator("table.rows tbody").inner_text()
    assert "abc\\u202egnp.exe" in cells
    assert "\u202e" not in page.locator("body").inner_text()
    assert len(cells) < 20_000
    for n in (0, 2):
        page.locator("table.rows tbody th button").nth(n).click()
        drawer = page.get_by_role("dialog")
        drawer.get_by_role("heading", name="Answer").wait_for()
        text = drawer.inner_text()
        assert (
            ("<img src=x" in text) if n == 0 else ("the first 100\u202f000 of 5\u202f000\u202f000 characters" in text)
        )
        page.keyboard.press("Escape")
        drawer.wait_for(state="detached")
    assert page.title() == title
    assert page.locator("main script, main img, main i:not([aria-hidden])").count() == 0


def test_an_export_is_downloaded(page: Any, url: tuple[str, str], tmp_path: Path) -> None:
    opened(page, url, "/experiments/1", "capitals")
    with page.expect_download() as found:
        page.get_by_role("button", name="csv").click()
    found.value.save_as(tmp_path / "out.csv")
    assert found.value.suggested_filename == "capitals.csv"
    assert len((tmp_path / "out.csv").read_text().splitlines()) == experiments.ROWS + 1


def test_a_refused_export_is_told_and_is_no_file(page: Any, url: tuple[str, str]) -> None:
    opened(page, url, "/experiments/1", "capitals")
    downloads: list[Any] = []
    page.on("download", lambda each: downloads.append(each))
    page.route("**/export?*", lambda route: route.fulfill(status=401, content_type="text/plain", body="refused"))
    page.get_by_role("button", name="csv").click()
    shown(page, "token not valid")
    page.unroute("**/export?*")
    page.route("**/export?*", lambda route: route.fulfill(status=500, content_type="text/plain", body="failed"))
    page.get_by_role("button", name="jsonl").click()
    shown(page, "export failed: the server answered 500")
    assert downloads == []


def test_a_filter_that_cannot_be_used_is_told(page: Any, url: tuple[str, str]) -> None:
    said = "low not usable: it must be a number"
    opened(page, url, "/experiments/1/rows?evaluator=judge&output=score&low=x", said)
    assert page.get_by_text(said).first.is_visible()
    assert page.locator("table.rows tbody tr").count() == 0


def test_no_screen_is_wider_than_the_window(page: Any, url: tuple[str, str]) -> None:
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for path, text in (
            ("/experiments", "capitals"), ("/experiments/1", "failures by kind"), ("/experiments/1/rows", "City 99,"),
            ("/experiments/2", "judge"), ("/experiments/2/rows", "isolated"),
        ):  # fmt: skip
            opened(page, url, path, text)
            for width in WIDTHS:
                page.set_viewport_size({"width": width, "height": 700})
                assert page.evaluate("document.documentElement.scrollWidth") == width, (path, width, scheme)


PICTURES = {
    "/experiments/1": ("one", 900),
    "/experiments/1/rows?status=failed": ("rows", 560),
}
"""Screens whose pictures the documentation has, with their heights in pixels."""


def _brief(folder: Path, route: Any) -> None:
    """Answer as the server does, with a database in the working directory."""
    answer = route.fetch()
    route.fulfill(response=answer, body=answer.text().replace(f" --db {folder / 'tidegate.db'}", ""))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_experiments_are_drawn_and_accessible(page: Any, folder: Path, url: tuple[str, str], scheme: str) -> None:
    page.route("**/api/experiments/1", lambda route: _brief(folder, route))
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    for path, text in (
        ("/experiments", "capitals"), ("/experiments/1", "failures by kind"),
        ("/experiments/1/rows?status=failed", "the prompt is too long"),
        ("/experiments/2", "judge"), ("/experiments/2/rows", "isolated"),
    ):  # fmt: skip
        name, height = PICTURES.get(path, ("", 800))
        for width in (1280, 360):
            page.set_viewport_size({"width": width, "height": height})
            opened(page, url, path, text)
            kept = name and (width, scheme) == (1280, "light" if name != "rows" else "dark")
            shot(page, f"page-experiments-{name}" if kept else "")
            assert violations(page) == [], (path, width)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_one_row_is_drawn_and_accessible(page: Any, url: tuple[str, str], scheme: str) -> None:
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    for width in (1280, 360):
        page.set_viewport_size({"width": width, "height": 640})
        opened(page, url, "/experiments/1/rows", "City 99,")
        page.get_by_role("button", name="q8", exact=True).click()
        drawer = page.get_by_role("dialog")
        drawer.get_by_text("as far as anybody knows.").wait_for()
        shot(page, "page-experiments-row" if (width, scheme) == (1280, "light") else "")
        assert violations(page) == [], width
        page.keyboard.press("Escape")
        drawer.wait_for(state="detached")


def test_a_run_is_stopped_and_resumed_from_the_page(page: Any, tmp_path: Path) -> None:
    experiments.counted(tmp_path)
    database = tmp_path / "tidegate.db"
    finished(_migrated(database))
    run = subprocess.Popen(
        [*TIDEGATE, "experiment", "run", "counted.py"], cwd=tmp_path, env=environ(), stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        with served(tmp_path, "--port", "0", "--db", str(database)) as (url, token, _):
            opened(page, (url, token), "/experiments", "counted")
            page.get_by_role("link", name="counted").click()
            shown(page, "run by process")
            _cooled(database)
            page.get_by_role("button", name="Stop").click()
            shown(page, "Stopped in the database")
            shown(page, "the next one is possible in")
            assert page.get_by_role("button", name="Resume").is_disabled()
            (tmp_path / "go").touch()
            assert run.wait(PATIENCE) == 5
            _cooled(database)
            shown(page, "tidegate experiment run counted --db")
            page.get_by_role("button", name="Resume").click()
            shown(page, "Started as process")
            shown(page, "completed")
            shown(page, "has ended with code 0")
            shown(page, "30 of 30")
    finally:
        run.kill()
        run.wait()


async def _migrated(database: Path) -> None:
    await (await Store.open(str(database))).close()


def _cooled(database: Path) -> None:
    with contextlib.closing(sqlite3.connect(database, timeout=PATIENCE, isolation_level=None)) as connection:
        connection.execute("UPDATE tidegate_execution_configs SET cooldown_until = NULL")
