"""Patches of one function, also where a signal handler patches it in the midst of that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidegate.transports.patches import Patches


def doubled(function: Callable[..., int], instance: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> int:
    return 2 * function(*arguments, **options)


def test_function_that_is_patched_inside_its_own_patch_is_wrapped_once() -> None:
    """A nested wrapper stayed in force after its removal, because the outer one took its place in the table."""
    patches, inside = Patches(), list[bool]()

    class Nesting(type):
        """A class whose change of an attribute is interrupted by a handler that installs too."""

        def __setattr__(cls, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if not inside:
                inside.append(True)
                inside.append(patches.put(Client, "ask", doubled))

    class Client(metaclass=Nesting):
        def ask(self) -> int:
            return 1

    assert patches.put(Client, "ask", doubled)
    assert inside == [True, False]
    assert Client().ask() == 2
    patches.remove()
    assert Client().ask() == 1
