"""The code of a parameter server.

`server` dispatches calls and decides on transactions, `pending_commits` keeps the undecided ones. `variable_owner` has
one server's variables and parts of transactions, `server_state` their values.
"""
