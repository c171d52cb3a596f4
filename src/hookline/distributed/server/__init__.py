"""What runs in a parameter server.

`server` answers calls and decides, `variable_owner` has one server's part of an epoch and `server_state` its values,
`pending_commits` has the undecided transactions.
"""
