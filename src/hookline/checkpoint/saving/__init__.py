"""Saving: from the values of variables to a complete checkpoint.

`save_operation` writes one checkpoint: `contents` finds a session's values, `host_copy` copies them to the host,
`moves` renames the written directory, `durable` makes it survive a power cut. `manager` and `retention` decide which
checkpoints are kept. `failures` maps errors and retries.
"""
