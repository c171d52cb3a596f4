"""Jobs: which processes there are, and how they start.

`cluster` is this process's task in a job with parameter servers, on Ray (`ray_actors`, `local_ray_cluster`);
`initialize` starts SPMD processes.
"""
