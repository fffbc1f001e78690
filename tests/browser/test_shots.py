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


def overview(page: Any) -> list[str]:
    """Return the lines of the overview, each as one text."""
    rows = page.get_by_role("table", name="Keys, the worst first").locator("tbody tr").all_inner_texts()
    return [" ".join(row.replace("\u202f", "").split()) for row in rows]


def said(page: Any, element: str = "main") -> str:
    return " ".join(page.locator(element).first.inner_text().replace("\u202f", " ").split())


def test_a_key_whose_programs_have_ended_says_so(browser: Any, address: str, answer: Any) -> None:  # noqa: F811
    def ended(since: int) -> Any:
        given = answer(since)
        next(run for run in given["runs"] if run["pid"] == 51_907)["ended"] = True
        return given

    with opened(browser, address, ended) as page:
        assert not any("gemini" in row for row in overview(page))
        page.get_by_role("button", name="show 2 idle keys, 1 of ended programs").click()
        assert overview(page)[-1].startswith("○ gemini-2.5-flash")
        page.get_by_role("button", name="gemini-2.5-flash", exact=True).click()
        card = page.get_by_role("article", name="gemini")
        assert "ended after 1:30:12" in card.inner_text()
        assert card.locator(".state").inner_text() == "○ ended"


def test_the_overview_answers_why_until_when_and_what_helps(browser: Any, address: str, answer: Any) -> None:  # noqa: F811
    with opened(browser, address, answer) as page:
        down, quota, learned, open_ = overview(page)
        assert down.startswith("✕ gemini-2.5-flash")
        assert "provider down: next probe in 11 s what helps: check the base URL" in down
        assert down.endswith("57 unknown 1280 of 1500 requests/day")
        assert quota.startswith("◐ gpt-5-mini openai · api.openai.com · key 3fa81c · 2 programs quota requests used up")
        assert "or fewer of its 2 programs at once 1224 2:" in quota
        assert quota.endswith("496 of 500 requests/min")
        assert learned.startswith("◐ mistral-large-2")
        assert "learned rate reached: next call in 4.0 s" in learned
        assert learned.endswith("learned rate 6/min")
        assert open_.startswith("● claude-sonnet-4-5")
        assert "sending 0 – 21 of 50" in open_
        page.get_by_role("img", name="the last minute: 7 sent, 1 refused").wait_for()
        page.get_by_role("button", name="show 2 idle keys").click()
        assert len(overview(page)) == 6


def test_a_click_on_a_line_opens_and_closes_the_card(browser: Any, address: str, answer: Any) -> None:  # noqa: F811
    with opened(browser, address, answer) as page:
        card = page.get_by_role("article", name="claude-sonnet-4-5")
        assert card.count() == 0
        page.get_by_role("row").filter(has_text="claude-sonnet-4-5").get_by_text("sending").click()
        card.wait_for()
        line = page.get_by_role("button", name="claude-sonnet-4-5", exact=True)
        assert line.get_attribute("aria-expanded") == "true"
        line.click()
        card.wait_for(state="detached")


def test_a_shared_key_is_one_card_with_its_programs(browser: Any, address: str, answer: Any) -> None:  # noqa: F811
    with opened(browser, address, answer) as page:
        card = page.get_by_role("article", name="gpt-5-mini")
        assert card.count() == 1
        programs = card.get_by_role("list", name="Programs of this key").get_by_role("listitem").all_inner_texts()
        assert [text.replace("\u202f", "").split()[:2] for text in programs] == [
            ["python", "run_suite.py"],
            ["python", "judge.py"],
        ]
        assert "1 184 waiting" in programs[0].replace("\u202f", " ")
        assert "40 waiting" in programs[1]
        assert "4 870 of 6 128 answered" in said(page, "article[aria-label*='gpt-5-mini'] .facts")
        # What one of them counts includes what the others used.
        assert card.get_by_role("img", name="requests per min: 496 used of 500").count() == 1
        assert card.get_by_role("img", name="in flight: 34 of at most 40").count() == 1


def test_all_charts_of_a_card_tell_the_values_of_one_second(browser: Any, address: str, answer: Any) -> None:  # noqa: F811
    with opened(browser, address, answer) as page:
        card = page.get_by_role("article", name="gpt-5-mini")
        chart = card.locator(".u-over").nth(2)
        box = chart.bounding_box()
        chart.hover(position={"x": box["width"] * (600 - 372) / 600, "y": 20})
        told = " ".join(card.get_by_role("status").inner_text().replace("\u202f", " ").split())
        assert told.startswith("11:56:5")
        for text in (
            "of 500 requests",
            "of 200 k tokens",
            "sent and",
            "in flight",
            "1 224 waiting",
            "cooldown of 20 s",
        ):
            assert text in told, (text, told)
        shot(page, "")
        page.mouse.move(1, 1)
        card.get_by_role("status").wait_for(state="detached")


def test_the_keyboard_reads_the_charts(browser: Any, address: str, answer: Any) -> None:  # noqa: F811
    with opened(browser, address, answer) as page:
        card = page.get_by_role("article", name="mistral")
        card.get_by_role("group", name="Charts").focus()
        page.keyboard.press("ArrowLeft")
        assert card.get_by_role("status").inner_text().startswith("12:03:07")
        for _ in range(4):
            page.keyboard.press("PageUp")
        told = card.get_by_role("status").inner_text()
        assert told.startswith("12:02:27")
        assert "6 sent and 0 refused per min" in told
        page.keyboard.press("Escape")
        card.get_by_role("status").wait_for(state="detached")


def test_a_key_without_a_stated_limit_has_its_attempts_by_the_minute(browser: Any, address: str, answer: Any) -> None:  # noqa: F811
    with opened(browser, address, answer) as page:
        card = page.get_by_role("article", name="mistral")
        card.get_by_role("img", name="attempts per min: 7 sent, 1 refused, learned rate 6/min").wait_for()
        assert "learned rate cut 9/min → 6/min" in " ".join(card.inner_text().split())
        busy = page.get_by_role("article", name="gpt-5-mini")
        assert busy.get_by_role("img", name="attempts per s: ").count() == 1


def test_the_time_range_is_chosen_and_the_page_can_be_held(browser: Any, address: str, answer: Any) -> None:  # noqa: F811
    asked: list[int] = []

    def counted(since: int) -> Any:
        asked.append(since)
        return answer(since)

    with opened(browser, address, counted) as page:
        page.get_by_role("button", name="1 m", exact=True).click()
        assert page.get_by_role("button", name="1 m", exact=True).get_attribute("aria-pressed") == "true"
        assert page.get_by_role("button", name="10 m").get_attribute("aria-pressed") == "false"
        page.get_by_role("button", name="pause").click()
        page.clock.run_for(3_000)
        before = len(asked)
        page.clock.run_for(20_000)
        assert len(asked) == before
        shown(page, "paused, as of 12:03:07")
        assert page.locator(".stale").count() == 0
        with page.expect_request(f"**/api/limits?since={scene.SECONDS}"):
            page.get_by_role("button", name="paused: go on").click()


def test_the_filter_finds_model_host_program_and_state(browser: Any, address: str, answer: Any) -> None:  # noqa: F811
    with opened(browser, address, answer) as page:
        page.keyboard.press("/")
        for words, models in {
            "mistral": ["mistral-large-2"],
            "api.openai.com idle": ["text-embedding-3", "text-embedding-4"],
            "judge.py": ["gpt-5-mini", "mistral-large-2"],
            "DOWN": ["gemini-2.5-flash"],
        }.items():
            page.keyboard.press("ControlOrMeta+a")
            page.keyboard.type(words)
            assert [row.split()[1] for row in overview(page)] == models, words
        page.keyboard.type(" nothing")
        shown(page, "no key matches")


def test_a_finished_program_is_folded_with_its_end(browser: Any, address: str, answer: Any) -> None:  # noqa: F811
    with opened(browser, address, answer) as page:
        line = page.get_by_text("pytest evals")
        assert not line.is_visible()
        page.get_by_text("1 finished program").click()
        told = said(page, ".finished")
        assert "pytest evals ended 12:00:37 after 9:09 · 2 694 of 2 696 calls answered · 0 refusals · 79 % of" in told
        assert "9 251 of 10 622 calls answered" in said(page, "header")


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
        page.get_by_role("button", name="claude-sonnet-4-5", exact=True).click()
        text = page.locator("main").inner_text()
        for words in (
            "stated · now",
            "stated · 2 min ago",
            "inferred · 41 s ago",
            "saved",
            "assumed",
            "window assumed",
            "shared by 3 processes (file)",
            "p50 1.8 s · p99 6.4 s",
            "last in 2:27, without 1 other process",
            "61 sent again (22 rate, 39 overload)",
            "3 returned to the program (day)",
            "2 given up (rate)",
            "open, probe in 0:11",
            "provider down: next probe in 11 s",
            "requests cut 500 → 300 per min · 429: rate",
            "cooldown of 20 s; provider asked for 20 s · overload",
            "breaker opened; first probe after 9.0 s",
            "counts of process 51933 unreadable: it has 40 of 88192 bytes; they are not shown",
        ):
            assert words in " ".join(text.replace("\u202f", " ").split()), words


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
        for _ in range(11):
            page.keyboard.press("Tab")
            reached.append(
                page.evaluate("document.activeElement.getAttribute('aria-label') ?? document.activeElement.innerText")
            )
        assert reached[:9] == [
            *("Limits", "Experiments", "filter keys", "1 m", "10 m", "all", "pause"),
            *("gemini-2.5-flash", "gpt-5-mini"),
        ]
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
        assert page.locator("main img, main script, h2 b, th b").count() == 0
