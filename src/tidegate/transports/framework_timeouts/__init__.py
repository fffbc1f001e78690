"""Timeouts of eval frameworks that also count the time a call waits in the queue, and their extension.

A framework that gives a row 60 s counts the wait in the queue too. It cancels rows before they are sent, queues them
again, and may never end. `table` lists these timeouts, one entry each. `timeout` holds the two places where a framework
lets its timeout be set: the default of a parameter, and an environment variable. `patch` extends the timeouts of
imported modules at `install()`, extends those of later imports, and restores all at `uninstall()`.

A value that the user set is never changed: an argument takes precedence over a default, and a set variable stays.
"""
