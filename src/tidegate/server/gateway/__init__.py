"""`tidegate gateway`: a reverse proxy of this machine that governs the LLM calls of programs that are not Python.

`proxy` forwards requests; tidegate's transport below its HTTP client governs them. `server` runs the proxy, by
`tidegate gateway` or, as a child of `tidegate run`, by `python -m tidegate.server.gateway`.
"""
