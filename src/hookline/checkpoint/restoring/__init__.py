"""Restoring: from a directory to the values of variables.

`restart` chooses the checkpoint (the newest by its `lineage`), `reading` reads its pieces. `warm_start` starts from
another training's checkpoint, `foreign` reads weights of other libraries, `waiting` waits for new checkpoints, and
`inspection` describes a directory without changing it.
"""
