"""Pictures of fixed data in a real browser, without a violation of the accessibility rules, and read by the keyboard.

With `TIDEGATE_SHOTS=FOLDER` the pictures of the documentation are written there (`make docs-shots`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import pytest

from tests.browser import scene
from tests.browser.test_page import PATIENCE, browser, shown  # noqa: F401
from tests.ui.test_serve import served

pytestmark = pytest.mark.real

AXE = Path(__file__).parents[2] / ".venv" / "browser" / "axe" / "node_modules" / "axe-core" / "axe.min.js"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
SHOTS = os.environ.get("TIDEGATE_SHOTS", "")
SCHEMES = ("light", "dark")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("runs"), "--port", "0") as (url, token, _):
        yield f"{url}#{token}"


@pytest.fixture(scope="module")
def answer() -> Any:
    return scene.answers()


@contextmanager
def opened(
    browser: Any,  # noqa: F811
    address: str,
    answer: Any = None,
    *,
    scheme: str = "light",
    width: int = 1280,
    height: int = 800,
) -> Iterator[Any]:
    """A tab with the fixed data, or with that of the server, which finds no program; at a fixed time."""
    context = browser.new_context(
        color_scheme=scheme,
        viewport={"width": width, "height": height},
        timezone_id="UTC",
        locale="en-GB",
        reduced_motion="reduce",
    )
    context.set_default_timeout(PATIENCE * 1000)
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if "Policy" in message.text else None)
    page.clock.install(time=scene.WALL)
    if answer is not None:
        page.route("**/api/limits*", lambda route: _fulfill(route, answer))
    page.goto(address)
    shown(page, "as of ")
    yield page
    context.close()
    assert problems == []


def _fulfill(route: Any, answer: Any) -> None:
    since = int(parse_qs(urlparse(route.request.url).query)["since"][0])
    try:
        given = answer(since)
    except ConnectionError:
        route.abort()
    else:
        route.fulfill(json=given)


def shot(page: Any, name: str) -> None:
    """Take a picture, and keep it for the documentation under a name ('': not)."""
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    picture = page.screenshot()
    assert picture.startswith(b"\x89PNG")
    if SHOTS and name:
        Path(SHOTS).mkdir(parents=True, exist_ok=True)
        (Path(SHOTS) / f"{name}.png").write_bytes(picture)


def violations(page: Any) -> list[str]:
    assert AXE.exists(), "axe-core not found: `make test-real` installs it"
    page.evaluate(AXE.read_text())
    found = page.evaluate("(rules) => axe.run(document, { runOnly: rules })", RULES)
    assert found["passes"], "axe has looked at nothing"
    return [f"{each['id']}: {node['html'][:120]}" for each in found["violations"] for node in each["nodes"]]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_limits_are_drawn_and_accessible(browser: Any, address: str, answer: Any, scheme: str) -> None:  # noqa: F811
    with opened(browser, address, answer, scheme=scheme, height=1000) as page:
        shown(page, "quota requests used up")
        shot(page, f"page-{scheme}")
        assert violations(page) == []


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_narrow_window_shows_the_same(browser: Any, address: str, answer: Any, scheme: str) -> None:  # noqa: F811
    with opened(browser, address, answer, scheme=scheme, width=360, height=900) as page:
        shown(page, "quota requests used up")
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        shot(page, "page-narrow" if scheme == "dark" else "")
        assert violations(page) == []


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_empty_page_says_what_to_type(browser: Any, address: str, scheme: str) -> None:  # noqa: F811
    with opened(browser, address, scheme=scheme, height=520) as page:
        shown(page, "No active program found")
        shown(page, "tidegate run python your_script.py")
        shot(page, "page-empty" if scheme == "light" else "")
        assert violations(page) == []


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_silent_server_leaves_the_page_grey_and_says_so(
    browser: Any,  # noqa: F811
    address: str,
    answer: Any,
    scheme: str,
) -> None:
    with opened(browser, address, answer, scheme=scheme) as page:
        assert page.locator(".stale").count() == 0
        # The samples stay the same, so the data gets old although the server answers.
        page.clock.run_for(20_000)
        page.locator(".stale").wait_for()
        shown(page, "not up to date")
        assert violations(page) == []


def test_a_program_that_has_ended_says_so_and_sends_no_more(browser: Any, address: str, answer: Any) -> None:  # noqa: F811
    def ended(since: int) -> Any:
        given = answer(since)
        given["runs"][0]["ended"] = True
        return given

    with opened(browser, address, ended) as page:
        program = page.locator(".program").first
        assert "ended after" in program.inner_text()
        assert program.locator(".state").all_inner_texts() == ["○ ended"] * program.locator("article").count()


def test_a_server_that_is_not_reached_is_named(browser: Any, address: str, answer: Any) -> None:  # noqa: F811
    asked: list[int] = []

    def silent_after_one(since: int) -> Any:
        asked.append(since)
        if len(asked) > 1:
            raise ConnectionError
        return answer(since)

    with opened(browser, address, silent_after_one) as page:
        page.clock.run_for(2_000)
        shown(page, "server not reached: it is asked again each second")
        shown(page, "gpt-5-mini")


def test_provenance_causes_and_countdowns_are_told(browser: Any, address: str, answer: Any) -> None:  # noqa: F811
    with opened(browser, address, answer) as page:
        text = page.locator("main").inner_text()
        for said in (
            "stated · now",
            "stated · 2 min ago",
            "inferred · 41 s ago",
            "saved",
            "assumed",
            "window assumed",
            "shared by 3 processes (file)",
            "p50 1.8 s · p99 6.4 s",
            "last in 2:22",
            "61 absorbed (22 rate, 39 overload)",
            "3 handed back (day)",
            "2 given up (rate)",
            "open, probe in 0:11",
            "provider down: next probe in 11 s",
            "requests cut 500 → 300 per min · 429: rate",
            "cooldown of 20 s; provider asked for 20 s · overload",
            "breaker opened; first probe after 9.0 s",
            "counts of process 51933 unreadable: it has 40 of 88192 bytes; they are not shown",
        ):
            assert said in text.replace("\u202f", " ").replace("\n", " "), said


def test_an_estimate_tells_which_processes_it_leaves_out(browser: Any, address: str, answer: Any) -> None:  # noqa: F811
    def partial(since: int) -> Any:
        given = answer(since)
        keys = [key for run in given["runs"] for key in run["keys"]]
        next(key for key in keys if key["eta"] is not None)["eta_without"] = 2
        return given

    with opened(browser, address, partial) as page:
        text = page.locator("main").inner_text().replace("\u202f", " ").replace("\n", " ")
        assert "last in 2:22, without 2 other processes" in text


def test_a_chart_has_a_label_and_a_table(browser: Any, address: str, answer: Any) -> None:  # noqa: F811
    with opened(browser, address, answer) as page:
        chart = page.get_by_role("img", name="requests per min: 496 used of 500")
        assert chart.count() == 1
        table = page.get_by_role("table", name="requests per min, the last minute").first
        assert table.get_by_role("row").count() == 8
        assert "496" in table.inner_text()


def test_the_keyboard_reaches_the_tabs_and_the_lists(browser: Any, address: str, answer: Any) -> None:  # noqa: F811
    with opened(browser, address, answer) as page:
        reached = []
        for _ in range(4):
            page.keyboard.press("Tab")
            reached.append(
                page.evaluate("document.activeElement.getAttribute('aria-label') ?? document.activeElement.innerText")
            )
        assert reached == ["Limits", "Experiments", "Changes, newest first", "Changes, newest first"]
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline not in ("", "none"), "the focus is not seen"


def test_text_of_programs_is_shown_as_text(browser: Any, address: str, answer: Any) -> None:  # noqa: F811
    def hostile(since: int) -> Any:
        given = answer(since)
        for run in given["runs"]:
            run["command"] = "<img src=x onerror=alert(1)><script>alert(1)</script>\u202e"
            for key in run["keys"]:
                key["key"] = "p · h · <b>m</b>"
        return given

    with opened(browser, address, hostile) as page:
        shown(page, "<img src=x onerror=alert(1)>")
        assert page.locator("main img, main script, h3 b").count() == 0
