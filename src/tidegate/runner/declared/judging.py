"""The meaning of a judge's answer: a score, a label, or a JSON object of named outputs. None of it is no score."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tidegate.errors import UnusableAnswer

NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?(?![\w]|\.\d)%?")
LONGEST = 80
"""Characters of an answer that a complaint shows."""


class Unparsable(UnusableAnswer):
    """A judge's answer that does not say what it was asked for."""

    def __init__(self, answer: str, wanted: str) -> None:
        self.answer = answer
        text = " ".join(answer.split())
        shown = text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
        super().__init__(f"the judge's answer is not {wanted}: {shown!r}")


def score(answer: str, bounds: tuple[float, float] | None) -> float:
    """The one number of an answer, or of its last line that has any, or `score` of a JSON object."""
    wanted = "one number" + (f" from {bounds[0]:g} to {bounds[1]:g}" if bounds is not None else "")
    found = _said_as_json(answer, "score")
    if found is None:
        lines = [numbers for line in answer.splitlines() if (numbers := NUMBER.findall(line))]
        if not lines or len(lines[-1]) != 1 or lines[-1][0].endswith("%"):
            raise Unparsable(answer, wanted)
        found = float(lines[-1][0])
    if bounds is not None and not bounds[0] <= found <= bounds[1]:
        raise Unparsable(answer, wanted)
    return found


def label(answer: str, labels: Sequence[str]) -> str:
    """The one label that an answer is, or names as a word of its own, or is `label` of a JSON object."""
    by_folded = {each.casefold(): each for each in labels}
    said = _object(answer)
    text = str(said["label"]) if said is not None and "label" in said else answer
    exact = by_folded.get(text.strip().strip(".!\"'`*").casefold())
    if exact is not None:
        return exact
    # The longest first, and each only where no longer one stands: "not right" is no "right".
    either = "|".join(re.escape(each) for each in sorted(by_folded, key=len, reverse=True))
    named = set(re.findall(rf"(?<!\w)(?:{either})(?!\w)", text.casefold()))
    if len(named) != 1:
        raise Unparsable(answer, f"one of {', '.join(labels)}")
    return by_folded[named.pop()]


def outputs(answer: str, names: Sequence[str]) -> dict[str, Any]:
    """The named values of the JSON object in an answer; every name must be there, what else is there is left out."""
    said = _object(answer)
    if said is None or any(name not in said for name in names):
        raise Unparsable(answer, f"a JSON object with {', '.join(names)}")
    return {name: said[name] for name in names}


def _said_as_json(answer: str, name: str) -> float | None:
    said = _object(answer)
    value = said.get(name) if said is not None else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _object(answer: str) -> Mapping[str, Any] | None:
    """The JSON object that an answer is or holds, whatever stands around it: the one that begins first."""
    decoder = json.JSONDecoder(parse_constant=_refused)
    start = answer.find("{")
    while start >= 0:
        try:
            found, _ = decoder.raw_decode(answer, start)
        except (ValueError, RecursionError):
            start = answer.find("{", start + 1)
            continue
        return found if isinstance(found, dict) else None
    return None


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")
