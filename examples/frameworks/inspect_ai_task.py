"""Inspect AI: a task of 40 samples, run with `inspect eval inspect_ai_task.py --model openai/gpt-5-mini`.

OPENAI_BASE_URL and OPENAI_API_KEY say who is asked.
"""

from pathlib import Path

from inspect_ai import Task, task
from inspect_ai.dataset import FieldSpec, json_dataset
from inspect_ai.scorer import match
from inspect_ai.solver import generate, system_message


@task
def products() -> Task:
    rows = Path(__file__).with_name("rows.jsonl")
    return Task(
        dataset=json_dataset(str(rows), FieldSpec(input="question", target="answer")),
        solver=[system_message("Answer with the number alone."), generate()],
        scorer=match(numeric=True),
    )
