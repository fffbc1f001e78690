"""Function that `spark_map.py` gives to `mapInPandas`. On a cluster, `--py-files spark_calls.py` sends it along."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import openai
import pandas as pd

import tidegate.auto  # noqa: F401


def ask(parts: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    with openai.OpenAI() as client, ThreadPoolExecutor(4) as threads:

        def answer(row: int) -> str | None:
            messages = [{"role": "user", "content": f"Say {row}."}]
            return client.chat.completions.create(model="gpt-5-mini", messages=messages).choices[0].message.content

        for part in parts:
            yield part.assign(said=list(threads.map(answer, part["id"])))
