"""What runs in a worker, or its chief.

`remote_store` is the store of its session, `pulls` its reads, `transactions` its writes; `membership` says which
servers there are, `staleness_hook` reports how old its values were.
"""
