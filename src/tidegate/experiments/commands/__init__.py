"""`tidegate experiment`: durable experiments from the command line."""
