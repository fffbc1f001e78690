"""`tidegate run` as a wrapper: the command is as it would be alone, its end is ours, and ours is said in one line."""

from __future__ import annotations

import os
import signal
import subprocess
import textwrap
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.running import PYTHON, RUN, SRC, TIDEGATE, Done, environ, run
from tests.effort import some
from tidegate.cli.command_run import LOOK_SECONDS

UNSEEN = "tidegate: no LLM call was seen; `tidegate doctor` lists what is governed"
UNGOVERNED = (
    "tidegate: no LLM call was governed: no Python process loaded tidegate "
    "(`tidegate docs run` lists the causes; --gateway governs other programs)"
)


def test_everything_after_the_command_is_its_own() -> None:
    done = run(PYTHON, "-c", "import sys; print(sys.argv[1:])", "-n", "4", "--help", "--", "-x")
    assert (done.code, done.out) == (0, "['-n', '4', '--help', '--', '-x']\n")


def test_two_dashes_before_the_command_are_ours() -> None:
    assert run("--", PYTHON, "-c", "import sys; print(sys.argv[1:])", "--").out == "['--']\n"


def test_help_before_the_command_is_ours() -> None:
    done = run("--help")
    assert done.code == 0
    assert "run [OPTIONS] {CMD [ARGS]...}" in done.out


def test_without_a_command_it_says_what_it_lacks() -> None:
    done = run()
    assert done.code == 2
    assert "CMD" in done.lines[-1]


@pytest.mark.parametrize("code", some([0, 7], [1, 255]))
def test_the_exit_code_is_the_commands(code: int) -> None:
    assert run(PYTHON, "-c", f"raise SystemExit({code})").code == code


@pytest.mark.parametrize(
    "number", some([signal.SIGKILL, signal.SIGINT], [signal.SIGTERM, signal.SIGPIPE, signal.SIGABRT])
)
def test_a_command_that_a_signal_ended_ends_us_by_the_same(number: signal.Signals) -> None:
    done = run("sh", "-c", f"kill -{number.value} $$")
    assert (done.code, done.lines) == (-number, [UNGOVERNED])


def test_a_missing_command_is_127_and_one_line() -> None:
    done = run("no-such-command", "--help")
    where = "it is neither on PATH nor next to this Python"
    assert (done.code, done.out, done.lines) == (127, "", [f"tidegate: command no-such-command not found: {where}"])
    done = run("/no/such/command")
    assert (done.code, done.lines) == (127, ["tidegate: command /no/such/command not found: there is no such file"])


def test_a_file_that_is_no_program_is_126_and_one_line(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("#!/bin/sh\n")
    assert run(str(plain)).lines == [f"tidegate: command {plain} not started: the file is not executable"]
    assert run(str(plain)).code == 126
    assert run(str(tmp_path)).lines == [f"tidegate: command {tmp_path} not started: it is a directory"]
    assert run(str(tmp_path)).code == 126


def test_a_script_whose_interpreter_is_missing_is_127_and_one_line(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/python\n")
    script.chmod(0o755)
    assert run(str(script)).lines == [f"tidegate: command {script} not started: its interpreter was not found"]
    assert run(str(script)).code == 127


def test_a_command_off_the_path_is_found_beside_our_own_python(tmp_path: Path) -> None:
    name = Path(PYTHON).name
    done = run(name, "-c", "print(1)", env=environ(PATH=str(tmp_path)))
    assert (done.code, done.out) == (0, "1\n")


def test_what_comes_in_goes_to_the_command() -> None:
    assert run(PYTHON, "-c", "print(input()[::-1])", given="olleh\n").out == "hello\n"


def test_the_program_sees_its_path_arguments_folder_and_signals_as_without_us(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import os, signal, sys
        print(sys.argv, sys.path, os.getcwd(), sys.flags, __name__)
        print(signal.pthread_sigmask(signal.SIG_BLOCK, ()), sorted(map(int, os.listdir("/proc/self/fd"))))
        print([signal.getsignal(n) for n in (signal.SIGINT, signal.SIGPIPE, signal.SIGTERM)])
        """)
    )
    words = [PYTHON, str(script), "a", "-b"]
    alone = subprocess.run(words, env=environ(), cwd=tmp_path, capture_output=True, text=True, check=True, input="")
    assert run(*words, cwd=tmp_path).out == alone.stdout


def test_ones_own_python_path_follows_ours_as_it_is() -> None:
    code = "import os; print(os.environ['PYTHONPATH'].split(os.pathsep)[1:])"
    done = run(*TIDEGATE, "run", PYTHON, "-c", code, env=environ(PYTHONPATH=os.pathsep.join([SRC, "", "b"])))
    assert done.out == f"{[SRC, '', 'b']}\n"


def test_a_python_that_never_calls_loads_nothing_of_weight() -> None:
    words = [PYTHON, "-c", "import sys; print(*sys.modules)"]
    alone = subprocess.run(words, env=environ(), capture_output=True, text=True, check=True)
    more = set(run(*words).out.split()) - set(alone.stdout.split())
    light = {
        "tidegate",
        "tidegate._version",
        "tidegate.transports.imports",
        "tidegate.admission",
        "tidegate.admission.hooks",
        "tidegate.launch",
        "tidegate.launch.bootstrap",
        "tidegate.admission.thread_states",
        "tidegate.transports",
    }
    assert more <= light | {"sitecustomize", "importlib", "importlib._bootstrap", "importlib._bootstrap_external",
                            "importlib.machinery", "__future__", "gc", "warnings", "_warnings"}  # fmt: skip
    assert light <= more


def test_the_sitecustomize_that_ours_shadows_runs_too(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; len(sys.orig_argv) == 4 and print('theirs')")
    env = environ(PYTHONPATH=os.pathsep.join([SRC, str(tmp_path)]))
    code = "import sitecustomize, os; print(os.path.dirname(sitecustomize.__file__))"
    assert run(PYTHON, "-c", code, "program", env=env).out == f"theirs\n{tmp_path}\n"


def test_a_sitecustomize_that_fails_complains_as_it_would_alone(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; len(sys.orig_argv) == 4 and 1 / 0")
    env = environ(PYTHONPATH=os.pathsep.join([str(tmp_path), SRC]))
    words = [PYTHON, "-c", "print(1)", "program"]
    alone = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    done = run(*words, env=env)
    assert "ZeroDivisionError" in alone.stderr
    assert (done.out, done.lines) == (alone.stdout, [*alone.stderr.splitlines(), UNSEEN])


@pytest.fixture
def bare(tmp_path: Path) -> str:
    venv.create(tmp_path / "bare", symlinks=True, with_pip=False)
    return str(tmp_path / "bare" / "bin" / "python")


def test_a_python_without_tidegate_runs_ungoverned_and_says_so_once(bare: str) -> None:
    env = environ()
    del env["PYTHONPATH"]
    done = run(bare, "-c", f"import os; print(1, flush=True); os.system('{bare} -c \"print(2)\"')", env=env)
    assert (done.code, done.out) == (0, "1\n2\n")
    why = "tidegate is not installed in this Python"
    said = f"tidegate: {bare} not governed: {why}; its calls are sent without tidegate"
    assert done.lines == [said, f"{UNGOVERNED}; some processes ran ungoverned: {bare}: {why}"]


def test_a_python_in_which_tidegate_cannot_be_put_on_runs_ungoverned_and_says_so(bare: str, tmp_path: Path) -> None:
    (tmp_path / "httpx.py").write_text("print('theirs')")
    done = run(bare, "-c", "import httpx; print(httpx.__name__)", cwd=tmp_path)
    assert (done.code, done.out) == (0, "theirs\nhttpx\n")
    assert len(done.lines) == 2
    assert done.lines[0].startswith(f"tidegate: {bare} not governed: the installation failed (ModuleNotFoundError: ")
    assert f"; some processes ran ungoverned: {bare}: ModuleNotFoundError: " in done.last


def test_a_python_that_heeds_no_environment_is_noticed() -> None:
    assert run(PYTHON, "-I", "-c", "print(1)").lines == [UNGOVERNED]
    assert run(PYTHON, "-c", "print(1)").lines == [UNSEEN]


def test_one_inside_another_leaves_the_lines_to_the_outer() -> None:
    done = run(*TIDEGATE, "run", PYTHON, "-c", "print(1)")
    assert (done.out, done.lines) == ("1\n", [UNSEEN])


def test_switched_off_it_runs_the_command_as_it_is() -> None:
    code = "import os, sys; print('PYTHONPATH' in os.environ and 'site' in os.environ['PYTHONPATH'])"
    done = run(PYTHON, "-c", code, env=environ(TIDEGATE_DISABLED="1"))
    why = "TIDEGATE_DISABLED is set; the command runs ungoverned"
    assert (done.out, done.lines) == ("False\n", [f"tidegate: run disabled: {why}"])
    assert run(PYTHON, "-c", code, env=environ(TIDEGATE_DISABLED="1", TIDEGATE_LOG="off")).lines == []


def test_it_is_silent_where_that_is_wanted() -> None:
    done = run(PYTHON, "-c", "raise SystemExit(3)", env=environ(TIDEGATE_LOG="off"))
    assert (done.code, done.lines) == (3, [])
    assert run("no-such-command", env=environ(TIDEGATE_LOG="off")).code == 127


def test_summary_is_one_line_also_where_output_and_complaints_are_one_file(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        done = subprocess.run([*RUN, "echo", "1"], env=environ(), stdout=log, stderr=subprocess.STDOUT)
    said = (tmp_path / "log").read_text()
    assert (done.returncode, said) == (0, f"1\n{UNGOVERNED}\n")


def test_a_setting_that_cannot_be_used_is_said_before_anything_runs() -> None:
    done = run("echo", "1", env=environ(TIDEGATE_MAX_WAIT="long"))
    assert (done.code, done.out) == (2, "")
    assert done.lines[0].startswith("tidegate: max_wait: 'long' is not usable")


def test_variable_that_is_misspelt_is_said_once_with_the_one_meant() -> None:
    env = environ(TIDEGATE_MAXWAIT="5")
    said = "tidegate: TIDEGATE_MAXWAIT not read: there is no such setting; did you mean TIDEGATE_MAX_WAIT?"
    assert run(*RUN, "true", env=env).lines.count(said) == 1
    assert run("true", env={**env, "TIDEGATE_LOG": "off"}).lines == []


def test_prices_that_cannot_be_used_are_said_before_anything_runs(tmp_path: Path) -> None:
    """A process that finds such a file would run ungoverned."""
    path = tmp_path / "prices.json"
    path.write_text('{"m": {"input": -1, "output": 2}}')
    done = run("echo", "1", env=environ(TIDEGATE_PRICES=str(path)))
    assert (done.code, done.out) == (2, "")
    assert done.lines == ["tidegate: price of m: -1 is not usable: price input: a number of US dollars, 0 or more"]


def test_processes_in_another_folder_find_the_prices(tmp_path: Path) -> None:
    (tmp_path / "prices.json").write_text('{"m": {"input": 1, "output": 2}}')
    (tmp_path / "inner").mkdir()
    code = "import os, tidegate; os.chdir('inner'); print(tidegate.registry().settings.prices.exists())"
    done = run(PYTHON, "-c", code, env=environ(TIDEGATE_PRICES="prices.json"), cwd=tmp_path)
    assert (done.code, done.out) == (0, "True\n")


TOLD = """
import select, signal, sys
def told(number, frame):
    print(signal.Signals(number).name, flush=True)
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH):
    signal.signal(number, told)
print("ready", flush=True)
# Python calls a handler between two steps only: a signal right before a read without end would wait for its end.
while not select.select([sys.stdin], [], [], 0.1)[0]:
    pass
"""


MAC = ["import signal; del signal.sigtimedwait; " + word if "import sys" in word else word for word in RUN]
"""Where signals cannot be waited for with a timeout."""


@contextmanager
def told(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Run a program that tells its signals, in a session of its own; at its end nothing else was said."""
    with subprocess.Popen(
        [*command, PYTHON, "-c", TOLD],
        env=environ(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
            out, err = process.communicate("", timeout=300)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert Done(process.returncode, out, err.splitlines()).lines == [UNSEEN]
    assert (process.returncode, out) == (0, "")


@pytest.mark.parametrize("command", [RUN, MAC], ids=["with", "without a timeout"])
@pytest.mark.parametrize("name", some(["SIGINT", "SIGTERM"], ["SIGHUP", "SIGUSR1", "SIGUSR2", "SIGWINCH"]))
def test_a_signal_that_is_sent_to_us_reaches_the_command_once(name: str, command: list[str]) -> None:
    with told(command) as process:
        process.send_signal(signal.Signals[name])
        assert process.stdout is not None
        assert process.stdout.readline() == f"{name}\n"


def test_a_run_that_is_stopped_for_a_while_goes_on() -> None:
    """As a scheduler suspends a job: nobody is asked, and the command runs on."""
    with told(RUN) as process:
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        # The time of its wait for signals has to pass.
        time.sleep(2 * LOOK_SECONDS)
        process.send_signal(signal.SIGCONT)


def test_the_exit_code_is_kept_where_whoever_started_us_ignores_the_end_of_children() -> None:
    ignoring = f"import os, signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv({PYTHON!r}, {[*RUN]!r} + "
    command = [PYTHON, "-c", ignoring + "['sh', '-c', 'exit 3'])"]
    done = subprocess.run(command, env=environ(), capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr.splitlines()) == (3, [UNGOVERNED])


def test_a_folder_for_the_counts_is_private_and_gone_at_the_end(tmp_path: Path) -> None:
    code = "import os; d = os.environ['TIDEGATE_RUN_DIR']; print(oct(os.stat(d).st_mode)[-3:], d)"
    said = run(PYTHON, "-c", code, env=environ(TMPDIR=str(tmp_path))).out.split()
    assert said[0] == "700"
    assert Path(said[1]).parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_the_processes_of_a_run_share_a_digest_key_that_differs_from_run_to_run() -> None:
    code = "import os, subprocess, sys; print(os.environ['TIDEGATE_DIGEST_KEY'])"
    apart = environ(TIDEGATE_SHARE="off")
    said = [run("sh", "-c", f'{PYTHON} -c "{code}"; {PYTHON} -c "{code}"', env=apart).out.split() for _ in range(2)]
    assert len(set(said[0])) == len(set(said[1])) == 1
    assert said[0] != said[1]
    assert run(PYTHON, "-c", code, env=environ(TIDEGATE_DIGEST_KEY="own")).out == "own\n"
