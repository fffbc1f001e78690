"""The check of the first promise: whatever a program does without tidegate, it does at least as well with it.

Theory of operation. Each row of the catalogue is a program and a server. The program runs plain, with its clients
wrapped, and under `tidegate run`, each time against a new server of the same kind. `judging` compares what the user of
the program sees: answered rows, exit code, time, exceptions, and standard error.
"""
