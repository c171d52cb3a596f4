"""The code of a worker (or of the chief).

`remote_store` is the store of its session, which reads with `pulls` and writes with `transactions`. `membership` knows
the servers and their epoch, `staleness_hook` reports the staleness of updates.
"""
