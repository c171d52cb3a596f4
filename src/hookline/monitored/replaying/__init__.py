"""Replays steps of a run that is over, and asks what nobody asked at the time.

`past_run` finds the checkpoints of the run, `replay` runs its steps again in a folder of its own, `looks` computes what
is looked at and `names` finds it, `proof` compares the state with the checkpoints of the run, and `result` shows both.

`request` runs the script or function that made the run; by `claims` its first session in the folder becomes the
replay, for a monitored session a `session_replay`. `answer` brings the result of other processes. `advice` tells of all
that after a NaN.
"""
