"""Core without I/O: values and state machines that take time, randomness and headers as arguments."""
