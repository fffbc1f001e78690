"""A time limit by `signal.alarm` around each call, as the judges of programming tasks have it."""

from __future__ import annotations

import signal

import openai
from kit import SERVER, govern, loop, text


class Late(Exception):
    pass


def ring(*_: object) -> None:
    raise Late


def main() -> None:
    client = govern(openai.OpenAI(base_url=SERVER + "/v1"))
    signal.signal(signal.SIGALRM, ring)

    def ask(row: int) -> object:
        for _ in range(9):
            signal.alarm(2)
            try:
                return client.chat.completions.create(model="m", messages=[{"role": "user", "content": text(row)}])
            except Late:
                continue
            finally:
                signal.alarm(0)
        raise Late

    loop(ask)


if __name__ == "__main__":
    main()
