"""The paths that generate, as a provider's table writes them, and which of them a request's path is."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from urllib.parse import unquote

from tidegate.errors import require

MAX_PATH = 2048
_MAX_MODEL = 256
_SEGMENT = re.compile(r"\{[^}]*\}?")
_PLACEHOLDERS = frozenset({"{}", "{model}", "{+model}", "{scope}", "{family}"})


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A path that generates. `{model}` is a segment naming the model, `{}` any segment, a leading `**` any prefix.

    `{+model}` is a model whose name may hold slashes; `{scope}` is a segment that the quota is kept by besides the
    model (a project, a location). Names are percent-decoded.

    `family` is set where its limits are separate, or is what the segment `{family}` holds; `streams` is set where the
    answer streams unless asked not to, and `plain` where the path is too common a word to claim it for a client of a
    known SDK.
    """

    path: str
    family: str = ""
    streams: bool = False
    plain: bool = False

    def __post_init__(self) -> None:
        require(self.path.startswith(("/", "**/")), "Endpoint.path", self.path, "starts with / or **/")
        named = _SEGMENT.findall(self.path)
        known = ", ".join(sorted(_PLACEHOLDERS))
        require(_PLACEHOLDERS.issuperset(named), "Endpoint.path", self.path, f"its placeholders are {known}")
        once = named.count("{model}") + named.count("{+model}") <= 1 and named.count("{family}") <= 1
        require(once, "Endpoint.path", self.path, "names the model and the family once each")
        twice = "{family}" in named and self.family
        require(not twice, "Endpoint.family", self.family, "empty: the path says it")


class Paths:
    """The endpoints of one table; a path with a segment of `closed` matches no pattern. Compared by identity."""

    __slots__ = ("_closed", "_literals", "_patterns")

    def __init__(self, endpoints: tuple[Endpoint, ...], closed: tuple[str, ...]) -> None:
        self._closed = frozenset(closed)
        self._literals = {each.path: each for each in endpoints if "{" not in each.path and "**" not in each.path}
        self._patterns = tuple(each for each in endpoints if each.path not in self._literals)

    def match(self, path: str) -> tuple[Endpoint, str, tuple[str, ...]] | None:
        """The endpoint that `path` is, the model it names, and the segments that the quota is kept by besides."""
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
                return endpoint, named.pop("model", "")[:_MAX_MODEL], tuple(named.values())
        return None


@lru_cache(maxsize=2048)
def endpoint_of(paths: Paths, path: str) -> tuple[Endpoint, str, tuple[str, ...]] | None:
    """As `Paths.match`; most requests are for the same few paths."""
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
