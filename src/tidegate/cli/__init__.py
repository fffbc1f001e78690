"""The `tidegate` command."""
