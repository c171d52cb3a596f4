"""What runs in a parameter server.

`server` answers calls and decides, `owner` has one server's part of an epoch and `server_state` its values, `ballots`
knows what is undecided.
"""
