"""A run: how a planned request is carried out, again and again.

`engine` takes a request, `cached_step` is its work in one object, `staged_run` the one with work on the host.
`run_ahead` bounds how far the host is ahead, and looks at the `latches`.
"""
