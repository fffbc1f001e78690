"""Loading of experiments from `file.py:attribute`, `module:attribute` or a YAML file."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from tidegate.errors import CannotLoad
from tidegate.experiments.engine.background import redacted
from tidegate.experiments.engine.experiment import Experiment

DECLARED = frozenset({".yaml", ".yml"})
FORMS = "my_eval.py:experiment, package.module:experiment, experiment.yaml or the name of a stored experiment"


def load(source: str) -> Experiment:
    """Load the experiment at `source`: `file.py:attribute`, `module:attribute`, or a YAML file that declares it.

    The default attribute is `experiment`. The attribute may also be a function without required arguments that returns
    the experiment. Raise `CannotLoad` if the file or module is missing, its import fails, or the attribute is no
    experiment.
    """
    if Path(source).suffix.lower() in DECLARED:
        return _declared(source)
    where, _, attribute = source.rpartition(":") if _names_attribute(source) else (source, "", "experiment")
    module = _of_file(source, Path(where)) if where.endswith(".py") else _of_module(source, where)
    found = getattr(module, attribute, None)
    if found is None:
        raise CannotLoad(source, f"it has no {attribute!r}{_instead(module)}")
    if callable(found) and not isinstance(found, Experiment):
        found = _called(source, attribute, found)
    if not isinstance(found, Experiment):
        raise CannotLoad(source, f"{attribute!r} is {_kind(found)}, not an Experiment{_instead(module)}")
    found.source = f"{Path(where).resolve()}:{attribute}" if where.endswith(".py") else source
    return found


def restored(spec: Mapping[str, Any]) -> Experiment:
    """Return the experiment of a stored spec; raise `CannotLoad` if its code or a credential is missing here."""
    source = spec.get("source")
    if reason := lacking(spec.get("credentials") or ()):
        raise CannotLoad(str(source), reason)
    if spec.get("declared") is not None:
        return _renamed(_declared(str(source), spec["declared"]), spec)
    if not source:
        raise CannotLoad(
            str(spec.get("task")), "it was started from code that has no name to find it by; run that code again"
        )
    found = load(str(source))
    if found.name != (spec.get("original") or spec.get("name", found.name)):
        raise CannotLoad(str(source), f"the experiment there is called {found.name!r} now")
    return _renamed(found, spec)


def reread(spec: Mapping[str, Any]) -> tuple[Experiment, str]:
    """Return the experiment of a stored spec as its file declares it now, and a notice if that file is not used.

    Raise `ConfigurationError` for a file that is not usable, and `CannotLoad` as `restored` does.
    """
    source = str(spec.get("source"))
    if spec.get("declared") is None:
        return restored(spec), ""
    if not Path(source).is_file():
        return restored(spec), f"its stored declaration runs: {source} is not there"
    found = load(source)
    if found.name != (spec.get("original") or spec["name"]):
        return restored(spec), f"its stored declaration runs: {source} declares {found.name!r} now"
    if reason := lacking(found.credentials):
        raise CannotLoad(source, reason)
    return _renamed(found, spec), ""


def _renamed(found: Experiment, spec: Mapping[str, Any]) -> Experiment:
    """Return an experiment under the name of its spec, which differs after a fresh start, and with its `spread`."""
    found.spread = found.spread or bool(spec.get("spread"))
    return found.renamed(str(spec["name"])) if spec.get("original") else found


def lacking(credentials: Iterable[object]) -> str:
    """Return a text that names the experiment's environment variables that are not set here; empty if all are set."""
    names = [str(name) for name in credentials if not os.environ.get(str(name))]
    return f"credentials are missing: {', '.join(names)} is not set here" if names else ""


def _declared(source: str, values: Mapping[str, Any] | None = None) -> Experiment:
    try:
        from tidegate.experiments.declared import from_file, from_stored
    except ModuleNotFoundError as error:
        raise CannotLoad(source, f"{error.name} is missing; pip install 'tidegate[experiments]'") from error
    return from_file(Path(source)) if values is None else from_stored(values, source)


def _called(source: str, attribute: str, function: Callable[..., Any]) -> Any:
    try:
        needed = [
            each.name
            for each in inspect.signature(function, follow_wrapped=False).parameters.values()
            if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        ]
    except (TypeError, ValueError):
        needed = []
    if needed:
        raise CannotLoad(source, f"{attribute!r} is a function of {', '.join(needed)}, not an Experiment")
    try:
        return function()
    except (Exception, SystemExit) as error:
        raise CannotLoad(source, f"{attribute}() failed: {redacted(error)}") from error


def _instead(module: ModuleType) -> str:
    """Return a text that lists the experiments of a module, for an error message."""
    names = sorted(name for name, value in vars(module).items() if isinstance(value, Experiment))
    return f"; its experiments are {', '.join(names)}" if names else ""


def _kind(value: object) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def is_source(source: str) -> bool:
    """Return whether the text names code or a file; else it is the name or number of a stored experiment."""
    return Path(source).suffix.lower() in {".py", *DECLARED} or _names_attribute(source)


def _names_attribute(source: str) -> bool:
    _, found, attribute = source.rpartition(":")
    return bool(found) and attribute.isidentifier()


def _of_file(source: str, path: Path) -> ModuleType:
    path = path.expanduser().resolve()
    if not path.is_file():
        raise CannotLoad(source, "there is no such file")
    # The module name is unique: two files may have the same name, or the name of a library.
    name = f"tidegate_experiment_{path.stem}_{hashlib.blake2b(str(path).encode(), digest_size=4).hexdigest()}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise CannotLoad(source, "it is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise CannotLoad(source, f"its import failed: {redacted(error)}") from error
    return module


def _of_module(source: str, name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")) or Path(name).is_file():
        raise CannotLoad(source, f"it names no Python file or module; write it as {FORMS}")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise CannotLoad(source, f"there is no such module; write it as {FORMS}") from error
        raise CannotLoad(source, f"its import failed: {redacted(error)}") from error
    except (Exception, SystemExit) as error:
        raise CannotLoad(source, f"its import failed: {redacted(error)}") from error
