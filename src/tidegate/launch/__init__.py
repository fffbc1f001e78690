"""`tidegate run`: installation in every Python process of a command, and the counters of these processes.

`environment` builds the environment of the command. Each Python process in it first runs `site/sitecustomize.py`.
`bootstrap` installs tidegate when there is something to govern. A process keeps its counts in `shared_counters`, from
which the parent reads `totals`. `child` runs the command as a process.
"""

UNGOVERNED = "ungoverned-"
"""Prefix of the files in the run's folder that name an ungoverned process and the reason."""

IMPORTED = "imported-"
"""Prefix of empty files in a run's folder, each for a module that a process imports to send calls."""
