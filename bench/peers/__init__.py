"""The peers on the same work, each in its own environment; `python -m bench.peers`. Imports nothing: drivers pass here."""
