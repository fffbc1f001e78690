"""A worker of a job queue of your own, in SQLite: a lack of capacity never makes a job poison.

    OPENAI_API_KEY=… python examples/queue_worker.py

The queue and its worker are yours; tidegate says what to do after a failure, and holds every call at the limit.
"""

import os
import sqlite3
import time

import openai

import tidegate

TARGET = "openai/gpt-5-mini"
JOBS = """CREATE TABLE jobs (id INTEGER PRIMARY KEY, question TEXT, answer TEXT, error TEXT, attempts INTEGER DEFAULT 0,
    status TEXT DEFAULT 'pending', not_before REAL DEFAULT 0, claimed_by INTEGER, claimed_at REAL)"""
CLAIM = """UPDATE jobs SET status = 'running', claimed_by = :worker, claimed_at = :now WHERE id = (
    SELECT id FROM jobs WHERE status = 'pending' AND not_before <= :now ORDER BY id LIMIT 1) RETURNING *"""
DONE = "UPDATE jobs SET status = 'done', answer = :answer, error = NULL WHERE id = :id"
REQUEUE = """UPDATE jobs SET status = 'pending', error = NULL, attempts = :attempts, not_before = :not_before,
    claimed_by = NULL, claimed_at = NULL WHERE id = :id"""
RETRY = """UPDATE jobs SET status = 'pending', error = :error, attempts = :attempts,
    claimed_by = NULL, claimed_at = NULL WHERE id = :id"""
POISON = "UPDATE jobs SET status = 'poison', error = :error, attempts = :attempts WHERE id = :id"


def work(queue: sqlite3.Connection, client: openai.OpenAI, suspensions: tidegate.Suspensions) -> None:
    """Work until no job is left that may be claimed now."""
    while suspensions.suspended(TARGET) is None:
        job = queue.execute(CLAIM, {"worker": os.getpid(), "now": time.time()}).fetchone()
        if job is None:
            return
        try:
            answer = client.responses.create(model="gpt-5-mini", input=job["question"]).output_text
        except Exception as error:
            decision = tidegate.after_failure(error, attempts=job["attempts"], target=TARGET, suspensions=suspensions)
            not_before = decision.not_before.timestamp() if decision.not_before is not None else 0.0
            facts = {"id": job["id"], "attempts": decision.attempts, "error": decision.reason, "not_before": not_before}
            queue.execute({"requeue": REQUEUE, "retry": RETRY, "poison": POISON}[decision.action], facts)
        else:
            queue.execute(DONE, {"id": job["id"], "answer": answer})


def main() -> None:
    queue = sqlite3.connect(os.environ.get("QUEUE", ":memory:"), isolation_level=None)
    queue.row_factory = sqlite3.Row
    if not queue.execute("SELECT 1 FROM sqlite_master WHERE name = 'jobs'").fetchone():
        queue.execute(JOBS)
        queue.executemany("INSERT INTO jobs (question) VALUES (?)", [(f"Spell {number}.",) for number in range(60)])
    suspensions = tidegate.Suspensions(os.environ.get("SUSPENSIONS", "suspensions.sqlite"), models=TARGET)
    work(queue, tidegate.wrap(openai.OpenAI()), suspensions)
    print(f"{queue.execute('SELECT count(*) FROM jobs WHERE status = ?', ('done',)).fetchone()[0]} calls answered")


if __name__ == "__main__":
    main()
