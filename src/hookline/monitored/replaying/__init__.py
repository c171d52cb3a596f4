"""Replays steps of a run that is over, and asks what nobody asked at the time.

`past_run` finds the checkpoints of the run, `replay` runs its steps again in a folder of its own, `looks` computes what
is looked at, `proof` compares the state with the checkpoints of the run, `result` shows both, and `request` is the wish
of the command `hookline replay`.
"""
