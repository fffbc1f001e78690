"""Answers whose form the request bounds, as the OpenAI SDK asks for them and reads them."""

from __future__ import annotations

from typing import Literal

import openai
import pytest
from pydantic import BaseModel, Field

from tidegate.testing import Scenario, Simulator

ASK = [{"role": "user", "content": "What is 2+2?"}]
ANSWERS = {"2+2?": "It is 4.", "3+3?": '{"answer": 6}'}


class Verdict(BaseModel):
    label: Literal["right", "wrong"]
    score: int = Field(ge=1, le=10)
    reason: str | None


TOOL = {
    "type": "function",
    "function": {"name": "weigh", "parameters": Verdict.model_json_schema()},
}
OTHER = {"type": "function", "function": {"name": "other", "parameters": {"type": "object", "properties": {}}}}
FLAT = {"type": "function", "name": "weigh", "parameters": Verdict.model_json_schema(), "strict": False}


@pytest.fixture(scope="module")
def client():
    with (
        Simulator(Scenario(answers=ANSWERS)) as running,
        openai.OpenAI(base_url=running.openai_url, api_key="key", max_retries=0) as client,
    ):
        yield client


def asked(text):
    return [{"role": "user", "content": text}]


def test_a_chat_with_a_schema_is_answered_with_its_smallest_instance(client):
    completion = client.chat.completions.parse(model="m", messages=ASK, response_format=Verdict)
    assert completion.choices[0].message.parsed == Verdict(label="right", score=1, reason="")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weigh"}}])
def test_a_chat_that_must_call_a_function_calls_it(client, choice):
    tools = [TOOL, OTHER] if choice == "required" else [OTHER, TOOL]
    completion = client.chat.completions.create(model="m", messages=ASK, tools=tools, tool_choice=choice)
    message = completion.choices[0].message
    assert completion.choices[0].finish_reason == "tool_calls"
    assert message.content is None
    assert message.tool_calls[0].function.name == "weigh"
    assert Verdict.model_validate_json(message.tool_calls[0].function.arguments).score == 1


def test_a_streamed_function_call_adds_up(client):
    with client.chat.completions.stream(
        model="m", messages=asked("3+3?"), tools=[TOOL], tool_choice="required"
    ) as stream:
        final = stream.get_final_completion()
    call = final.choices[0].message.tool_calls[0].function
    assert (call.name, call.arguments) == ("weigh", '{"answer": 6}')
    assert final.choices[0].finish_reason == "tool_calls"


def test_a_response_that_must_call_a_function_calls_it_and_answers_the_user_after_its_output(client):
    first = client.responses.create(model="m", input="2+2?", tools=[FLAT], tool_choice="required")
    (call,) = first.output
    assert (call.type, call.name) == ("function_call", "weigh")
    assert Verdict.model_validate_json(call.arguments).label == "right"
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "noted"}
    second = client.responses.create(model="m", input=[*asked("2+2?"), call.model_dump(), output], tools=[FLAT])
    assert second.output_text == "It is 4."


def test_a_streamed_function_call_of_a_response_adds_up(client):
    with client.responses.stream(model="m", input="3+3?", tools=[FLAT], tool_choice="required") as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[2:4] == ["response.output_item.added", "response.function_call_arguments.delta"]
    assert kinds[-3:] == [
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert (final.output[0].name, final.output[0].arguments) == ("weigh", '{"answer": 6}')


def test_after_a_tools_result_a_chat_still_answers_the_users_question(client):
    call = {"id": "c1", "type": "function", "function": {"name": "weigh", "arguments": "{}"}}
    told = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "noted"},
    ]
    completion = client.chat.completions.create(model="m", messages=told, tools=[TOOL])
    assert completion.choices[0].message.content == "It is 4."
