"""The real openai and anthropic SDKs, sync and async, against the simulator over loopback HTTP."""

from __future__ import annotations

import asyncio

import anthropic
import openai
import pytest

from tidegate.testing import Fault, Limit, OutageSpan, Scenario, Simulator

ANSWERS = {"2+2?": "It is 4, of course.", "capital of France?": "Paris."}
ASK = [{"role": "user", "content": "What is 2+2?"}]
BROKEN = (Fault(kind="stream-error", nth=(1,)), Fault(kind="stream-drop", nth=(2,)))


@pytest.fixture(scope="module")
def provider():
    with Simulator(Scenario(answers=ANSWERS, limiters=(Limit(limit=6000), Limit(limit=1e6, unit="tokens")))) as running:
        yield running


def openai_client(provider, **options):
    return openai.OpenAI(base_url=provider.openai_url, api_key="key", max_retries=0, **options)


def anthropic_client(provider, **options):
    return anthropic.Anthropic(base_url=provider.url, api_key="key", max_retries=0, **options)


def test_a_chat_is_answered_and_counted(provider):
    with openai_client(provider) as client:
        answer = client.chat.completions.create(model="gpt-5-mini", messages=ASK)
    assert answer.choices[0].message.content == "It is 4, of course."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens == 3
    assert answer.usage.total_tokens == 3 + 5
    assert answer._request_id.startswith("req_")


def test_a_streamed_chat_adds_up_and_ends_with_its_usage(provider):
    with openai_client(provider) as client:
        chunks = list(
            client.chat.completions.create(
                model="gpt-5-mini", messages=ASK, stream=True, stream_options={"include_usage": True}
            )
        )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "It is 4, of course."
    assert chunks[-1].usage.completion_tokens == 5
    assert chunks[-2].choices[0].finish_reason == "stop"


def test_a_message_is_answered_whole_and_streamed(provider):
    with anthropic_client(provider) as client:
        message = client.messages.create(model="claude-sonnet-5", max_tokens=50, messages=ASK, system="Be brief.")
        assert message.content[0].text == "It is 4, of course."
        assert (message.stop_reason, message.usage.input_tokens) == ("end_turn", 6)
        with client.messages.stream(model="claude-sonnet-5", max_tokens=50, messages=ASK) as stream:
            assert "".join(stream.text_stream) == "It is 4, of course."
            final = stream.get_final_message()
    assert final.usage.output_tokens == 5
    assert final.stop_reason == "end_turn"


def test_refusals_reach_the_sdks_as_their_own_errors_with_headers():
    with Simulator(Scenario(limiters=(Limit(limit=1, window=3600),))) as provider:
        with openai_client(provider) as client:
            client.chat.completions.create(model="m", messages=ASK)
            with pytest.raises(openai.RateLimitError) as refused:
                client.chat.completions.create(model="m", messages=ASK)
        assert refused.value.code == "rate_limit_exceeded"
        assert 3590 <= float(refused.value.response.headers["retry-after"]) <= 3600
        assert refused.value.response.headers["x-ratelimit-limit-requests"] == "1"
        with anthropic_client(provider) as client:
            client.messages.create(model="m2", max_tokens=5, messages=ASK)
            with pytest.raises(anthropic.RateLimitError) as throttled:
                client.messages.create(model="m2", max_tokens=5, messages=ASK)
        assert throttled.value.response.headers["anthropic-ratelimit-requests-remaining"] == "0"
        assert "of 1 requests per hour" in throttled.value.message


def test_money_and_outages_reach_the_sdks_as_their_own_errors():
    with Simulator(Scenario(limiters=(Limit(kind="credit", limit=0),))) as provider:
        with openai_client(provider) as client, pytest.raises(openai.RateLimitError) as poor:
            client.responses.create(model="m", input="x")
        assert poor.value.code == "insufficient_quota"
        with anthropic_client(provider) as client, pytest.raises(anthropic.BadRequestError, match="credit balance"):
            client.messages.create(model="m", max_tokens=5, messages=ASK)
        provider.configure(limiters=(), outage=3600, outage_status=529)
        with anthropic_client(provider) as client, pytest.raises(anthropic.OverloadedError):
            client.messages.create(model="m", max_tokens=5, messages=ASK)
        provider.configure(outages=[OutageSpan(start=0, end=1e6, status="drop")])
        with openai_client(provider) as client, pytest.raises(openai.APIConnectionError):
            client.responses.create(model="m", input="x")
        provider.configure(outages=[OutageSpan(start=0, end=1e6, status=502)])
        with openai_client(provider) as client, pytest.raises(openai.InternalServerError):
            client.responses.create(model="m", input="x")


def test_errors_in_a_stream_are_raised_natively_by_anthropic():
    with Simulator(Scenario(faults=BROKEN, answers=ANSWERS)) as provider, anthropic_client(provider) as client:
        with (
            pytest.raises(anthropic.APIStatusError, match="overloaded_error"),
            client.messages.stream(model="m", max_tokens=50, messages=ASK) as stream,
        ):
            stream.get_final_message()
        with (
            pytest.raises(Exception, match=r"(?i)incomplete|connection|peer") as dropped,
            client.messages.stream(model="m", max_tokens=50, messages=ASK) as stream,
        ):
            stream.get_final_message()
        assert not isinstance(dropped.value, AssertionError)
        with client.messages.stream(model="m", max_tokens=50, messages=ASK) as stream:
            assert stream.get_final_text() == "It is 4, of course."


def test_both_async_sdks_are_answered_plain_and_streamed(provider):
    async def main():
        async with openai.AsyncOpenAI(base_url=provider.openai_url, api_key="key", max_retries=0) as client:
            chats = await asyncio.gather(*(client.chat.completions.create(model="m", messages=ASK) for _ in range(20)))
            assert {chat.choices[0].message.content for chat in chats} == {"It is 4, of course."}
            stream = await client.chat.completions.create(model="m", messages=ASK, stream=True)
            pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
            assert "".join(pieces) == "It is 4, of course."
            assert (await client.responses.create(model="m", input="capital of France?")).output_text == "Paris."
            assert len((await client.embeddings.create(model="m", input="a")).data) == 1
        async with anthropic.AsyncAnthropic(base_url=provider.url, api_key="key", max_retries=0) as client:
            message = await client.messages.create(model="m", max_tokens=50, messages=ASK)
            assert message.content[0].text == "It is 4, of course."
            async with client.messages.stream(model="m", max_tokens=50, messages=ASK) as stream:
                assert (await stream.get_final_message()).usage.output_tokens == 5

    asyncio.run(main())
