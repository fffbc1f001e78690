"""Module that calls `tidegate.install()` when it is imported.

A module that tidegate itself is importing may import it, such as a plugin of pydantic; then it installs after that.
"""

from tidegate.transports.imports import own_loading, when_loaded


def _install() -> None:
    from tidegate.transports.install import install

    install()


try:
    _install()
except ImportError:
    _around = [module for module in own_loading() if module.__name__ != __name__]
    if not _around or not when_loaded(_around[0].__spec__, _install):
        raise
