"""Sessions of requests, against the simulator and a server that answers as it is told."""

from __future__ import annotations

import gc
import io
import json
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests

import tidegate
from tests.transports.answering import ANSWER, BODY, EVENTS, Reply, Server, fine, only, refused_at_first, streaming
from tidegate.admission.registry import RateLimitRegistry
from tidegate.testing import Limit, Scenario, Simulator


class Refusing(requests.adapters.BaseAdapter):
    """Reaches nobody."""

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        raise requests.ConnectionError(request=request)

    def close(self) -> None: ...


@pytest.fixture
def session(registry: RateLimitRegistry) -> Iterator[requests.Session]:
    with requests.Session() as session:
        yield registry.wrap(session)


def test_a_wrapped_session_answers_every_row_at_its_providers_limit(registry: RateLimitRegistry) -> None:
    with Simulator(Scenario(limiters=(Limit(limit=1200, window=60.0),))) as provider:
        with registry.wrap(requests.Session()) as session:
            url = f"{provider.openai_url}/chat/completions"
            answers = [session.post(url, json=BODY, headers={"authorization": "Bearer k"}) for _ in range(40)]
        assert {answer.status_code for answer in answers} == {200}
        assert provider.truth().total.refusals == 0
    assert (only(registry).answered, only(registry).quotas[0].limit) == (40, 1200)


def test_a_credential_in_the_query_is_part_of_its_key(registry: RateLimitRegistry) -> None:
    session = registry.wrap(requests.Session())
    session.mount("https://", Refusing())
    for credential in ("a", "a", "b"):
        with pytest.raises(requests.ConnectionError):
            session.post(
                f"https://generativelanguage.googleapis.com/v1beta/models/g:generateContent?key={credential}", json={}
            )
    assert [key.attempts for key in registry.snapshot().keys.values()] == [2, 1]


def test_its_key_is_that_of_every_other_stack(registry: RateLimitRegistry, session: requests.Session) -> None:
    import httpx2

    with Server(fine) as server, registry.wrap(httpx2.Client()) as other:
        for client in (session, other):
            client.post(server.chat, json=BODY, headers={"Authorization": "Bearer k"})
    assert only(registry).attempts == 2


def test_a_refusal_is_waited_out_below_the_session(registry: RateLimitRegistry, session: requests.Session) -> None:
    with Server(refused_at_first) as server:
        assert session.post(server.chat, json=BODY).json()["choices"] == []
        assert len(server.seen) == 2
    assert (only(registry).refused, only(registry).answered) == (1, 1)


@pytest.mark.parametrize("body", [iter([b'{"model": "m"}'])], ids=["generator"])
def test_a_body_that_can_be_sent_only_once_is_handed_back(session: requests.Session, body: Any) -> None:
    with Server(refused_at_first) as server:
        answer = session.post(server.chat, data=body)
    assert (answer.status_code, len(server.seen)) == (429, 1)
    assert "x-should-retry" not in answer.headers


@pytest.mark.parametrize(
    "body",
    [{"json": BODY}, {"data": json.dumps(BODY)}, {"data": json.dumps(BODY).encode()}],
    ids=["json", "str", "bytes"],
)
def test_bodies_are_read_in_every_form(
    registry: RateLimitRegistry, session: requests.Session, body: dict[str, Any]
) -> None:
    with Server(fine) as server:
        session.post(server.chat, **body)
    assert only(registry).key.scope == "m"


def read_in_chunks(answer: requests.Response) -> None:
    assert b"".join(answer.iter_content(16)) == EVENTS


def read_in_lines(answer: requests.Response) -> None:
    assert len(list(answer.iter_lines())) == 8


def read_whole(answer: requests.Response) -> None:
    assert answer.content == EVENTS


def read_raw(answer: requests.Response) -> None:
    while answer.raw.read(16):
        pass


def close(answer: requests.Response) -> None:
    answer.close()


@pytest.mark.parametrize("ends", [read_in_chunks, read_in_lines, read_whole, read_raw, close])
def test_a_stream_holds_its_slot_and_gives_it_back(
    registry: RateLimitRegistry, session: requests.Session, ends: Callable[[requests.Response], None]
) -> None:
    with Server(streaming) as server:
        answer = session.post(server.chat, json=BODY, stream=True)
        assert only(registry).in_flight == 1
        ends(answer)
        assert (only(registry).in_flight, only(registry).abandoned) == (0, 0)


def test_an_abandoned_stream_gives_its_slot_back_when_it_is_collected(
    registry: RateLimitRegistry, session: requests.Session
) -> None:
    with Server(streaming) as server:
        answer = session.post(server.chat, json=BODY, stream=True)
        gone = weakref.ref(answer)
        answer.raw.drain_conn()
        del answer
        gc.collect()
    assert gone() is None
    assert only(registry).in_flight == 0


def test_an_error_inside_a_stream_teaches_the_controller(
    registry: RateLimitRegistry, session: requests.Session
) -> None:
    failing = b'data: {"error": {"type": "rate_limit_error", "code": "rate_limit_exceeded", "message": "slow"}}\n\n'
    with Server(lambda number, path: (200, {}, failing)) as server:
        answer = session.post(server.chat, json=BODY, stream=True)
        assert answer.content == failing
    assert (only(registry).refused, only(registry).in_flight) == (1, 0)


def test_redirects_are_followed_under_one_slot(registry: RateLimitRegistry, session: requests.Session) -> None:
    def reply(number: int, path: str) -> Reply:
        return (307, {"location": "/v1/completions"}, b"") if number == 1 else (200, {}, ANSWER)

    with Server(reply) as server:
        assert session.post(server.chat, json=BODY).status_code == 200
        assert server.seen == ["/v1/chat/completions", "/v1/completions"]
    assert only(registry).attempts == 1


def test_without_an_answer_before_the_deadline_there_is_a_429_of_its_own_kind() -> None:
    registry = RateLimitRegistry(tidegate.Settings(max_concurrency=1))
    with Server(fine) as server, registry.wrap(requests.Session(), max_wait=0) as session:
        session.post(server.chat, json=BODY)
        assert registry.try_admit(only(registry).key)
        for stream in (False, True):
            answer = session.post(server.chat, json=BODY, stream=stream)
            assert (type(answer), answer.status_code, answer.ok) == (requests.Response, 429, False)
            assert answer.headers["x-should-retry"] == "false"
            assert answer.json()["error"]["code"] == "queue_deadline"
            with pytest.raises(requests.HTTPError, match="429"):
                answer.raise_for_status()
        assert len(server.seen) == 1


@pytest.mark.parametrize(
    ("url", "options", "error"),
    [
        ("http://127.0.0.1:9/v1/chat/completions", {}, requests.ConnectionError),
        ("nonsense://provider.test/v1/chat/completions", {}, requests.exceptions.InvalidSchema),
    ],
)
def test_exceptions_come_through_unchanged_and_only_outages_count(
    registry: RateLimitRegistry,
    session: requests.Session,
    url: str,
    options: dict[str, Any],
    error: type[Exception],
) -> None:
    with pytest.raises(error):
        session.post(url, json=BODY, **options)
    seen = only(registry)
    assert (seen.in_flight, seen.failed) == (0, int(error is requests.ConnectionError))


def test_other_requests_of_a_wrapped_session_pass_through(
    registry: RateLimitRegistry, session: requests.Session
) -> None:
    with Server(fine) as server:
        session.post(server.chat.replace("chat/completions", "files"), data=b"x")
    assert registry.snapshot().keys == {}


def test_install_governs_plain_functions_and_uninstall_restores_them(registry: RateLimitRegistry) -> None:
    original = requests.Session.send
    with Server(fine) as server:
        assert "requests" in tidegate.install(registry)
        requests.post(server.chat, json=BODY)
        tidegate.uninstall()
        requests.post(server.chat, json=BODY)
    assert only(registry).attempts == 1
    assert requests.Session.send is original


def test_install_governs_what_is_imported_later_and_imports_nothing() -> None:
    code = """
        import sys, tidegate
        tidegate.install()
        assert "requests" not in sys.modules
        import requests
        print(hasattr(requests.Session.send, "__wrapped__"))
    """
    lines = "\n".join(line.strip() for line in code.splitlines())
    assert subprocess.run([sys.executable, "-c", lines], check=True, capture_output=True).stdout == b"True\n"


def test_a_hook_that_raises_for_the_status_does_not_hide_a_refusal(registry: RateLimitRegistry) -> None:
    statuses = [429, 200]

    class Scripted(requests.adapters.BaseAdapter):
        def send(self, request: Any, *args: Any, **kwargs: Any) -> Any:
            response = requests.Response()
            response.status_code, response.request, response.raw = statuses.pop(0), request, io.BytesIO(b"{}")
            response.headers["retry-after"] = "0.01"
            return response

        def close(self) -> None: ...

    with registry.wrap(requests.Session()) as session:
        session.mount("https://", Scripted())
        session.hooks["response"].append(lambda response, **options: response.raise_for_status())
        assert session.post("https://provider.test/v1/chat/completions", json=BODY).status_code == 200
    assert (only(registry).refused, only(registry).attempts) == (1, 2)
