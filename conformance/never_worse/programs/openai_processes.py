"""Rows in the processes of a pool; the first word is the start method."""

from __future__ import annotations

import multiprocessing

import openai
from kit import ROWS, SERVER, caught, govern, option, report, text


def ask(row: int) -> object:
    client = govern(openai.OpenAI(base_url=SERVER + "/v1"))
    client.chat.completions.create(model="m", messages=[{"role": "user", "content": text(row)}])
    return "ok"


def one(row: int) -> object:
    got = caught(ask, row)
    # An exception of the SDK holds its response, which no pipe carries.
    return type(got)(*got.args) if type(got) is ValueError else (RuntimeError(str(got)) if got != "ok" else got)


def main() -> None:
    with multiprocessing.get_context(option(1, "fork")).Pool(4) as pool:
        report(pool.map(one, range(ROWS)))


if __name__ == "__main__":
    main()
