"""Clocks of eval frameworks that run while a call stands in the queue, and what is done about them.

A framework that gives a row 60 s counts the queue's wait among them: it cancels rows that nobody has sent yet, queues
them again, and may never end. `table` names these clocks, one entry each; `dials` are the two kinds of place where a
framework lets its clock be set: a parameter's default and an environment variable. `winding` stretches what is there at
`install()` and what is imported later, and puts it back at `uninstall()`.

A value that somebody gave is never touched: an argument goes before a default, and a variable that is set stays.
"""
