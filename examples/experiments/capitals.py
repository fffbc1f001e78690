"""An experiment: a model names capitals, a model of another provider judges the answers, three times over.

    OPENAI_API_KEY=… ANTHROPIC_API_KEY=… tidegate experiment run examples/experiments/capitals.py

Ctrl-C stops it, `tidegate experiment run capitals` goes on. `killed_and_resumed.py` shows the same without keys.
"""

from pathlib import Path

import anthropic
import openai

from tidegate.experiments import Experiment

pupil = openai.AsyncOpenAI()
teacher = anthropic.AsyncAnthropic()


async def answer(row):
    """What the model says. No retries, no pacing, no semaphore: the client is governed, and what fails goes again."""
    completion = await pupil.chat.completions.create(
        model="gpt-5-mini",
        messages=[{"role": "user", "content": f"What is the capital of {row['country']}? Answer in one word."}],
    )
    return completion.choices[0].message.content


async def correct(row, output):
    """A score: 1 where the judge agrees. An answer that is no number is an error, and no score of 0."""
    message = await teacher.messages.create(
        model="claude-haiku-4-5",
        max_tokens=10,
        messages=[{"role": "user", "content": f"Is {output} the capital of {row['country']}? Answer 1 or 0."}],
    )
    return float(message.content[0].text)


def short(row, output):
    """An evaluator may be plain code."""
    return len(output.split()) == 1


experiment = Experiment(
    name="capitals",
    dataset=Path(__file__).with_name("countries.jsonl"),
    task=answer,
    evaluators=[correct, short],
    repetitions=3,
)
