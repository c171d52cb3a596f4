"""Executes planned runs.

`session_backend` receives requests. `cached_step` makes runs of one program, `repeated_step` makes several steps in one
run, `staged_run` makes runs with host operations, options or remote variables. `dispatch_throttle` limits how far the
host is ahead of the device, and polls the `latches`. `launch_log` compares the programs of SPMD processes.
"""
