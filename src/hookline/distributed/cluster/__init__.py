"""The processes of a job, and their start.

`cluster` describes this process's task in a job with parameter servers, which are Ray actors (`ray_actors`,
`local_ray_cluster`). `initialize` connects SPMD processes.
"""
