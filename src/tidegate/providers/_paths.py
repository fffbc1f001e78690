"""Inference paths of a provider's table, and the lookup of a request's path among them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from urllib.parse import unquote

from tidegate.errors import require

MAX_PATH = 2048
"""Most characters of a path that is looked up. Chosen: inference paths have a hundred and a model's name."""

MAX_MODEL = 256
"""Characters that are kept of a model's name. Chosen: names of models, with their paths, are shorter."""

_SEGMENT = re.compile(r"\{[^}]*\}?")
_PLACEHOLDERS = frozenset({"{}", "{model}", "{+model}", "{scope}", "{family}"})


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An inference path. `{model}` is a segment with the model, `{}` any segment, a leading `**` any prefix.

    `{+model}` is a model whose name may contain slashes. `{scope}` is a segment that, in addition to the model,
    separates quotas (a project, a location). Names are percent-decoded.

    `family` is set if the path has separate limits, or is the content of the segment `{family}`. `streams` is set if
    the answer streams by default. `plain` is set if the path is too common a word to be claimed for a client of a known
    SDK.
    """

    path: str
    family: str = ""
    streams: bool = False
    plain: bool = False

    def __post_init__(self) -> None:
        require(self.path.startswith(("/", "**/")), "Endpoint.path", self.path, "a path that begins with / or **/")
        named = _SEGMENT.findall(self.path)
        known = ", ".join(sorted(_PLACEHOLDERS))
        require(_PLACEHOLDERS.issuperset(named), "Endpoint.path", self.path, f"a path with no placeholders but {known}")
        once = named.count("{model}") + named.count("{+model}") <= 1 and named.count("{family}") <= 1
        require(once, "Endpoint.path", self.path, "a path with at most one model and one family")
        twice = "{family}" in named and self.family
        require(not twice, "Endpoint.family", self.family, "empty: the path names the family")


class Paths:
    """The endpoints of one table. A path with a segment in `closed` matches no pattern. Compared by identity."""

    __slots__ = ("_closed", "_literals", "_patterns")

    def __init__(self, endpoints: tuple[Endpoint, ...], closed: tuple[str, ...]) -> None:
        self._closed = frozenset(closed)
        self._literals = {each.path: each for each in endpoints if "{" not in each.path and "**" not in each.path}
        self._patterns = tuple(each for each in endpoints if each.path not in self._literals)

    def match(self, path: str) -> tuple[Endpoint, str, tuple[str, ...]] | None:
        """Return the endpoint of `path`, the model in it, and the other segments that separate quotas."""
        path = path.partition("?")[0]
        if len(path) > 1 and path.endswith("/"):
            path = path[:-1]
        literal = self._literals.get(path)
        if literal is not None:
            return literal, "", ()
        if self._closed and not self._closed.isdisjoint(path.split("/")):
            return None
        for endpoint in self._patterns:
            match = _pattern(endpoint.path).fullmatch(path)
            if match is not None:
                named = {name: unquote(text, errors="replace") for name, text in match.groupdict().items()}
                family = named.pop("family", None)
                if family is not None:
                    endpoint = replace(endpoint, path=endpoint.path.replace("{family}", "{}"), family=family)
                return endpoint, named.pop("model", "")[:MAX_MODEL], tuple(named.values())
        return None


@lru_cache(maxsize=2048)
def endpoint_of(paths: Paths, path: str) -> tuple[Endpoint, str, tuple[str, ...]] | None:
    """Return the cached result of `Paths.match`, as most requests use the same few paths."""
    return paths.match(path)


@lru_cache(maxsize=512)
def _pattern(path: str) -> re.Pattern[str]:
    prefix, rest = (r"(?:/[^/]+){0,12}", path[2:]) if path.startswith("**") else ("", path)
    pattern = prefix
    for number, part in enumerate(re.split(r"(\{[^}]*\})", rest)):
        pattern += _SEGMENTS[part].format(number) if part in _SEGMENTS else re.escape(part)
    return re.compile(pattern)


_SEGMENTS = {
    "{model}": "(?P<model>[^/]+)",
    "{+model}": "(?P<model>.+)",
    "{family}": "(?P<family>[^/]+)",
    "{scope}": "(?P<scope{}>[^/]+)",
    "{}": "[^/]+",
}
