"""Modules of the process: those that are still loading, and those that send calls that cannot be governed.

An import hook runs in the middle of imports: of its target module and of modules around that one. These can be
tidegate's own, where a plugin of pydantic imports an HTTP client. Every Python process under `tidegate run` imports
this module. So it imports only what the interpreter has already loaded.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

LOADING = "_initializing"
"""Attribute of a spec that is true from the start to the end of loading (CPython 3.11 to 3.14 `_load_unlocked`)."""

CALLS = "_tidegate_calls"
"""Attribute of a spec that holds the callbacks for the end of its loading."""


class ObservedSpec(ModuleSpec):
    """Spec that calls back when the import system marks its module as loaded, or as failed."""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name == LOADING and not value:
            calls = self.__dict__.pop(CALLS, ())
            self.__class__ = ModuleSpec  # type: ignore[assignment]  # mypy: the class of a subclass's instance
            for call in calls:
                call()


def is_loading(module: object) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), LOADING, False))


def own_loading() -> list[ModuleType]:
    """Return the modules of tidegate that are half loaded, in any thread."""
    found = [module for name, module in list(sys.modules.items()) if f"{name}.".startswith("tidegate.")]
    return [module for module in found if is_loading(module)]


def when_loaded(spec: ModuleSpec | None, call: Callable[[], object]) -> bool:
    """Call `call` at the end of the next or current loading by `spec`, in the loading thread.

    It must not raise, because it runs inside the import of the program. Return False for a spec that cannot be
    observed.
    """
    # A loader from before Python 3.4 does not mark the module; the layout of another class of specs is unknown.
    if spec is None or type(spec) not in (ModuleSpec, ObservedSpec) or not hasattr(spec.loader, "exec_module"):
        return False
    calls = spec.__dict__.setdefault(CALLS, [])
    if call not in calls:
        calls.append(call)
    spec.__class__ = ObservedSpec
    return True


UNGOVERNABLE = {
    "baml_py": "baml-py",
    "curl_cffi": "curl-cffi",
    "grpc": "grpcio",
    "niquests": "niquests",
    "oci": "oci",
    "pycurl": "pycurl",
    "tensorzero": "tensorzero",
    "tornado.httpclient": "tornado",
    "urllib.request": "urllib",
    "urllib3": "urllib3",
    "websocket": "websocket-client",
    "websockets": "websockets",
}
"""Modules that send in their own way, below no HTTP client that is patched, each with its distribution.

Read in baml-py 0.226.3 and tensorzero 2026.6.0 (Rust), curl_cffi 0.17.0 and pycurl 7.49.0 (libcurl), oci 2.189.0
(requests as a copy of its own), niquests 3.21.2 (urllib3-future), tornado 6.6.1, urllib3 2.8.0, websockets 17.4.
"""

SHARED = frozenset({"tornado.httpclient", "urllib.request", "urllib3", "websocket", "websockets"})
"""Modules with many other uses: they count only where a program has no other way to send calls."""

SOCKETS = frozenset({"grpc", "websocket", "websockets"})
"""Modules that do not speak HTTP/1.1, which no gateway governs either."""


AT_OWN_HOSTS = {"dashscope": "dashscope", "writerai": "writer-sdk"}
"""Modules of SDKs whose paths are inference paths at the hosts of their tables alone, each with its distribution.

Read in dashscope 2.0.2 (`/api/v1/services/...`) and writer-sdk 3.0.0 (`/v1/chat`).
"""

NOWHERE_ELSE = (
    "governed at its own hosts; its paths are inference paths nowhere else, so another server (loopback, a private "
    "gateway) passes by unless register_provider names it"
)
"""What holds for the SDKs in `AT_OWN_HOSTS`."""


def remedy(modules: frozenset[str], command: str) -> str:
    """Return what governs a program that sends by these modules and is started by `command`."""
    if modules and modules <= SOCKETS:
        return "only calls over HTTP can be governed; use the HTTP transport of the SDK"
    return f"`tidegate run --gateway {command}` governs it where it reads the server from a base-URL variable"
