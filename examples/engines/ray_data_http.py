"""Ray Data: the HTTP stage of `ray.data.llm` at a rate limit, where its first 429 ends the job by default.
`runtime_env` puts tidegate into the processes of the stage. There a call waits until it may go.

OPENAI_BASE_URL and OPENAI_API_KEY say who is asked. GOVERNED=0 leaves tidegate out.
"""

import os
from typing import Any

import ray
from ray.data.llm import HttpRequestProcessorConfig, build_processor

ROWS = 40
IN_STAGE = {"worker_process_setup_hook": "tidegate.install"}


def request(row: dict[str, Any]) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"Say {row['id']}."}]
    return {"payload": {"model": "gpt-5-mini", "messages": messages}}


def answer(row: dict[str, Any]) -> dict[str, Any]:
    return {"said": row["http_response"]["choices"][0]["message"]["content"]}


def main() -> None:
    ray.init(
        num_cpus=4,
        include_dashboard=False,
        logging_level="ERROR",
        object_store_memory=100_000_000,
        runtime_env=IN_STAGE if os.environ.get("GOVERNED") != "0" else {},
    )
    config = HttpRequestProcessorConfig(
        url=os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        headers={"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
        batch_size=10,
        concurrency=(2, 2),
    )
    ask = build_processor(config, preprocess=request, postprocess=answer)
    answers = ask(ray.data.range(ROWS)).take_all()
    print(f"{len(answers)} of {ROWS} rows answered")
    ray.shutdown()


if __name__ == "__main__":
    main()
