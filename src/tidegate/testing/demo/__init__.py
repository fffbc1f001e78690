"""Demonstration: a shipped data set, sent through real SDK clients to the simulator."""
