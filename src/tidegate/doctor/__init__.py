"""The findings of `tidegate doctor`: in this Python environment, and in a script, which it reads and never runs.

`packages` are the SDKs, frameworks and HTTP stacks that are known, one row each; what is governed comes from the
transports themselves. `environment` looks at what is installed, at settings, clocks and the interpreter; `source` reads
a script and the modules beside it, and `habits` are the lines in it that are worth a word, one row each.
"""
