"""Jobs: which processes there are, and how they start.

`cluster` is this process's task in a job with parameter servers, on Ray (`ray_actors`, `ray_cluster`); `initialize`
starts processes in step.
"""
