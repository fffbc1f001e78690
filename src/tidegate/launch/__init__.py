"""How `tidegate run` gets into a Python program, and what the program's processes tell of their calls.

`environment` makes the environment of the command; `site/sitecustomize.py` is what each Python process below it runs
first; `arrivals` puts tidegate on when there is something to govern. `sheets` is where a process keeps its counts, and
`totals` what the parent reads from them; `child` is the command as a process.
"""
