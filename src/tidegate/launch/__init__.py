"""The way of `tidegate run` into a Python program, and the counters of the program's processes.

`environment` makes the environment of the command. Each Python process below it first runs `site/sitecustomize.py`.
`bootstrap` installs tidegate when there is something to govern. A process keeps its counts in `shared_counters`, from
which the parent reads `totals`. `child` is the command as a process.
"""

UNGOVERNED = "ungoverned-"
"""Prefix of the files in the run's folder that name an ungoverned process and the reason."""
