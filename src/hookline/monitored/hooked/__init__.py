"""Hooks around one run.

`hooked_session` makes a run with hooks, `multi_step` a run of several steps, `fast_path` the runs between firings.
`scheduled_hook` has one hook in a session, and `hook_schedule` decides which hooks take part in a run.
"""
