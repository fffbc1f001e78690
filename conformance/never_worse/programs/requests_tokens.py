"""Tokens that a program renews at a 401: by hand over requests, or in the auth flow of an HTTP client below openai."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import httpx2
import openai
import requests
from kit import SERVER, gather, govern, option, text, threads, token

LIFE = 3.0


class Renewed(httpx2.Auth):
    def __init__(self) -> None:
        self.value = token(LIFE)

    def auth_flow(self, request: Any) -> Generator[Any, Any, None]:
        request.headers["authorization"] = f"Bearer {self.value}"
        answer = yield request
        if answer.status_code == 401:
            self.value = token(LIFE)
            request.headers["authorization"] = f"Bearer {self.value}"
            yield request


def by_hand() -> None:
    held = Renewed()
    session = govern(requests.Session())

    def ask(row: int) -> object:
        body = {"model": "m", "messages": [{"role": "user", "content": text(row)}]}
        for _ in range(3):
            headers = {"authorization": f"Bearer {held.value}"}
            answer = session.post(SERVER + "/v1/chat/completions", json=body, headers=headers)
            if answer.status_code != 401:
                break
            held.value = token(LIFE)
        answer.raise_for_status()
        return answer.json()

    threads(ask, 8)


def in_the_flow() -> None:
    carrier = openai.DefaultAsyncHttpxClient(auth=Renewed())
    client = govern(openai.AsyncOpenAI(base_url=SERVER + "/v1", api_key="unused", http_client=carrier))

    async def ask(row: int) -> object:
        return await client.chat.completions.create(model="m", messages=[{"role": "user", "content": text(row)}])

    gather(ask, 8)


if __name__ == "__main__":
    (by_hand if option(1) == "requests" else in_the_flow)()
