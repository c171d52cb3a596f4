"""Hooks around one run.

`hooked_session` makes a run with hooks, `multi_step` makes a run of several steps, and `fast_path` makes the runs
between firings. `scheduled_hook` keeps the state of one hook in a session, and `hook_schedule` decides which hooks take
part in a run.
"""
