"""Command `tidegate experiment init`: a first experiment that runs at once, and its rows."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from tidegate.cli.database_option import DATABASE
from tidegate.cli.errors import UNUSABLE, stop
from tidegate.experiments.commands.common import command

ROWS = "countries.jsonl"
"""File of the rows, beside the experiment."""

CAPITALS = {
    "Chad": "N'Djamena",
    "Mongolia": "Ulaanbaatar",
    "Peru": "Lima",
    "Slovenia": "Ljubljana",
    "Tonga": "Nuku'alofa",
}

DECLARED = f"""\
# A first experiment: a model names capitals, and judges its own answers. It needs OPENAI_API_KEY.
#
#     tidegate experiment run FILE --limit 2
#
# Without a key, try it against a simulated provider. Write the next line to scenario.json:
#
#     {{"answers": {{"Is this right or wrong?": "right"}}}}
#
# Start `tidegate simulate --scenario scenario.json`, and set the variables that it prints in the shell of the run.
# All other questions are only echoed, so a judge needs such an answer.
#
# `tidegate docs runner` explains every field.
name: capitals
dataset: {ROWS}          # beside this file: one JSON object a line, or a CSV file
repetitions: 1
task:
  provider: openai                # or anthropic, google; with a base_url azure, compatible
  model: gpt-5-mini
  prompt: What is the capital of {{country}}? Answer in one word.
evaluators:
  - name: judge
    provider: openai              # better a model of another provider
    model: gpt-5-mini
    prompt: |
      The question was: what is the capital of {{country}}? Expected: {{capital}}. Given: {{output}}.
      Is this right or wrong? Answer in one word.
    parse: label
    labels: {{right: 1, wrong: 0}}  # a label, and its score
"""

PROGRAM = f'''\
"""A first experiment: a model names capitals, and its answers are compared. It needs OPENAI_API_KEY.

    tidegate experiment run FILE --limit 2

`tidegate docs runner` explains the parts.
"""

from pathlib import Path

import openai

from tidegate.experiments import Experiment

client = openai.AsyncOpenAI()


async def answer(row):
    """Answer a row. The client needs no retry and no pacing: it is governed, and failed calls are tried again."""
    completion = await client.chat.completions.create(
        model="gpt-5-mini",
        messages=[{{"role": "user", "content": f"What is the capital of {{row['country']}}? Answer in one word."}}],
    )
    return completion.choices[0].message.content


def correct(row, output):
    """Judge an answer: True is the score 1. An evaluator may ask a model as well."""
    return row["capital"].lower() in output.lower()


experiment = Experiment(
    name="capitals",
    dataset=Path(__file__).with_name("{ROWS}"),
    task=answer,
    evaluators=[correct],
    credentials=["OPENAI_API_KEY"],
)
'''

STARTERS = {".yaml": DECLARED, ".yml": DECLARED, ".py": PROGRAM}
"""Texts of the experiment, by the suffix of its file."""


def write_starter(path: Path) -> None:
    """Write an experiment and its rows; end the command, and write neither, where one of the files exists."""
    text = STARTERS.get(path.suffix.lower())
    if text is None:
        raise stop(f"{path} not written: its suffix is not {', '.join(STARTERS)}; name a file with one", UNUSABLE)
    rows = path.with_name(ROWS)
    for each in (path, rows):
        if each.exists():
            raise stop(f"{path} not written: {each} exists already, and stays; name a file in another folder")
    lines = [
        json.dumps({"id": country.lower(), "country": country, "capital": CAPITALS[country]}) for country in CAPITALS
    ]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        rows.write_text("\n".join(lines) + "\n", "utf-8")
        path.write_text(text.replace("FILE", str(path), 1), "utf-8")
    except OSError as error:
        raise stop(f"{path} not written: {error.strerror or error}") from None
    run = command("run", str(path), DATABASE, "--limit", "2")
    typer.echo(f"{path} and {rows} written; with OPENAI_API_KEY set, {run} tries 2 of {len(lines)} rows")
