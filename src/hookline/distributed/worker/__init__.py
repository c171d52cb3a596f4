"""What runs in a worker, or its chief.

`remote_store` is the store of its session, `pulls` its reads, `transactions` its writes; `membership` says which
servers there are, `entrance` is its side of the gate, `staleness_hook` its report.
"""
