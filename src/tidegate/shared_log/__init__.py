"""The log of events that the processes of one key share, so that each holds the same state of the key's limits."""
