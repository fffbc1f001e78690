"""The check of tidegate in front of rate limiters of other people, as their projects ship them.

Theory of operation. A row of the catalogue is one limiter with one configuration. The run starts the limiter on a
loopback port in a temporary folder, and a stub behind it that answers after a random latency. Then a program sends all
of its calls at once through an OpenAI client, plain and wrapped, each time against a newly started limiter. `ideals`
computes the time that a client with knowledge of the rule needs. `judging` holds the run with tidegate against it.
Refusals are those of the limiter's own access log, not those that a client saw.
"""
