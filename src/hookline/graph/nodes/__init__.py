"""What a graph is made of: operations and what they give.

`nodes` are the kinds of operations, `ops` makes them from functions, `views` are the tensors and their parts, `spec`
says what is known of a value before it is there. A `check` watches arguments while a program runs.
"""
