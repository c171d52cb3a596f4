"""The way of a checkpoint to the disk.

`save` is one checkpoint on its way: `contents` copies a session's values to the `host`, `moves` brings what is written
into place, `durable` sees that it survives a power cut. `manager` and `retention` say what stays.
"""
