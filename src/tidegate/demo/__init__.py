"""The demonstration: a shipped data set through real SDK clients against the simulator."""
