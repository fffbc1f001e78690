"""Support for each SDK: the attributes that hold its HTTP clients, and hooks that end its retries."""
