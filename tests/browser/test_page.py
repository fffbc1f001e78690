"""The page in a real browser: its token, and the calls that the simulator has counted."""

from __future__ import annotations

import http.server
import importlib
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

import tidegate
from tests.ui.test_serve import PATIENCE, served
from tidegate.admission import hooks
from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.token_totals import dollars
from tidegate.providers import ModelPrice
from tidegate.testing import Distribution, Limit, Scenario, Simulator

pytestmark = pytest.mark.real

EMPTY = "No active program found"
WIDTHS = (360, 768, 1600)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    program = shutil.which("chromium")
    assert program is not None, "chromium not found: `make test-real` installs it"
    with importlib.import_module("playwright.sync_api").sync_playwright() as started:
        rebound = "--host-resolver-rules=MAP evil.example 127.0.0.1"
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox", rebound])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A tab of its own; an error of the page's code fails the test."""
    context = browser.new_context()
    context.set_default_timeout(PATIENCE * 1000)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    context.close()
    assert errors == []


def shown(page: Any, text: str) -> None:
    page.get_by_text(text).first.wait_for(state="visible", timeout=PATIENCE * 1000)


def test_the_token_leaves_the_location_and_a_reload_keeps_it(page: Any, tmp_path: Path) -> None:
    with served(tmp_path, "--port", "0") as (url, token, _):
        page.goto(f"{url}#{token}")
        shown(page, EMPTY)
        assert page.url == url
        page.reload()
        shown(page, EMPTY)


def test_a_visit_without_the_token_is_told_what_to_open(page: Any, tmp_path: Path) -> None:
    with served(tmp_path, "--port", "0") as (url, _, _):
        page.goto(url)
        shown(page, "token missing: open the whole URL that tidegate serve printed")


def test_a_token_given_to_an_open_page_is_taken(page: Any, tmp_path: Path) -> None:
    with served(tmp_path, "--port", "0") as (url, token, _):
        page.goto(f"{url}#of-an-earlier-start")
        shown(page, "token not valid")
        page.goto(f"{url}#{token}")
        shown(page, EMPTY)
        assert page.url == url


def test_the_page_shows_what_the_provider_counted(page: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(hooks, "on_new_queue", None)
    monkeypatch.setattr("tidegate.providers._prices._added", {(None, "m"): ModelPrice(2_000.0, 3_000.0)})
    registry = RateLimitRegistry(tidegate.Settings())
    # A program writes its quotas at the end of a call, at most twice a second.
    slow = Distribution.constant(0.6)
    limit = Limit(kind="fixed", limit=100, window=3600.0)
    with Simulator(Scenario(limiters=(limit,), latency=slow)) as provider:
        with openai.OpenAI(api_key="k", base_url=provider.openai_url) as client:
            registry.wrap(client)
            for _ in range(5):
                client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hello"}])
        counted = provider.truth().total
        assert (counted.admitted, counted.refused) == (5, {})
        with served(tmp_path, "--port", "0") as (url, token, _):
            page.goto(f"{url}#{token}")
            shown(page, "5 of 5 calls answered")
            spent = registry.snapshot().tokens
            assert (spent.metered, spent.priced) == (5, 5)
            facts = page.locator("dl.facts div").filter(has=page.get_by_text("tokens", exact=True)).first
            assert " ".join(facts.inner_text().split()) == (
                f"tokens {spent.input_tokens} in · {spent.output_tokens} out · {dollars(spent.cost or 0.0)}"
            )
            page.get_by_role("img", name="requests per min: 5 used of 100, 95 left").wait_for()
            shown(page, "stated")
            shown(page, "window inferred")
            page.get_by_text("requests learned: 100 per min · stated by headers").wait_for()
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme)
                for width in WIDTHS:
                    page.set_viewport_size({"width": width, "height": 700})
                    assert page.evaluate("document.documentElement.scrollWidth") == width


MOST_BYTES = 180_000
"""Bytes of the first page and all that it loads."""


def test_the_first_page_is_small_and_of_this_server_alone(page: Any, tmp_path: Path) -> None:
    answers: list[Any] = []
    page.on("response", lambda answer: answers.append(answer))
    with served(tmp_path, "--port", "0") as (url, token, _):
        page.goto(f"{url}#{token}")
        shown(page, EMPTY)
        assert all(answer.url.startswith(url) for answer in answers)
        assert sum(len(answer.body()) for answer in answers) <= MOST_BYTES
        assert not any("experiments.js" in answer.url for answer in answers)


class Elsewhere(http.server.BaseHTTPRequestHandler):
    """Another local server, with an empty page."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>elsewhere</title>")

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def elsewhere() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_a_page_of_another_origin_gets_nothing(page: Any, tmp_path: Path, elsewhere: str) -> None:
    with served(tmp_path, "--port", "0") as (url, token, _):
        page.goto(elsewhere)
        send = "async ([url, init]) => { try { return (await fetch(url, init)).type } catch { return 'blocked' } }"
        for mode, body in (("cors", None), ("no-cors", None), ("no-cors", "{}")):
            init = {"mode": mode, **({"method": "POST", "body": body} if body else {})}
            assert page.evaluate(send, [f"{url}api/limits", init]) == "blocked"
        with_token = {"headers": {"authorization": f"Bearer {token}"}}
        assert page.evaluate(send, [f"{url}api/limits", with_token]) == "blocked"


def test_a_name_that_is_rebound_to_this_machine_gets_nothing(page: Any, tmp_path: Path) -> None:
    with served(tmp_path, "--port", "0") as (url, token, _):
        port = url.rstrip("/").rpartition(":")[2]
        answer = page.goto(f"http://evil.example:{port}/#{token}")
        assert answer.status == 421
        assert page.locator("#page").count() == 0


def test_the_page_stays_within_its_policy(page: Any, tmp_path: Path) -> None:
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    with served(tmp_path, "--port", "0") as (url, token, _):
        page.goto(f"{url}#{token}")
        shown(page, EMPTY)
        broken = page.evaluate(
            "() => { try { document.body.innerHTML = '<b>x</b>'; return '' } catch (e) { return e.name } }"
        )
        assert broken == "TypeError"
    assert [text for text in said if "TrustedHTML" not in text] == []
