"""Hooks around one run.

`scheduled_hook` is one hook in a session, `hook_schedule` the list of them and the next time to ask one;
`hooked_session` makes a run with them, `multi_step` one of several steps, `fast_path` the runs that ask no hook.
"""
