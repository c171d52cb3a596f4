"""A run: how a planned request is carried out, again and again.

`session_backend` takes a request, `cached_step` is its work in one object, `staged_run` the one with work on the host.
`dispatch_throttle` bounds how far the host is ahead, and polls the `latches`.
"""
