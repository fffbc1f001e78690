"""Every client of the process at once, whoever made it: an SDK's and a bare HTTP client, under one limit.

    OPENAI_API_KEY=… python examples/install_everything.py

`import tidegate.auto` does the same as an import.
"""

import os
from concurrent.futures import ThreadPoolExecutor

import httpx2
import openai

import tidegate


def main() -> None:
    # From here on every client is governed, also those that a library makes for itself. What is no call of a model
    # (other hosts, file uploads, lists of models) passes through untouched.
    tidegate.install()

    sdk = openai.OpenAI()
    base_url = os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1")
    bare = httpx2.Client(headers={"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}, timeout=60)

    def ask_sdk(number: int) -> str:
        completion = sdk.chat.completions.create(model="gpt-5-mini", messages=[question(number)])
        return completion.choices[0].message.content or ""

    def ask_bare(number: int) -> str:
        response = bare.post(
            f"{base_url}/chat/completions", json={"model": "gpt-5-mini", "messages": [question(number)]}
        )
        # No retry loop: a 429 for want of capacity does not arrive here, the call has waited instead.
        response.raise_for_status()
        return str(response.json()["choices"][0]["message"]["content"])

    with sdk, bare, ThreadPoolExecutor(max_workers=80) as pool:
        # The same key and the same model are the same limit, so both clients stand in one queue.
        asked = [pool.submit(ask_sdk if number % 2 else ask_bare, number) for number in range(80)]
        answers = [each.result() for each in asked]
    print(answers[0])
    print(f"{len(answers)} calls answered")


def question(number: int) -> openai.types.chat.ChatCompletionUserMessageParam:
    return {"role": "user", "content": f"Is {number} a prime number?"}


if __name__ == "__main__":
    main()
