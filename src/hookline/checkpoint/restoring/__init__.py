"""The way back: from a directory to the values of variables.

`restart` chooses the checkpoint (the newest by its `lineage`), `reading` reads its pieces. `warm_start` and `foreign`
begin from the weights of other trainings, `waiting` waits for new ones, `inspection` reads without changing anything.
"""
