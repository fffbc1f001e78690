"""Every route refuses every forged request, with every method; the page's own requests are answered."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Match, Mount, Route
from starlette.testclient import TestClient

from tidegate.experiments.screens.routes import experiment_routes
from tidegate.server.access_policy import ANSWER_HEADERS
from tidegate.server.app import RouteTable, create_app

HOST = "127.0.0.1:4780"
TOKEN = "the-token"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND")
OWN = {"host": HOST, "authorization": f"Bearer {TOKEN}", "content-type": "application/json"}

FORGED = {
    "rebound name": ({"host": "evil.example"}, 421),
    "rebound name with our port": ({"host": "evil.example:4780"}, 421),
    "our name with a suffix": ({"host": "127.0.0.1:4780.evil.example"}, 421),
    "another port": ({"host": "127.0.0.1:80"}, 421),
    "no host": ({"host": ""}, 421),
    "our host with a user": ({"host": f"evil@{HOST}"}, 421),
    "our host with a dot": ({"host": "127.0.0.1.:4780"}, 421),
    "our address as a number": ({"host": "2130706433:4780"}, 421),
    "our host without its port": ({"host": "127.0.0.1"}, 421),
    "another origin": ({"origin": "https://evil.example"}, 403),
    "another local server": ({"origin": "http://127.0.0.1:8000"}, 403),
    "our origin by https": ({"origin": f"https://{HOST}"}, 403),
    "our origin with a suffix": ({"origin": f"http://{HOST}.evil.example"}, 403),
    "an empty origin": ({"origin": ""}, 403),
    "no origin of a sandbox": ({"origin": "null"}, 403),
    "cross-site": ({"sec-fetch-site": "cross-site"}, 403),
    "same site, another port": ({"sec-fetch-site": "same-site"}, 403),
    "an unknown site": ({"sec-fetch-site": "same-origin, cross-site"}, 403),
}
NO_TOKEN = {
    "no token": "",
    "another token": "Bearer another",
    "another scheme": f"Basic {TOKEN}",
    "the token alone": TOKEN,
    "the token with a suffix": f"Bearer {TOKEN}x",
    "a part of the token": f"Bearer {TOKEN[:-1]}",
    "the token in capitals": f"Bearer {TOKEN.upper()}",
}


def app() -> Starlette:
    tables = [RouteTable([Route("/api/added/{number:int}", added)]), experiment_routes("no-such-folder/tidegate.db")]
    return create_app(hosts=(HOST, "localhost:4780"), token=TOKEN, runs=lambda: (), tables=tables)


def added(request: Request) -> JSONResponse:
    return JSONResponse({"number": request.path_params["number"]})


PUBLIC = {"/", "/static"}
"""Routes without data, which are answered without a token: the empty page and its files."""


def filled(route: BaseRoute) -> str:
    if isinstance(route, Mount):
        return f"{route.path}/app.js"
    assert isinstance(route, Route), "a route of another kind needs forged requests of its own"
    path = re.sub(r"{\w+:int}", "1", route.path)
    path = re.sub(r"{\w+(:\w+)?}", "x", path)
    scope = {"type": "http", "method": "GET", "path": path, "headers": []}
    assert route.matches(scope)[0] is not Match.NONE, "the path does not reach its route: its parameters are unknown"
    return path


def paths() -> Iterator[str]:
    """Every path of the application, one file of each folder, and two that do not exist."""
    yield from (filled(route) for route in app().routes)
    yield "/api/nothing"
    yield "/nothing"


def test_every_route_needs_the_token_or_has_no_data() -> None:
    found = {getattr(route, "path", "") for route in app().routes}
    assert {path for path in found if not path.startswith("/api/")} == PUBLIC
    assert {"/api/limits", "/api/added/{number:int}"} <= found


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(app()) as client:
        yield client


def asked(client: TestClient, method: str, path: str, headers: dict[str, str]) -> httpx.Response:
    return client.request(method, path, headers={**OWN, **headers})  # type: ignore[return-value]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("path", list(paths()))
def test_forged_requests_are_refused(client: TestClient, path: str, method: str) -> None:
    for name, (headers, status) in FORGED.items():
        answer = asked(client, method, path, headers)
        assert answer.status_code == status, name
        assert "refused" in answer.text or method == "HEAD", name


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("path", list(paths()))
def test_data_and_changes_need_the_token(client: TestClient, path: str, method: str) -> None:
    for name, given in NO_TOKEN.items():
        answer = asked(client, method, path, {"authorization": given})
        if path.startswith("/api/") or method not in ("GET", "HEAD"):
            assert answer.status_code == 401, name
        else:
            assert answer.status_code in (200, 404), name


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_a_change_needs_json(client: TestClient, kind: str) -> None:
    assert asked(client, "POST", "/api/limits", {"content-type": kind}).status_code == 415


@pytest.mark.parametrize("headers", [{}, {"origin": f"http://{HOST}"}, {"sec-fetch-site": "same-origin"},
                                     {"sec-fetch-site": "none"}, {"host": "localhost:4780"}])  # fmt: skip
def test_requests_of_the_page_are_answered(client: TestClient, headers: dict[str, str]) -> None:
    assert asked(client, "GET", "/api/limits", headers).json()["runs"] == []
    assert asked(client, "GET", "/", {**headers, "authorization": ""}).status_code == 200


def test_routes_of_a_table_are_answered(client: TestClient) -> None:
    assert asked(client, "GET", "/api/added/7", {}).json() == {"number": 7}


def test_two_hosts_are_refused(client: TestClient) -> None:
    answer = client.get("/", headers=[("host", HOST), ("host", "evil.example")])
    assert answer.status_code == 421


@pytest.mark.parametrize("path", list(paths()))
def test_every_answer_has_the_headers(client: TestClient, path: str) -> None:
    for headers in ({}, {"host": "evil.example"}, {"authorization": "no"}):
        answer = asked(client, "GET", path, headers)
        assert {name: answer.headers.get(name) for name in ANSWER_HEADERS} == dict(ANSWER_HEADERS)


async def broken(request: Request) -> JSONResponse:
    raise RuntimeError("a fault")


def test_an_answer_to_a_fault_has_the_headers_too() -> None:
    table = RouteTable([Route("/api/broken", broken)])
    faulty = create_app(hosts=(HOST,), token=TOKEN, runs=lambda: (), tables=[table])
    with TestClient(faulty, raise_server_exceptions=False) as client:
        answer = asked(client, "GET", "/api/broken", {})
    assert answer.status_code == 500
    assert "a fault" not in answer.text
    assert {name: answer.headers.get(name) for name in ANSWER_HEADERS} == dict(ANSWER_HEADERS)


def test_no_path_leaves_the_folder(client: TestClient) -> None:
    for path in ("/static/../server.py", "/static/%2e%2e/server.py", "/static//etc/passwd"):
        assert asked(client, "GET", path, {}).status_code in (404, 405)


@pytest.mark.parametrize("since", ["-1", "x", "1e3", "9" * 400, "²"])
def test_a_sample_that_is_no_number_is_refused(client: TestClient, since: str) -> None:
    answer = client.get("/api/limits", params={"since": since}, headers=OWN)
    assert answer.status_code == 400
    assert "since not usable" in answer.json()["error"]
