"""Comparison of a program's run with tidegate with its plain run, and the reasons why the former is worse."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

TIME_FACTOR = 1.05
"""Bound of the time of a run in which plain answers every row, as a multiple of plain's time."""

TIME_ALLOWANCE_SECONDS = 1.0
"""Seconds on top of `TIME_FACTOR`: the start of `tidegate run` and the noise of one run."""

LEARNING_SECONDS = 5.0
"""Seconds on top of plain's time in which as many rows are due as plain answers, where it loses others.

Plain gets there by requests of which most are refused. tidegate has to learn the limit first, and answers the others.
"""

HOPELESS_ALLOWANCE_SECONDS = 30.0
"""Seconds for which tidegate may hold back an error that no wait can cure. Source: the first promise of the design."""

REPORT = "NEVER_WORSE "
"""First word of the line in which a program reports its rows."""


OWN_ANSWER = "tidegate: no request was sent"
"""Words of the answer that tidegate makes itself for a call that may wait no longer. Source: docs/waiting.md."""

CHANGING = (
    (r" \(reached max retries: \d+\)", ""),  # botocore 1.44.8 exceptions.py: after a repetition of its own alone
    (r"0x[0-9a-f]+", "0x0"),
    (r"\b[0-9a-f]{8}-[0-9a-f-]{27}\b", "ID"),
    (r"\b(?=[0-9a-f]*\d)[0-9a-f]{12,}\b", "ID"),
    (r"\b((?:req|resp|msg|chatcmpl|call)[-_])\w+", r"\1ID"),
    (r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?Z?", "TIME"),
    (r"\b\w{3}, \d+ \w{3} \d{4} \d\d:\d\d:\d\d GMT", "TIME"),
    (r"\b(127\.0\.0\.1|localhost)(:\d+|', port=\d+|', \d+)", r"\1:PORT"),
    (r"\b\d+(\.\d+)? ?(ms|s|m|h|seconds?|minutes?|milliseconds?)\b", "TIME"),
    (r"\d+\.\d+", "TIME"),
    (r"\b\d+ (attempt|retr|tr(y|ies)|time)", r"N \1"),
    (r"\b(attempts?|retries|tries|Max Retries)([:= (]+)\d+", r"\1\2N"),
    (r"(?<=\.py:)\d+|(?<=, line )\d+", "N"),
    (r"(?<=/)tmp/\w+", "tmp/NAME"),
)
"""What differs between two runs of one program, and what stands for it: identities, addresses, times and counts of
attempts. Statuses and codes stay."""


TROUBLE = r"Traceback|Exception ignored|Fatal|Segmentation|(\S+:\d+: )?\S*(Error|Exception|Warning)\b"
"""How a line of standard error begins that tells of trouble; Python writes the place before a warning."""


class Ended(NamedTuple):
    """What a user sees of one run of a program.

    `errors` counts the exceptions that the program caught by type; `messages` holds their types and texts, as `alike`
    leaves them. `said` holds the lines of standard error that tell of trouble. `exit_code` is None for a run that was
    stopped at its time limit. `seconds` end when the program reports its rows, `process` when its process is gone.
    `times` has the seconds at which rows were answered, in order, where the program tells them.
    """

    answered: int
    rows: int
    errors: Mapping[str, int]
    exit_code: int | None
    seconds: float
    said: frozenset[str]
    requests: int = 0
    messages: frozenset[str] = frozenset()
    process: float = 0.0
    times: tuple[float, ...] = ()


def ended_of(output: str, complaints: str, exit_code: int | None, process: float, requests: int) -> Ended:
    """Return what a run came to, from its output, its standard error and the seconds of its process."""
    seconds, times = process, ()
    answered, rows, errors, messages = 0, 0, {}, frozenset[str]()
    for line in output.splitlines():
        if line.startswith(REPORT):
            told = json.loads(line.removeprefix(REPORT))
            answered, rows, errors = told["answered"], told["rows"], told["errors"]
            seconds, times = told["seconds"], tuple(sorted(told["times"]))
            messages = frozenset(map(alike, told["messages"]))
    trouble = frozenset(_trouble(complaints))
    return Ended(answered, rows, errors, exit_code, seconds, trouble, requests, messages, process, times)


def alike(text: str) -> str:
    """Return a text without what differs between two runs."""
    for pattern, word in CHANGING:
        text = re.sub(pattern, word, text, flags=re.IGNORECASE)
    return text


def _trouble(complaints: str) -> Iterable[str]:
    """Yield the lines of standard error that tell of trouble, without what differs between two runs."""
    for line in complaints.splitlines():
        if re.match(f"({TROUBLE})", line.strip()):
            yield alike(line.strip())[:80]


def late(
    plain: Ended, governed: Ended, hopeless: bool = False, allowance: float = HOPELESS_ALLOWANCE_SECONDS
) -> list[str]:
    """Return the reasons of time: until the program reports its rows, and until its process is gone.

    Rows that only the governed run answers may take their time, because plain answers them never. The others may not:
    as many rows as plain answers are due `LEARNING_SECONDS` after plain ends. A run that answers no more rows than
    plain has only errors to wait for, and may take the `allowance` for them.
    """
    whole = plain.answered == plain.rows > 0
    gains = governed.answered > plain.answered
    bound = TIME_FACTOR * plain.seconds + TIME_ALLOWANCE_SECONDS
    reasons = []
    if 0 < plain.answered <= len(governed.times) and not (hopeless or whole):
        last = governed.times[plain.answered - 1]
        if last > TIME_FACTOR * plain.seconds + LEARNING_SECONDS:
            reasons.append(f"{plain.answered} rows took {last:.1f} s, plain {plain.seconds:.1f} s")
    if gains and not hopeless:
        return reasons
    more = 0.0 if whole and not hopeless else allowance
    if governed.seconds > bound + more:
        reasons.append(f"{governed.seconds:.1f} s, plain {plain.seconds:.1f} s")
    if governed.process > TIME_FACTOR * plain.process + TIME_ALLOWANCE_SECONDS + more:
        reasons.append(f"process of {governed.process:.1f} s, plain {plain.process:.1f} s")
    return reasons


def unlike(plain: Ended, governed: Ended) -> list[str]:
    """Return the reasons that no chance of a clock explains: rows, exit code, exceptions and standard error."""
    reasons = []
    if governed.answered < plain.answered:
        reasons.append(f"{governed.answered} rows answered, plain {plain.answered}")
    if governed.exit_code is None and plain.exit_code is not None:
        reasons.append("did not end")
    elif governed.exit_code != plain.exit_code and not (governed.exit_code == 0 and governed.answered > plain.answered):
        reasons.append(f"exit code {governed.exit_code}, plain {plain.exit_code}")
    fresh = sorted(governed.errors.keys() - plain.errors.keys())
    if fresh:
        reasons.append(f"raises {', '.join(fresh)}")
    known = {message.partition(": ")[0] for message in plain.messages}
    said = {each for each in governed.messages - plain.messages if OWN_ANSWER not in each}
    fresh = sorted(each for each in said if each.partition(": ")[0] in known)
    if fresh:
        reasons.append(f"raises with other words {fresh[0]!r}")
    fresh = sorted(governed.said - plain.said)
    if fresh:
        reasons.append(f"writes {fresh[0]!r}")
    return reasons
