"""The way of `tidegate run` into a Python program, and the counters of the program's processes.

`environment` makes the environment of the command; `site/sitecustomize.py` is what each Python process below it runs
first; `arrivals` puts tidegate on when there is something to govern. `sheets` is where a process keeps its counts, and
`totals` what the parent reads from them; `child` is the command as a process.
"""
