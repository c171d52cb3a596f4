"""How a monitored session begins: from a scaffold to a model that is ready.

`creators` are the chief's way and a worker's, `session_manager` and `restoring` initialise or restore, `session_setup`
puts the hooks around the raw session.
"""
