"""pytest-xdist: tests that ask a model, in four worker processes at one key.

    pytest -n 4 xdist_calls.py

OPENAI_BASE_URL and OPENAI_API_KEY say who is asked.
"""

import openai
import pytest

import tidegate.auto  # noqa: F401

ROWS = 120


@pytest.mark.parametrize("row", range(ROWS))
def test_a_row_is_answered(row: int) -> None:
    with openai.OpenAI() as client:
        messages = [{"role": "user", "content": f"Say {row}."}]
        assert client.chat.completions.create(model="gpt-5-mini", messages=messages).choices[0].message.content
