"""Programs that ask a provider: a module `ask` for tests to write beside them, and one with an event loop."""

ASK = """
import functools, os, httpx

def client(kind=httpx.Client):
    return kind(base_url=os.environ["URL"] + "/v1", headers={"authorization": "Bearer k"}, timeout=600)

shared = functools.cache(client)

def body(row):
    return {"model": "m", "user": str(row), "messages": [{"role": "user", "content": "hi"}]}

def choices(answer):
    return len(answer.raise_for_status().json()["choices"])

def ask(row, made=None):
    return choices((made or shared()).post("/chat/completions", json=body(row)))

async def ask_async(made, row):
    return choices(await made.post("/chat/completions", json=body(row)))

def ask_all(rows):
    with client() as made:
        return sum(ask(row, made) for row in rows)
"""

ASYNC = """
import asyncio, httpx
from ask import client, ask_async

async def main(rows):
    async with client(httpx.AsyncClient) as made:
        return sum(await asyncio.gather(*(ask_async(made, row) for row in rows)))

if __name__ == "__main__":
    print(asyncio.run(main(range(24))))
"""
