"""Bare clients of httpx and of httpx2, the same scenarios for both: mocked by the tools people use."""

from __future__ import annotations

import asyncio
import gc
import gzip
import pickle
import random
import sys
import weakref
from types import ModuleType
from typing import Any, NamedTuple

import httpx
import httpx2
import pytest
import respx

import tidegate
from tidegate.admission.registry import RateLimitRegistry
from tidegate.testing import Scenario, Simulator
from tidegate.transports import streams

CHAT = "https://provider.test/v1/chat/completions"
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(params=[httpx, httpx2], ids=["httpx", "httpx2"])
def module(request: pytest.FixtureRequest) -> ModuleType:
    return request.param


def mocked(module: ModuleType, handler: Any) -> Any:
    return module.Client(transport=module.MockTransport(handler))


def only(registry: RateLimitRegistry) -> Any:
    (key,) = registry.snapshot().keys.values()
    return key


def test_the_synthetic_answer_is_of_the_clients_own_module(module: ModuleType) -> None:
    registry = RateLimitRegistry(tidegate.Settings(max_concurrency=1))
    client = registry.wrap(mocked(module, lambda request: module.Response(200, json={})), max_wait=0)
    with client.stream("POST", CHAT, json=BODY):
        pass
    held = registry.try_admit(only(registry).key)
    assert held
    answer = client.post(CHAT, json=BODY)
    assert isinstance(answer, module.Response)
    assert answer.status_code == 429
    assert answer.headers["x-should-retry"] == "false"
    assert answer.elapsed.total_seconds() == 0
    assert answer.json()["error"]["code"] == "queue_deadline"
    with pytest.raises(module.HTTPStatusError):
        answer.raise_for_status()


def test_a_stream_gives_its_slot_back_when_the_body_has_been_read(module: ModuleType, registry: Any) -> None:
    def handler(request: Any) -> Any:
        return module.Response(200, content=iter([b"data: 1\n\n", b"data: [DONE]\n\n"]))

    with registry.wrap(mocked(module, handler)).stream("POST", CHAT, json=BODY) as response:
        assert only(registry).in_flight == 1
        assert response.read() == b"data: 1\n\ndata: [DONE]\n\n"
        assert only(registry).in_flight == 0
        assert response.elapsed.total_seconds() >= 0


def test_an_abandoned_stream_gives_its_slot_back_when_it_is_collected(module: ModuleType, registry: Any) -> None:
    def handler(request: Any) -> Any:
        return module.Response(200, content=iter([b"data: 1\n\n"]))

    client = registry.wrap(mocked(module, handler))
    response = client.send(client.build_request("POST", CHAT, json=BODY), stream=True)
    assert only(registry).in_flight == 1
    del response
    gc.collect()
    assert only(registry).in_flight == 0


def test_a_stream_that_has_ended_keeps_neither_its_client_nor_its_request(module: ModuleType, registry: Any) -> None:
    def handler(request: Any) -> Any:
        return module.Response(200, content=iter([b"data: 1\n\n"]))

    client = registry.wrap(mocked(module, handler))
    with client.stream("POST", CHAT, json=BODY) as response:
        response.read()
    gone = weakref.ref(client)
    del client
    gc.collect()
    assert response.content
    assert gone() is None


def test_a_stream_leaves_the_loop_no_generator_to_close(module: ModuleType, registry: Any) -> None:
    class Pieces(module.AsyncByteStream):  # type: ignore[misc, name-defined]
        async def __aiter__(self) -> Any:
            for piece in (b"data: 1\n\n", b"data: [DONE]\n\n"):
                yield piece

    async def read(client: Any) -> list[str]:
        left: list[str] = []
        kept = sys.get_asyncgen_hooks()

        def finalize(each: Any) -> None:
            left.append(each.ag_code.co_qualname)
            kept.finalizer(each)

        sys.set_asyncgen_hooks(kept.firstiter, finalize)
        async with client, client.stream("POST", CHAT, json=BODY) as response:
            async for _ in response.aiter_raw():
                break
            await response.aclose()
        for _ in range(10):
            await asyncio.sleep(0)
            gc.collect()
        sys.set_asyncgen_hooks(*kept)
        return left

    def made() -> Any:
        return module.AsyncClient(transport=module.MockTransport(lambda request: module.Response(200, stream=Pieces())))

    governed, plain = asyncio.run(read(registry.wrap(made()))), asyncio.run(read(made()))
    assert len(governed) <= len(plain), governed


def test_a_stream_that_breaks_gives_its_slot_back(module: ModuleType, registry: Any) -> None:
    def body() -> Any:
        yield b"data: 1\n\n"
        raise module.ReadError("reset")

    client = registry.wrap(mocked(module, lambda request: module.Response(200, content=body())))
    with client.stream("POST", CHAT, json=BODY) as response, pytest.raises(module.ReadError):
        response.read()
    assert (only(registry).in_flight, only(registry).failed) == (0, 1)


def test_an_error_under_a_200_is_waited_for_like_any_refusal(module: ModuleType, registry: Any) -> None:
    said = [{"error": {"code": "limit_burst_rate"}}, {"choices": [], "error": None}]
    client = registry.wrap(mocked(module, lambda request: module.Response(200, json=said.pop(0))))
    assert client.post(CHAT, json=BODY).json() == {"choices": [], "error": None}
    assert (only(registry).attempts, only(registry).refused, only(registry).answered) == (2, 1, 1)


def test_a_stream_that_is_complete_at_once_tells_its_reader_of_its_failure(module: ModuleType, registry: Any) -> None:
    said = b'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error"}}\n\n'
    client = registry.wrap(mocked(module, lambda request: module.Response(200, content=said)))
    with client.stream("POST", CHAT, json=BODY) as response:
        assert response.read() == said
    assert (only(registry).attempts, only(registry).in_flight) == (1, 0)


def test_a_permanent_error_under_a_200_is_handed_back_as_it_came(module: ModuleType, registry: Any) -> None:
    error = {"error": {"message": "no such model", "code": 404}}
    client = registry.wrap(mocked(module, lambda request: module.Response(200, json=error)))
    assert (client.post(CHAT, json=BODY).json(), only(registry).attempts) == (error, 1)


def test_a_complete_response_can_be_pickled(module: ModuleType, registry: Any) -> None:
    client = registry.wrap(mocked(module, lambda request: module.Response(200, json={"a": 1})))
    assert pickle.loads(pickle.dumps(client.post(CHAT, json=BODY))).json() == {"a": 1}


@pytest.mark.parametrize("stream", [False, True])
def test_multipart_and_json_bodies_are_sent_again_whole(module: ModuleType, registry: Any, stream: bool) -> None:
    bodies: list[bytes] = []

    def handler(request: Any) -> Any:
        bodies.append(request.read())
        return module.Response(429 if len(bodies) == 1 else 200, headers={"retry-after-ms": "1"}, json={})

    client = registry.wrap(mocked(module, handler))
    url = "https://provider.test/v1/audio/transcriptions"
    if stream:
        client.post(url, data={"model": "whisper"}, files={"file": b"sound"})
    else:
        client.post(CHAT, json=BODY)
    assert len(bodies) == 2
    assert bodies[0] == bodies[1]
    assert only(registry).key.scope == ("whisper" if stream else "m")


def test_a_get_and_an_endpoint_that_generates_nothing_pass_untouched(module: ModuleType, registry: Any) -> None:
    client = registry.wrap(mocked(module, lambda request: module.Response(429)))
    assert client.get(CHAT).status_code == 429
    assert client.post("https://provider.test/v1/files", json={}).status_code == 429
    assert registry.snapshot().keys == {}


def test_the_request_may_come_by_name_or_by_place(module: ModuleType, registry: Any) -> None:
    client = registry.wrap(mocked(module, lambda request: module.Response(200, json={})))
    request = client.build_request("POST", CHAT, json=BODY)
    client.send(request)
    client.send(request=request)
    assert only(registry).attempts == 2


def test_an_async_client_is_governed_on_trio_as_on_asyncio(module: ModuleType, registry: Any) -> None:
    import trio

    async def main() -> None:
        async with module.AsyncClient(
            transport=module.MockTransport(lambda request: module.Response(200, json={}))
        ) as client:
            await registry.wrap(client).post(CHAT, json=BODY)

    asyncio.run(main())
    trio.run(main)
    assert only(registry).attempts == 2


def test_a_closed_client_says_so_as_before(module: ModuleType, registry: Any) -> None:
    client = registry.wrap(mocked(module, lambda request: module.Response(200)))
    client.close()
    with pytest.raises(RuntimeError, match="closed"):
        client.post(CHAT, json=BODY)
    assert only(registry).in_flight == 0


def test_respx_still_intercepts_and_every_attempt_is_seen(registry: Any) -> None:
    with respx.mock:
        route = respx.post(CHAT).mock(
            side_effect=[httpx.Response(429, headers={"retry-after-ms": "1"}), httpx.Response(200)]
        )
        assert registry.wrap(httpx.Client()).post(CHAT, json=BODY).status_code == 200
    assert route.call_count == 2
    assert only(registry).attempts == 2


def test_pytest_httpx2_still_intercepts_and_every_attempt_is_seen(registry: Any, httpx2_mock: Any) -> None:
    route = httpx2_mock.post(CHAT).mock(
        side_effect=[httpx.Response(429, headers={"retry-after-ms": "1"}), httpx.Response(200)]
    )
    assert registry.wrap(httpx2.Client()).post(CHAT, json=BODY).status_code == 200
    assert route.call_count == 2
    assert only(registry).attempts == 2


def test_a_refusal_that_was_to_be_streamed_can_be_passed_on_as_it_came(module: ModuleType, registry: Any) -> None:
    raw = gzip.compress(b'{"error": {"message": "no"}}')

    def handler(request: Any) -> Any:
        return module.Response(400, headers={"content-encoding": "gzip"}, content=chunks())

    async def chunks() -> Any:
        yield raw

    def sync_handler(request: Any) -> Any:
        return module.Response(400, headers={"content-encoding": "gzip"}, content=iter([raw]))

    async def passed_on() -> bytes:
        async with registry.wrap(module.AsyncClient(transport=module.MockTransport(handler))) as client:
            response = await client.send(client.build_request("POST", CHAT, json=BODY), stream=True)
            return b"".join([chunk async for chunk in response.aiter_raw()])

    client = registry.wrap(mocked(module, sync_handler))
    response = client.send(client.build_request("POST", CHAT, json=BODY), stream=True)
    assert b"".join(response.iter_raw()) == raw
    response = client.send(client.build_request("POST", CHAT, json=BODY), stream=True)
    assert response.read() == b'{"error": {"message": "no"}}'
    assert asyncio.run(passed_on()) == raw


def test_a_stream_whose_headers_cannot_be_judged_is_handed_back_and_settled_once(
    module: ModuleType, registry: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judge(*facts: Any) -> Any:
        raise ArithmeticError

    monkeypatch.setattr("tidegate.providers.judge", judge)
    client = registry.wrap(mocked(module, lambda request: module.Response(200, content=iter([b"data: 1\n\n"]))))
    with client.stream("POST", CHAT, json=BODY) as response:
        assert response.read() == b"data: 1\n\n"
    assert only(registry).in_flight == 0


def test_a_hook_that_raises_for_the_status_does_not_hide_a_refusal(module: ModuleType, registry: Any) -> None:
    answers = [module.Response(429, headers={"retry-after": "0.01"}), module.Response(200, json={})]
    hooks = {"response": [lambda response: response.raise_for_status()]}
    transport = module.MockTransport(lambda request: answers.pop(0))
    client = registry.wrap(module.Client(transport=transport, event_hooks=hooks))
    assert client.post(CHAT, json=BODY).status_code == 200
    assert (only(registry).refused, only(registry).attempts) == (1, 2)


def test_an_address_is_kept_without_its_query(module: ModuleType, registry: Any) -> None:
    client = registry.wrap(mocked(module, lambda request: module.Response(200, json={})))
    for each in ("one", "two"):
        client.post(f"{CHAT}?key=secret-{each}", json=BODY)
    assert len(registry.routes) == 1
    assert "secret" not in repr(registry.routes)


class FiveParts(NamedTuple):
    """Parts of a URL as httpx 0.23 kept them: host and port in one."""

    scheme: str
    authority: str
    path: str
    query: str | None
    fragment: str | None

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"

    @property
    def host(self) -> str:
        return self.authority

    @property
    def userinfo(self) -> str:
        return ""

    @property
    def port(self) -> None:
        return None


def test_two_servers_with_one_path_have_keys_of_their_own_in_older_versions(registry: Any) -> None:
    client = registry.wrap(mocked(httpx, lambda request: httpx.Response(200, json={})))
    for host in ("one.test", "two.test"):
        request = client.build_request("POST", f"https://{host}/v1/chat/completions", json=BODY)
        request.url._uri_reference = FiveParts("https", host, "/v1/chat/completions", None, None)
        client.send(request)
    assert {key.base_url for key in registry.snapshot().keys} == {"https://one.test/v1", "https://two.test/v1"}


def test_a_wrapped_clients_address_governs_no_other_client(module: ModuleType, registry: Any) -> None:
    def answer(request: Any) -> Any:
        return module.Response(200, json={})

    registry.wrap(mocked(module, answer)).post(CHAT, json=BODY)
    tidegate.install(registry=registry)
    assert mocked(module, answer).post(CHAT, json=BODY).status_code == 200
    assert only(registry).attempts == 1


@pytest.mark.constants(MAX_REGISTRY_KEYS=4)
def test_no_more_addresses_are_kept_than_keys(module: ModuleType) -> None:
    registry = RateLimitRegistry(tidegate.Settings())
    client = registry.wrap(mocked(module, lambda request: module.Response(200, json={})))
    for number in range(12):
        client.post(f"https://host{number}.test/v1/chat/completions", json=BODY)
        assert len(registry.routes) <= 4


def test_a_stream_of_large_pieces_keeps_little_of_them(
    module: ModuleType, registry: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = [b"data: " + b"x" * size + b"\n\n" for size in (4000, 1000, 300) for _ in range(100)]
    kept: list[int] = []
    saw = streams.StreamWatch.keeping

    class Noted(bytearray):
        def __iadd__(self, chunk: Any) -> Any:
            kept.append(len(self))
            return super().__iadd__(chunk)

    def keeping(watch: streams.StreamWatch) -> Any:
        watch._seen = Noted()
        return saw(watch)

    monkeypatch.setattr(streams.StreamWatch, "keeping", keeping)
    client = registry.wrap(mocked(module, lambda request: module.Response(200, content=iter(pieces))))
    with client.stream("POST", CHAT, json={**BODY, "stream": True}) as response:
        assert b"".join(response.iter_raw()) == b"".join(pieces)
    assert len(kept) == 300
    assert max(kept) <= 10_000


def test_what_a_hook_sends_inside_an_attempt_passes_through(module: ModuleType, registry: Any) -> None:
    with Simulator(Scenario(headers=False)) as provider:
        url = f"{provider.url}/v1/chat/completions"
        inner = registry.wrap(module.Client())
        hooks = {"request": [lambda request: inner.post(url, json=BODY)]}
        outer = registry.wrap(module.Client(event_hooks=hooks))
        assert outer.post(url, json=BODY).status_code == 200
        assert provider.truth().total.received == 2
        inner.close()
        outer.close()
    assert only(registry).attempts == 1


@pytest.mark.parametrize("filler", [0, 1 << 18])
def test_the_usage_of_a_compressed_answer_that_is_streamed_is_read(
    module: ModuleType, registry: Any, filler: int
) -> None:
    noise = bytes(random.Random(0).choices(range(32, 34), k=filler)).replace(b'"', b"#")
    answer = b'{"text": "' + noise + b'", "usage": {"prompt_tokens": 9, "completion_tokens": 3}}'
    body = gzip.compress(answer)

    def pieces() -> Any:
        yield from (body[at : at + 1000] for at in range(0, len(body), 1000))

    headers = {"content-encoding": "gzip", "content-type": "application/json"}
    client = registry.wrap(mocked(module, lambda request: module.Response(200, headers=headers, content=pieces())))
    before = estimate_before(module)
    with client.stream("POST", CHAT, json=BODY) as response:
        assert b"".join(response.iter_raw()) == body
    assert only(registry).mean_output < before


def estimate_before(module: ModuleType) -> float:
    """The expected output of a key that has learned nothing."""
    registry = RateLimitRegistry(tidegate.Settings())
    registry.wrap(mocked(module, lambda request: module.Response(200, json={}))).post(CHAT, json=BODY)
    mean: float = only(registry).mean_output
    return mean
