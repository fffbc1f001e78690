"""Sessions of aiohttp, against the simulator and a server that answers as it is told."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import threading
from typing import Any

import aiohttp
import pytest

import tidegate
from tests.transports.answering import ANSWER, BODY, Reply, Server, fine, only
from tests.transports.sessions import ask, run
from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.events import RequestFailed
from tidegate.core.values import Cause
from tidegate.testing import Limit, Scenario, Simulator
from tidegate.transports.sdk_hooks import is_given_up


def test_a_wrapped_session_answers_every_row_at_its_providers_limit(registry: RateLimitRegistry) -> None:
    async def evaluate(session: aiohttp.ClientSession, url: str) -> Any:
        async with session.post(url, json=BODY, headers={"authorization": "Bearer k"}) as response:
            if not response.ok:
                await response.text()
            response.raise_for_status()
            return await response.json()

    with Simulator(Scenario(limiters=(Limit(limit=1200, window=60.0),))) as provider:

        async def test(session: aiohttp.ClientSession) -> None:
            url = f"{provider.openai_url}/chat/completions"
            answers = await asyncio.gather(*(evaluate(session, url) for _ in range(40)))
            assert {answer["object"] for answer in answers} == {"chat.completion"}

        async def main() -> None:
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=4)) as session:
                await test(registry.wrap(session))

        asyncio.run(main())
        assert provider.truth().total.refusals == 0
    seen = only(registry)
    assert (seen.answered, seen.in_flight, seen.quotas[0].limit) == (40, 0, 1200)
    assert seen.mean_output < 256


def test_its_key_is_that_of_every_other_stack(registry: RateLimitRegistry) -> None:
    import httpx2

    with Server(fine) as server, registry.wrap(httpx2.Client()) as other:

        async def test(session: aiohttp.ClientSession) -> None:
            await ask(session, server.chat)

        other.post(server.chat, json=BODY, headers={"Authorization": "Bearer k"})
        run(registry, test, headers={"authorization": "Bearer k"})
    assert only(registry).attempts == 2


def test_a_credential_counts_wherever_it_is_given(registry: RateLimitRegistry) -> None:
    with Server(fine) as server:

        async def test(session: aiohttp.ClientSession) -> None:
            for headers in ({}, {"Authorization": "Bearer b"}, {}):
                await ask(session, "/v1/chat/completions", headers=headers)

        run(registry, test, base_url=server.chat.partition("v1/")[0], headers={"authorization": "Bearer a"})
        assert [headers["authorization"] for headers in server.headers] == ["Bearer a", "Bearer b", "Bearer a"]
    assert sorted(key.attempts for key in registry.snapshot().keys.values()) == [1, 2]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_name_and_a_password_are_credentials(registry: RateLimitRegistry) -> None:
    with Server(fine) as server:

        async def test(session: aiohttp.ClientSession) -> None:
            for name in "aab":
                await ask(session, server.chat, auth=aiohttp.BasicAuth(name, "p"))

        run(registry, test)
    assert sorted(key.attempts for key in registry.snapshot().keys.values()) == [1, 2]


def test_redirects_are_followed_under_one_slot(registry: RateLimitRegistry) -> None:
    def reply(number: int, path: str) -> Reply:
        return (307, {"location": "/v1/completions"}, b"") if number == 1 else (200, {}, ANSWER)

    with Server(reply) as server:

        async def test(session: aiohttp.ClientSession) -> None:
            async with session.post(server.chat, json=BODY) as response:
                assert (response.status, len(response.history)) == (200, 1)

        run(registry, test)
        assert server.seen == ["/v1/chat/completions", "/v1/completions"]
    assert only(registry).attempts == 1


class OwnResponse(aiohttp.ClientResponse):
    """A class of responses of the caller's."""


@pytest.mark.parametrize("response_class", [aiohttp.ClientResponse, OwnResponse])
def test_without_an_answer_before_the_deadline_there_is_a_429_of_its_own_kind(response_class: type) -> None:
    registry = RateLimitRegistry(tidegate.Settings(max_concurrency=1, max_wait=0))
    with Server(fine) as server:

        async def test(session: aiohttp.ClientSession) -> None:
            await ask(session, server.chat)
            assert registry.try_admit(only(registry).key)
            async with session.post(server.chat, json=BODY, params={"a": "b"}) as response:
                assert (type(response), response.status, response.ok) == (response_class, 429, False)
                assert response.headers["X-Should-Retry"] == "false"
                assert is_given_up(response)
                assert str(response.url) == f"{server.chat}?a=b"
                assert (await response.json())["error"]["code"] == "queue_deadline"
                assert "max_wait" in await response.text()
                assert "429 Too Many Requests" in repr(response)
                with pytest.raises(aiohttp.ClientResponseError, match="429") as raised:
                    response.raise_for_status()
                assert raised.value.request_info.method == "POST"
            unread = await session.post(server.chat, json=BODY)
            assert b"".join([line async for line in unread.content]).startswith(b'{"type": "error"')

        run(registry, test, response_class=response_class)
        assert len(server.seen) == 1


@pytest.mark.parametrize(
    ("url", "options", "error", "failed"),
    [
        ("http://127.0.0.1:9/v1/chat/completions", {}, aiohttp.ClientConnectorError, 1),
        ("nonsense://provider.test/v1/chat/completions", {}, (aiohttp.ClientError, AssertionError, ValueError), 0),
        ("http://127.0.0.1:9/v1/chat/completions", {"data": b"", "json": {}}, ValueError, 0),
    ],
    ids=["refused connection", "wrong scheme", "two bodies"],
)
def test_exceptions_come_through_unchanged_and_only_outages_count(
    registry: RateLimitRegistry, url: str, options: dict[str, Any], error: Any, failed: int
) -> None:
    async def test(session: aiohttp.ClientSession) -> None:
        with pytest.raises(error):
            await session.post(url, **{"json": BODY, **options})

    run(registry, test)
    assert (only(registry).in_flight, only(registry).failed) == (0, failed)


def test_a_timeout_is_the_callers_own_and_waiting_in_the_queue_is_no_part_of_it() -> None:
    registry = RateLimitRegistry(tidegate.Settings(max_concurrency=1))
    hold, timeout = threading.Event(), aiohttp.ClientTimeout(total=0.05)

    def slow(number: int, path: str) -> Reply:
        # On a busy machine the time may be over before the server is asked.
        if path.endswith("?first"):
            hold.wait(300)
        return fine(number, path)

    causes: list[Cause] = []
    registry.subscribe(lambda event: causes.append(event.cause) if isinstance(event, RequestFailed) else None)
    with Server(slow) as server:

        async def test(session: aiohttp.ClientSession) -> None:
            first = asyncio.ensure_future(session.post(f"{server.chat}?first", json=BODY))
            second = asyncio.ensure_future(session.post(server.chat, json=BODY, timeout=aiohttp.ClientTimeout(300)))
            await asyncio.sleep(0)
            assert only(registry).waiting == 1
            with pytest.raises(asyncio.TimeoutError):
                await first
            hold.set()
            assert await (await second).read() == ANSWER

        run(registry, test, timeout=timeout)
    assert (only(registry).failed, only(registry).answered, only(registry).in_flight) == (1, 1, 0)
    assert causes == [Cause.NONE]


def test_other_requests_of_a_wrapped_session_pass_through(registry: RateLimitRegistry) -> None:
    with Server(fine) as server:

        async def test(session: aiohttp.ClientSession) -> None:
            await ask(session, server.chat.replace("chat/completions", "files"))
            with tidegate.disabled():
                await ask(session, server.chat)

        run(registry, test)
        assert len(server.seen) == 2
    assert registry.snapshot().keys == {}


def test_a_method_and_a_url_count_in_every_form(registry: RateLimitRegistry) -> None:
    from yarl import URL

    with Server(fine) as server:

        async def test(session: aiohttp.ClientSession) -> None:
            await (await session.request("post", server.chat, json=BODY)).read()
            await (await session.request(method="POST", url=URL(server.chat), json=BODY)).read()
            await (await session._request(method="POST", str_or_url=server.chat, json=BODY)).read()

        run(registry, test)
    assert only(registry).attempts == 3


def test_a_session_is_wrapped_without_a_warning_in_development_mode() -> None:
    code = """
        import asyncio, aiohttp, tidegate
        from tidegate.transports.governance import BINDING
        async def main():
            asyncio.get_running_loop().slow_callback_duration = 60
            async with aiohttp.ClientSession() as session:
                assert tidegate.wrap(session) is session
                print(hasattr(session, BINDING))
        asyncio.run(main())
    """
    assert output(code, "-X", "dev", "-W", "error") == b"True\n"


def test_install_governs_every_session_and_uninstall_restores_them(registry: RateLimitRegistry) -> None:
    original = aiohttp.ClientSession._request

    async def main(url: str) -> None:
        async with aiohttp.ClientSession() as session:
            assert "aiohttp" in tidegate.install(registry)
            assert inspect.iscoroutinefunction(aiohttp.ClientSession._request)
            assert inspect.signature(aiohttp.ClientSession._request) == inspect.signature(original)
            await ask(session, url)
            await asyncio.to_thread(asyncio.run, elsewhere(url))
            tidegate.uninstall()
            await ask(session, url)

    async def elsewhere(url: str) -> None:
        async with aiohttp.request("POST", url, json=BODY) as response:
            assert response.status == 200

    with Server(fine) as server:
        asyncio.run(main(server.chat))
        assert len(server.seen) == 3
    assert only(registry).attempts == 2
    assert aiohttp.ClientSession._request is original


def test_install_governs_what_is_imported_later_and_imports_nothing() -> None:
    code = """
        import sys, tidegate
        tidegate.install()
        assert "aiohttp" not in sys.modules
        import aiohttp
        print(hasattr(aiohttp.ClientSession._request, "__wrapped__"))
    """
    assert output(code) == b"True\n"


def output(code: str, *options: str) -> bytes:
    lines = inspect.cleandoc(code)
    return subprocess.run([sys.executable, *options, "-c", lines], check=True, capture_output=True).stdout
