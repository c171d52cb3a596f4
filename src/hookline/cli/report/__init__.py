"""Overviews of runs, from their own files, and replays of them.

`run_events` reads event files and `run_facts` the newest checkpoint; `list_runs` prints a list of runs; `report_run`
makes an HTML page about one; `replay_run` runs steps of one again.
"""
