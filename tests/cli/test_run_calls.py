"""`tidegate run` governs every call of every process below it, however the processes come to be, and counts them all.

The programs switch the SDK's own retries off and meet a limit that they overrun: one ungoverned call is a lost row.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.asking import ASK, ASYNC
from tests.cli.running import PYTHON, TIDEGATE, Done, environ, run
from tests.effort import some
from tidegate.testing import Limit, Scenario, Simulator

ROWS = 24

POOL = """
import multiprocessing
from ask import ask_all

if __name__ == "__main__":
    with multiprocessing.get_context("{way}").Pool(4) as pool:
        print(sum(pool.map(ask_all, [range(n, 24, 8) for n in range(8)], chunksize=1)))
"""

SDK = """
import os, openai
from concurrent.futures import ThreadPoolExecutor

made = openai.OpenAI(base_url=os.environ["URL"] + "/v1", api_key="k", max_retries=0)

def ask(row):
    return len(made.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}]).choices)

with ThreadPoolExecutor(24) as threads:
    print(sum(threads.map(ask, range(24))))
"""

PROGRAMS = {
    "threads with an SDK": SDK,
    "asyncio": ASYNC,
    "threads and asyncio at once": """
        import asyncio, threading
        from concurrent.futures import ThreadPoolExecutor
        from ask import ask_all
        from asked import main
        answered = []
        loop = threading.Thread(target=lambda: answered.append(asyncio.run(main(range(12)))))
        loop.start()
        with ThreadPoolExecutor(8) as threads:
            answered += threads.map(ask_all, [range(n, 24, 8) for n in range(12, 20)])
        loop.join()
        print(sum(answered))
    """,
    "a pool that spawns": POOL.format(way="spawn"),
    "a pool that forks": POOL.format(way="fork"),
    "a pool of the fork server": POOL.format(way="forkserver"),
    "a process pool executor": """
        from concurrent.futures import ProcessPoolExecutor
        from ask import ask_all
        if __name__ == "__main__":
            with ProcessPoolExecutor(4) as pool:
                print(sum(pool.map(ask_all, [range(n, 24, 8) for n in range(8)])))
    """,
    "a fork in the middle": """
        import os
        from ask import ask, client
        made = client()
        first = ask(0, made)
        if os.fork() == 0:
            made = client()
            os._exit(sum(ask(row, made) for row in range(1, 12)))
        _, status = os.wait()
        print(first + os.waitstatus_to_exitcode(status) + sum(ask(row, made) for row in range(12, 24)))
    """,
    "a Python below a shell": """
        import subprocess, sys
        code = "import sys; from ask import ask_all; print(ask_all(range(int(sys.argv[1]), 24, 2)))"
        shell = '"$0" -c "$1" 0 & "$0" -c "$1" 1; wait'
        said = subprocess.run(["sh", "-c", shell, sys.executable, code], capture_output=True, text=True, check=True)
        print(sum(map(int, said.stdout.split())))
    """,
    "workers that are killed": """
        import os, signal
        from ask import ask_all
        for n in range(2):
            if os.fork() == 0:
                ask_all(range(n, 24, 2))
                os.kill(os.getpid(), signal.SIGKILL)
        ended = [os.wait()[1] for _ in range(2)]
        print(24 if ended == [signal.SIGKILL, signal.SIGKILL] else ended)
    """,
}


@pytest.fixture
def provider() -> Iterator[Simulator]:
    with Simulator(Scenario(limiters=(Limit(limit=12, window=1.0),), dialect="openai")) as provider:
        yield provider


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "ask.py").write_text(ASK)
    (tmp_path / "asked.py").write_text(ASYNC)
    return tmp_path


def all_governed(done: Done, provider: Simulator) -> None:
    truth = provider.truth().total
    assert done.code == 0, (done.out, done.lines)
    assert truth.answered == ROWS
    said = f"tidegate: {ROWS} calls, {ROWS} answered, 0 given up, {truth.refusals} refusals? retried, "
    used = r"\d+% of the limit used \(12 requests/\S+\), \d+ input \+ \d+ output tokens"
    rest = used + r"(, shared by \d+ processes \(file\))?$"
    assert re.match(said + rest, done.last), done.lines


ALIKE = [
    "a Python below a shell",
    "threads and asyncio at once",
    "a pool that forks",
    "a pool of the fork server",
    "a process pool executor",
]


@pytest.mark.parametrize("name", some([name for name in PROGRAMS if name not in ALIKE], ALIKE))
def test_every_call_is_governed_and_counted(name: str, provider: Simulator, folder: Path) -> None:
    program = folder / "program.py"
    program.write_text(textwrap.dedent(PROGRAMS[name]))
    done = run(PYTHON, "-W", "ignore", str(program), env=environ(URL=provider.url), cwd=folder)
    assert done.out == f"{ROWS}\n", done.lines
    all_governed(done, provider)


def test_a_module_is_run_as_one(provider: Simulator, folder: Path) -> None:
    done = run(PYTHON, "-m", "asked", env=environ(URL=provider.url), cwd=folder)
    assert done.out == f"{ROWS}\n", done.lines
    all_governed(done, provider)


def test_the_workers_of_pytest_are_governed(provider: Simulator, folder: Path) -> None:
    (folder / "test_rows.py").write_text(
        textwrap.dedent(f"""
        import pytest
        from ask import ask

        @pytest.mark.parametrize("row", range({ROWS}))
        def test_row(row, worker_id):
            assert worker_id.startswith("gw")
            assert ask(row) == 1
        """)
    )
    words = ["-m", "pytest", "-p", "xdist.plugin", "-n", "2", "-q", "-p", "no:cacheprovider", "-W", "error"]
    # Its workers load no plugin that this environment happens to have.
    done = run(PYTHON, *words, env=environ(URL=provider.url, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1"), cwd=folder)
    assert f"{ROWS} passed" in done.out
    all_governed(done, provider)


def test_a_run_inside_a_run_counts_each_call_once(provider: Simulator, folder: Path) -> None:
    done = run(*TIDEGATE, "run", PYTHON, "asked.py", env=environ(URL=provider.url), cwd=folder)
    assert done.out == f"{ROWS}\n"
    assert len(done.lines) == 1
    all_governed(done, provider)


def test_calls_that_were_given_up_are_told_apart(folder: Path) -> None:
    code = "from ask import ask_all; ask_all(range(7))"
    with Simulator(Scenario(limiters=(Limit(limit=6, window=3600.0),), dialect="none")) as provider:
        done = run(PYTHON, "-c", code, env=environ(URL=provider.url, TIDEGATE_MAX_WAIT="0"), cwd=folder)
    assert done.code == 1
    assert "429 Too Many Requests" in "\n".join(done.lines)
    assert (
        done.last
        == "tidegate: 7 calls, 6 answered, 1 given up, 1 refusal, 0 of them retried, 6 input + 18 output tokens"
    )


def test_a_program_that_governs_itself_is_counted_too(provider: Simulator, folder: Path) -> None:
    code = """if 1:
        from tidegate.admission.registry import RateLimitRegistry
        from ask import ask, client
        registry = RateLimitRegistry()
        made = registry.wrap(client())
        print(sum(ask(row, made) for row in range(3)), registry.execute("own", lambda: 5))
    """
    done = run(PYTHON, "-c", code, env=environ(URL=provider.url), cwd=folder)
    assert done.out == "3 5\n"
    assert done.last.startswith("tidegate: 4 calls, 4 answered, 0 given up, 0 refusals retried")


def test_last_line_has_the_cost_where_the_price_is_known(folder: Path) -> None:
    """6 tokens of input at 10,000 dollars a million are .06, and 18 of output at 50,000 are .9."""
    code = "from ask import ask_all; ask_all(range(7))"
    (folder / "prices.json").write_text('{"compatible/m": {"input": 10000, "output": 50000}}')
    more = {"TIDEGATE_MAX_WAIT": "0", "TIDEGATE_PRICES": "prices.json"}
    with Simulator(Scenario(limiters=(Limit(limit=6, window=3600.0),), dialect="none")) as provider:
        done = run(PYTHON, "-c", code, env=environ(URL=provider.url, **more), cwd=folder)
    assert done.last.endswith(", 6 input + 18 output tokens, $0.96")
