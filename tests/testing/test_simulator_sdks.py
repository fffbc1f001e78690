"""The real openai and anthropic SDKs, sync and async, against the simulator over loopback HTTP."""

from __future__ import annotations

import asyncio
import base64

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


def test_a_provider_may_count_other_tokens_than_quarters_of_characters():
    limits = (Limit(limit=100, unit="tokens"),)
    with Simulator(Scenario(chars_per_token=2.5, limiters=limits)) as provider, openai_client(provider) as client:
        answer = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x" * 100}])
        (level,) = next(iter(provider.truth().keys.values())).levels
    assert answer.usage.prompt_tokens == 40
    assert level.remaining == pytest.approx(60, abs=2)


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


def test_a_bound_on_the_output_cuts_the_answer_short(provider):
    with openai_client(provider) as client:
        chat = client.chat.completions.create(model="m", messages=ASK, max_completion_tokens=2)
        response = client.responses.create(model="m", input="2+2?", max_output_tokens=2)
    assert (chat.choices[0].finish_reason, chat.choices[0].message.content) == ("length", "It is 4,")
    assert chat.usage.completion_tokens == 2
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    with anthropic_client(provider) as client:
        message = client.messages.create(model="c", max_tokens=2, messages=ASK)
    assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 2)


def test_a_response_is_answered_whole_and_in_typed_events(provider):
    with openai_client(provider) as client:
        assert client.responses.create(model="m", input="2+2?").output_text == "It is 4, of course."
        with client.responses.stream(model="m", input=[{"role": "user", "content": "2+2?"}]) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_response()
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert final.output_text == "It is 4, of course."
    assert final.usage.output_tokens == 5


def test_the_same_text_has_the_same_embedding_in_both_encodings(provider):
    with openai_client(provider) as client:
        packed = client.embeddings.create(model="e", input=["a", "b", "a"])
        plain = client.embeddings.create(model="e", input="a", encoding_format="float", dimensions=3)
    first, second, third = (row.embedding for row in packed.data)
    assert first == third != second
    assert len(first) == 8
    assert first[:3] == pytest.approx(plain.data[0].embedding, abs=1e-6)


def test_moderations_and_images_are_answered_and_counted(provider):
    with openai.OpenAI(base_url=provider.openai_url, api_key="key") as client:
        before = provider.truth().total.answered
        one = client.moderations.create(input="a text")
        two = client.moderations.create(model="omni-moderation-latest", input=["a", "b"])
        mixed = client.moderations.create(input=[{"type": "text", "text": "a"}])
        images = client.images.generate(model="gpt-image-1", prompt="a cat", n=2)
    assert [len(each.results) for each in (one, two, mixed)] == [1, 2, 1]
    assert not one.results[0].flagged
    assert one.results[0].category_scores.self_harm == 0.0
    assert [base64.b64decode(each.b64_json)[1:4] for each in images.data] == [b"PNG", b"PNG"]
    assert images.usage.input_tokens == 2
    assert provider.truth().total.answered - before == 4


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


def test_models_are_listed_for_both_sdks_and_never_limited():
    with (
        Simulator(Scenario(limiters=(Limit(kind="credit", limit=0),))) as broke,
        openai_client(broke) as client,
        anthropic_client(broke) as other,
    ):
        assert "gpt-5-mini" in [model.id for model in client.models.list()]
        assert "claude-sonnet-5" in [model.id for model in other.models.list()]
        assert broke.truth().total.received == 0


def test_azure_answers_under_its_paths_and_counts_by_deployment():
    scenario = Scenario(limiters=(Limit(kind="fixed", limit=1, window=3600),))
    with Simulator(scenario) as provider:
        client = openai.AzureOpenAI(azure_endpoint=provider.url, api_key="key", api_version="2024-10-21", max_retries=0)
        with client:
            raw = client.chat.completions.with_raw_response.create(model="first", messages=ASK)
            client.chat.completions.create(model="second", messages=ASK)
            with pytest.raises(openai.RateLimitError, match="call rate limit of your current OpenAI S0"):
                client.chat.completions.create(model="first", messages=ASK)
    assert raw.parse().choices[0].message.content
    assert raw.headers["x-ratelimit-remaining-requests"] == "0"
    assert "x-ratelimit-reset-requests" not in raw.headers


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


def test_a_successful_answer_may_carry_a_meaningless_retry_after():
    with Simulator(Scenario(success_retry_after=True)) as provider, anthropic_client(provider) as client:
        raw = client.messages.with_raw_response.create(model="m", max_tokens=5, messages=ASK)
    assert 1 <= int(raw.headers["retry-after"]) <= 60


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


def test_errors_in_a_stream_are_raised_natively_by_openai():
    with Simulator(Scenario(faults=BROKEN, answers=ANSWERS)) as provider, openai_client(provider) as client:
        with pytest.raises(openai.APIError, match="The server had an error"):
            list(client.chat.completions.create(model="m", messages=ASK, stream=True))
        with pytest.raises((openai.APIConnectionError, openai.APIError)):
            list(client.chat.completions.create(model="m", messages=ASK, stream=True))
        assert list(client.chat.completions.create(model="m", messages=ASK, stream=True))
        provider.reset()
        with pytest.raises(openai.APIError, match="The server had an error"):
            list(client.responses.create(model="m", input="2+2?", stream=True))
        truth = provider.truth().total
    assert (truth.admitted, truth.broken, truth.answered, truth.in_flight) == (1, 1, 0, 0)


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


def test_whole_answers_may_fail_by_status_or_by_a_cut_connection():
    faults = (Fault(kind="status", nth=(1,), status=500), Fault(kind="drop", nth=(2,)))
    with Simulator(Scenario(faults=faults)) as provider, openai_client(provider) as client:
        with pytest.raises(openai.InternalServerError):
            client.chat.completions.create(model="m", messages=ASK)
        with pytest.raises(openai.APIConnectionError):
            client.chat.completions.create(model="m", messages=ASK)
        assert client.chat.completions.create(model="m", messages=ASK)
        assert provider.truth().total.broken == 2


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


def test_the_answer_may_be_made_by_a_callable_whose_errors_are_a_500():
    def answer(prompt):
        return {"What is 2+2?": "four"}[prompt]

    with Simulator(answer=answer) as provider, openai_client(provider) as client:
        assert client.chat.completions.create(model="m", messages=ASK).choices[0].message.content == "four"
        with pytest.raises(openai.InternalServerError, match="KeyError"):
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "?"}])
        assert provider.truth().total.in_flight == 0


def test_a_body_that_no_provider_takes_is_a_bad_request(provider):
    with openai_client(provider) as client, pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="m", messages="hello")
    with anthropic_client(provider) as client, pytest.raises(anthropic.NotFoundError):
        client.post("/v1/nothing", cast_to=object, body={})
