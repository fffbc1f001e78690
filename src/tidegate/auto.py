"""`import tidegate.auto` is `tidegate.install()`, as an import."""

from tidegate.installing import install

install()
