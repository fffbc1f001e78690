"""The sans-IO core: values and state machines that take time, randomness and headers as arguments."""
