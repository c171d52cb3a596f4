"""The way of a checkpoint to the disk.

`save_operation` writes one checkpoint: `contents` finds a session's values, `host_copy` copies them to the host,
`moves` renames what is written into place, `durable` makes it survive a power cut. `manager` and `retention` say what
stays.
"""
