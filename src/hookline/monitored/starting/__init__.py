"""The start of a monitored session, from a scaffold to a ready model.

`creators` creates raw sessions for a chief or a worker, `session_manager` and `restoring` initialise or restore the
model, and `session_setup` adds the hooks.
"""
