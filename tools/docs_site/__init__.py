"""Build of the documentation site from `docs/`: pages are staged, the API is added, and the result is checked."""
