"""What runs in a parameter server.

`server` answers calls, `server_state` has the values, `owner` stages and applies transactions, `ballots` knows what is
undecided.
"""
