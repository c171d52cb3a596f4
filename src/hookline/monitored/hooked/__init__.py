"""Hooks around one run.

`session_hook` is one hook in a session, `schedule` the list of them and the next time at which one must be asked;
`hooked` makes a run with them, `several_steps` one of several steps, `fast_path` the runs that ask nobody.
"""
