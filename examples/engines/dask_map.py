"""Dask: four worker processes at one key. The preload reaches each worker; on the command line it is
`dask worker --preload tidegate.auto`.

OPENAI_BASE_URL and OPENAI_API_KEY say who is asked.
"""

import dask
import openai
from dask.distributed import Client, LocalCluster

ROWS = 120


def ask(row: int) -> str | None:
    with openai.OpenAI() as client:
        messages = [{"role": "user", "content": f"Say {row}."}]
        return client.chat.completions.create(model="gpt-5-mini", messages=messages).choices[0].message.content


def main() -> None:
    dask.config.set({"distributed.worker.preload": ["tidegate.auto"]})
    with (
        LocalCluster(n_workers=4, threads_per_worker=4, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        answers = client.gather(client.map(ask, range(ROWS)))
    print(f"{len(answers)} of {ROWS} rows answered")


if __name__ == "__main__":
    main()
