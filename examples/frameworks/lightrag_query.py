"""LightRAG: 40 queries at once, without retrieval.

OPENAI_BASE_URL and OPENAI_API_KEY say who is asked.
"""

import asyncio
import json
import os
from pathlib import Path

import numpy as np
from lightrag import LightRAG, QueryParam
from lightrag.llm.openai import openai_complete
from lightrag.utils import EmbeddingFunc, Tokenizer

ROWS = [json.loads(line) for line in Path(__file__).with_name("rows.jsonl").open()]


class Letters:
    def encode(self, content: str) -> list[int]:
        return [ord(letter) for letter in content]

    def decode(self, tokens: list[int]) -> str:
        return "".join(map(chr, tokens))


async def embed(texts: list[str]) -> np.ndarray:
    return np.ones((len(texts), 8))


async def main() -> None:
    rag = LightRAG(
        working_dir="lightrag_storage",
        llm_model_func=openai_complete,
        llm_model_name="gpt-5-mini",
        llm_model_kwargs={"base_url": os.environ["OPENAI_BASE_URL"]},
        embedding_func=EmbeddingFunc(embedding_dim=8, max_token_size=8192, func=embed),
        tokenizer=Tokenizer("letters", Letters()),
    )
    await rag.initialize_storages()
    asked = (rag.aquery(row["question"], QueryParam(mode="bypass", stream=False)) for row in ROWS)
    answers = await asyncio.gather(*asked, return_exceptions=True)
    await rag.finalize_storages()
    right = sum(answer == row["answer"] for answer, row in zip(answers, ROWS, strict=True))
    print(f"{sum(isinstance(answer, str) for answer in answers)} of {len(ROWS)} rows answered, {right} right")


if __name__ == "__main__":
    asyncio.run(main())
